"""Layer: runtimes. ONNX Runtime, at every optimisation level.

Shown to be right on CPUExecutionProvider only. Other providers can be asked for, and nothing here has run them; the
provider that a session really got is reported, because ONNX Runtime falls back to the CPU without an exception.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portpe.errors import SpecError
from portpe.interface import Array, BlockInputs, BlockOutputs, check_call
from portpe.runtimes import graph_io
from portpe.runtimes.base import Availability, Configuration
from portpe.runtimes.cache_layout import SPARE, CacheLayout
from portpe.runtimes.ort_decoder import BlockDecoder
from portpe.runtimes.ort_values import from_ort, to_ort
from portpe.spec import AttentionSpec
from portpe.tables import end_of

if TYPE_CHECKING:
    from portpe.bundle import Bundle

__all__ = [
    "CPU",
    "LEVELS",
    "RUNTIME",
    "BlockDecoder",
    "OnnxRuntime",
    "OnnxRuntimeSession",
    "load",
    "open_graph",
    "resolve_provider",
    "run_session",
]

CPU = "CPUExecutionProvider"
LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_NO_KERNELS = {CPU: {"bfloat16": f"{CPU} has no bfloat16 kernels (MatMul, Add, Mul: NOT_IMPLEMENTED)"}}


def _no_kernels(provider: str, dtype: str) -> str | None:
    return _NO_KERNELS.get(provider, {}).get(dtype)


def resolve_provider(provider: str | None) -> str:
    """The full name of a provider of this installation; ``cpu`` and ``cuda`` will do. Raises SpecError."""
    import onnxruntime

    available: list[str] = onnxruntime.get_available_providers()
    asked = (provider or CPU).lower().removesuffix("executionprovider")
    for name in available:
        if name.lower().removesuffix("executionprovider") == asked:
            return name
    raise SpecError(f"provider must be one of {', '.join(available)} for onnxruntime, got {provider!r}")


@dataclass
class OnnxRuntimeSession:
    """One loaded graph. ``end`` is the first position that its tables have no row for, ``layout`` how it takes its
    cache. Raises SpecError for other inputs or outputs than the layer has.
    """

    spec: AttentionSpec
    layer: int
    path: Path
    stages_path: Path | None
    end: int | None
    asked_provider: str = CPU
    optimization: str = "all"

    def __post_init__(self) -> None:
        self._loaded: dict[Path, Any] = {}
        loaded = self._session(self.path)
        names = [[value.name for value in values] for values in (loaded.get_inputs(), loaded.get_outputs())]
        graph_io.check_names(self.spec, self.layer, *names)
        self.provider: str = loaded.get_providers()[0]
        shapes = {value.name: value.shape for value in (*loaded.get_inputs(), *loaded.get_outputs())}
        self.layout = CacheLayout.of(self.spec, self.layer, shapes)

    def run(self, inputs: BlockInputs, *, stages: bool = False) -> BlockOutputs:
        """Run the production graph, or with ``stages`` the graph that gives them.

        Positions are checked first: past a table some providers return numbers without a word (SpecError). A graph
        whose cache is a buffer gets one that is longer than the call's keys, and the spare slots are cut off again.
        """
        check_call(self.spec, inputs, self.end)
        path = self.stages_path if stages and self.stages_path is not None else self.path
        sequence = inputs.hidden_states.shape[1]
        feeds = graph_io.feeds(self.spec, self.layer, inputs)
        found = run_session(self._session(path), self.layout.as_buffers(feeds, sequence, SPARE))
        found = self.layout.cut(found, inputs.past + sequence)
        return graph_io.block_outputs(self.spec, self.layer, found)

    def graph(self) -> Any:
        """The production graph as ONNX Runtime's InferenceSession."""
        return self._session(self.path)

    def _session(self, path: Path) -> Any:
        if path not in self._loaded:
            self._loaded[path] = load(path, self.asked_provider, self.optimization)
        return self._loaded[path]


def load(path: Path, provider: str, optimization: str) -> Any:
    """An InferenceSession that is quiet, deterministic, and leaves the cores alone while it waits."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[optimization])
    options.log_severity_level = 3
    options.use_deterministic_compute = True
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = _cores()  # a number of one's own also keeps it from pinning threads to cores
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=[provider])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_session(session: Any, feeds: dict[str, Array]) -> dict[str, Array]:
    """Every output by name. bfloat16 goes through OrtValue: ONNX Runtime knows no numpy type for it."""
    names = [output.name for output in session.get_outputs()]
    types = [value.type for value in (*session.get_inputs(), *session.get_outputs())]
    if "tensor(bfloat16)" not in types:
        return dict(zip(names, session.run(None, feeds), strict=True))
    values = session.run_with_ort_values(names, {name: to_ort(array) for name, array in feeds.items()})
    return {name: from_ort(value) for name, value in zip(names, values, strict=True)}


def open_graph(
    path: Path,
    spec: AttentionSpec,
    *,
    layer: int = 0,
    end: int | None = None,
    provider: str | None = None,
    optimization: str = "all",
) -> OnnxRuntimeSession:
    """A session on an ONNX file of the user's own that takes and gives what a portpe graph does.

    Args:
        path: the file; it may also give stages, by their names.
        spec: what the file is held against.
        layer: the number in the names of the cache.
        end: the first position that the file's tables have no row for; None leaves positions to the file.
        provider: see ``resolve_provider``.
        optimization: one of ``LEVELS``.

    Raises:
        SpecError: no such file, no ONNX graph, or other inputs or outputs.
    """
    import onnxruntime.capi.onnxruntime_pybind11_state as state

    if not path.is_file():
        raise SpecError(f"graph must be an ONNX file, got {path}")
    try:
        return OnnxRuntimeSession(spec, layer, path, None, end, resolve_provider(provider), optimization)
    except (state.InvalidProtobuf, state.InvalidGraph, state.InvalidArgument, state.Fail) as error:
        cause = str(error).strip().splitlines()[0]
        raise SpecError(f"graph must be an ONNX file that ONNX Runtime loads, got {path.name}: {cause}") from None


class OnnxRuntime:
    """ONNX Runtime: each graph and type at each optimisation level."""

    name = "onnxruntime"

    def availability(self) -> Availability:
        """Usable where onnxruntime can be imported; ``device`` lists the providers that it offers."""
        if find_spec("onnxruntime") is None:
            return Availability(False, reason="onnxruntime is not installed; pip install 'portpe[onnx]'")
        try:
            import onnxruntime

            # Two distributions share this package's folder: removing one leaves an empty shell that imports.
            version, providers = onnxruntime.__version__, onnxruntime.get_available_providers()
        except Exception as error:  # a broken installation raises what it likes, and must not end the listing
            return Availability(False, reason=f"onnxruntime cannot be imported: {error}")
        return Availability(True, version=version, device=", ".join(providers))

    def configurations(self, bundle: Bundle, provider: str | None = None) -> list[Configuration]:
        """Form x type x level. Raises SpecError for a provider that this installation lacks."""
        name = resolve_provider(provider)
        return [
            Configuration(form, dtype, name, level)
            for form in bundle.forms
            for dtype in bundle.graph_types
            if _no_kernels(name, dtype) is None
            for level in LEVELS
        ]

    def gaps(self, bundle: Bundle) -> list[tuple[str, str]]:
        """Types without kernels on the default provider."""
        reasons = [(form, dtype, _no_kernels(CPU, dtype)) for form in bundle.forms for dtype in bundle.dtypes]
        return [(f"{form}_{dtype}", reason) for form, dtype, reason in reasons if reason is not None]

    def open(self, bundle: Bundle, configuration: Configuration) -> OnnxRuntimeSession:
        """Load the production graph; the stages graph is loaded when stages are first asked for.

        Raises:
            SpecError: an artefact that the bundle lacks, a graph of another layer, or a type that the provider has no
                kernels for.
        """
        form, dtype = configuration.form, configuration.dtype
        if reason := _no_kernels(resolve_provider(configuration.provider or None), dtype):
            raise SpecError(f"dtype {dtype} cannot run: {reason}")
        return OnnxRuntimeSession(
            bundle.spec,
            bundle.layer,
            bundle.graph(form, dtype),
            bundle.graph(form, dtype, stages=True),
            end_of(bundle.spec, bundle.tables()),
            resolve_provider(configuration.provider or None),
            configuration.optimization or "all",
        )


RUNTIME = OnnxRuntime()
