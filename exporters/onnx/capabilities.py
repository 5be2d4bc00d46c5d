"""Layer: exporters/onnx. What each graph form needs and carries: the one capability table.

Imports no onnx: the table is read by commands and manifests on machines that only run graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from portpe.spec import AttentionSpec


@dataclass(frozen=True)
class Capability:
    """The limits of one graph form.

    ``cache`` says how keys and values of earlier calls come in and go out.
    ``minimum_runtime`` is the oldest version of each runtime that loads the form.
    ``tested_providers`` are those the form is tested on; other providers of ONNX Runtime may
    run it, and nobody has shown here that they do. ``silent_providers`` return numbers for a
    position past a table, where the others raise: callers check positions before they dispatch.
    ``carries`` gives None for a spec that the form can express, else the reason why not.
    """

    form: str
    opset: int
    ir_version: int
    dtypes: tuple[str, ...]
    minimum_runtime: dict[str, str]
    tested_providers: tuple[str, ...]
    silent_providers: tuple[str, ...]
    cache: str
    carries: Callable[[AttentionSpec], str | None]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data for a manifest, without ``carries``."""
        return {
            "opset": self.opset,
            "ir_version": self.ir_version,
            "dtypes": list(self.dtypes),
            "minimum_runtime": dict(self.minimum_runtime),
            "tested_providers": list(self.tested_providers),
            "silent_providers": list(self.silent_providers),
            "cache": self.cache,
        }


def _portable_carries(spec: AttentionSpec) -> str | None:
    if spec.length_dependent:
        assert spec.rotary is not None
        return (
            f"schedule {spec.rotary.schedule.kind} depends on the current length, and cached keys would keep the "
            "rotation of another one; fix the regime with --context L"
        )
    kinds = [bias.kind for bias in spec.bias]
    repeated = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if repeated:
        return f"bias {repeated[0]} stands twice, and a graph has one table of slopes; merge them into one"
    return None


FORMS: dict[str, Capability] = {
    "portable": Capability(
        form="portable",
        opset=18,
        ir_version=10,
        dtypes=("float32", "float16", "bfloat16"),
        minimum_runtime={"onnxruntime": "1.18", "onnx": "1.16"},  # the first with ir_version 10
        tested_providers=("CPUExecutionProvider",),
        # Gather on these takes a clamped row, or zeros, for an index that the CPU refuses, as their users report (none
        # was run here); a kernel on a device cannot raise.
        silent_providers=(
            "CUDAExecutionProvider",
            "DmlExecutionProvider",
            "OpenVINOExecutionProvider",
            "TensorrtExecutionProvider",
            "WebGpuExecutionProvider",
        ),
        cache="past (batch, kv_heads, past, head_dim) in, present (batch, kv_heads, past + sequence, head_dim) out",
        carries=_portable_carries,
    ),
}
