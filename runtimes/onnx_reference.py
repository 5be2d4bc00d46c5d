"""Layer: runtimes. The ONNX reference evaluator: the standard's own Python, slow and plain."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portpe.errors import SpecError
from portpe.interface import BlockInputs, BlockOutputs, check_call
from portpe.runtimes import graph_io
from portpe.runtimes.base import Availability, Configuration
from portpe.runtimes.cache_layout import SPARE, CacheLayout
from portpe.spec import AttentionSpec
from portpe.tables import end_of

if TYPE_CHECKING:
    from portpe.bundle import Bundle

_FOREIGN = {"ort": "com.microsoft GroupQueryAttention is no operator of the standard"}
_QUANTIZED = "MatMulNBits is an operator of ONNX Runtime's own"


@dataclass
class OnnxReferenceSession:
    """The production graph, and the stages graph that is loaded when it is first run.

    Raises SpecError for other inputs or outputs than the layer has.
    """

    spec: AttentionSpec
    layer: int
    path: Path
    stages_path: Path | None
    end: int | None
    provider: str = ""
    _loaded: dict[Path, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaded = self._evaluator(self.path)
        graph_io.check_names(self.spec, self.layer, loaded.input_names, loaded.output_names)

    def run(self, inputs: BlockInputs, *, stages: bool = False) -> BlockOutputs:
        """Run the production graph, or with ``stages`` the graph that gives them.

        Positions are checked first: the evaluator's Gather wraps negative ones (SpecError).
        """
        check_call(self.spec, inputs, self.end)
        path = self.stages_path if stages and self.stages_path is not None else self.path
        evaluator = self._evaluator(path)
        sequence = inputs.hidden_states.shape[1]
        layout = CacheLayout.of(self.spec, self.layer, _shapes(evaluator.proto_.graph))
        feeds = layout.as_buffers(graph_io.feeds(self.spec, self.layer, inputs), sequence, SPARE)
        found = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
        return graph_io.block_outputs(self.spec, self.layer, layout.cut(found, inputs.past + sequence))

    def _evaluator(self, path: Path) -> Any:
        if path not in self._loaded:
            import onnx
            from onnx.reference import ReferenceEvaluator

            self._loaded[path] = ReferenceEvaluator(onnx.load(path))
        return self._loaded[path]


def _shapes(graph: Any) -> dict[str, list[int | str]]:
    """Sizes, or names of sizes, by input and output."""
    values = (*graph.input, *graph.output)
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values
    }


class OnnxReference:
    """onnx.reference.ReferenceEvaluator."""

    name = "onnx-reference"

    def availability(self) -> Availability:
        """Usable where onnx can be imported."""
        if find_spec("onnx") is None:
            return Availability(False, reason="onnx is not installed; pip install 'portpe[onnx]'")
        try:
            import onnx
            import onnx.reference
        except Exception as error:  # a broken installation raises what it likes, and must not end the listing
            return Availability(False, reason=f"onnx cannot be imported: {error}")
        return Availability(True, version=onnx.__version__, device="cpu")

    def configurations(self, bundle: Bundle, provider: str | None = None) -> list[Configuration]:
        """Form x type. Raises SpecError for a provider: there is numpy and nothing else."""
        if provider not in (None, "", "cpu", "CPUExecutionProvider"):
            raise SpecError(f"provider must be cpu for onnx-reference, got {provider!r}")
        return [Configuration(form, dtype) for form in bundle.forms if form not in _FOREIGN for dtype in bundle.dtypes]

    def gaps(self, bundle: Bundle) -> list[tuple[str, str]]:
        """Forms and quantised weights with operators that are not the standard's; it evaluates every dtype."""
        gaps = []
        for form in bundle.forms:
            for kind in bundle.graph_types:
                reason = _FOREIGN.get(form) or (_QUANTIZED if kind not in bundle.dtypes else None)
                gaps += [(f"{form}_{kind}", reason)] if reason else []
        return gaps

    def open(self, bundle: Bundle, configuration: Configuration) -> OnnxReferenceSession:
        """The graphs of this form and type."""
        form, dtype = configuration.form, configuration.dtype
        return OnnxReferenceSession(
            bundle.spec,
            bundle.layer,
            bundle.graph(form, dtype),
            bundle.graph(form, dtype, stages=True),
            end_of(bundle.spec, bundle.tables()),
        )


RUNTIME = OnnxReference()
