"""Layer: exporters/onnx. What each graph form needs and carries: the one capability table.

Imports no onnx: the table is read by commands and manifests on machines that only run graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portpe.exporters.onnx import limits
from portpe.exporters.onnx.limits import Limit
from portpe.spec import AttentionSpec


@dataclass(frozen=True)
class Capability:
    """The limits of one graph form.

    ``cache`` says how keys and values of earlier calls come in and go out.
    ``minimum_runtime`` is the oldest version of each runtime that loads the form.
    ``tested_providers`` are those the form is tested on; other providers of ONNX Runtime may
    run it, and nobody has shown here that they do. ``silent_providers`` return numbers for a
    position past a table, where the others raise: callers check positions before they dispatch.
    ``absent_stages`` are inside a fused operator, so the stages graph does not have them.
    ``limits`` are what it cannot express; batch, chunk and cache may have any size.
    """

    form: str
    opset: int
    ir_version: int
    dtypes: tuple[str, ...]
    minimum_runtime: dict[str, str]
    tested_providers: tuple[str, ...]
    silent_providers: tuple[str, ...]
    cache: str
    limits: tuple[Limit, ...]
    absent_stages: tuple[str, ...] = ()

    def carries(self, spec: AttentionSpec) -> str | None:
        """None for a spec that the form can express, else the reason why not."""
        return spec.refusal or next((reason for limit in self.limits if (reason := limit.reason(spec))), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data for a manifest."""
        return {
            "opset": self.opset,
            "ir_version": self.ir_version,
            "dtypes": list(self.dtypes),
            "minimum_runtime": dict(self.minimum_runtime),
            "tested_providers": list(self.tested_providers),
            "silent_providers": list(self.silent_providers),
            "cache": self.cache,
            "limits": [limit.text for limit in self.limits],
            "absent_stages": list(self.absent_stages),
        }


def refusal(spec: AttentionSpec, form: str, dtype: str | None = None) -> str | None:
    """Why a form cannot carry a spec, or a type, and which forms can; None where it can."""
    capability = FORMS[form]
    if dtype is not None and dtype not in capability.dtypes:
        able = [name for name, each in FORMS.items() if dtype in each.dtypes and each.carries(spec) is None]
        return f"form {form} has dtypes {', '.join(capability.dtypes)}, got {dtype}; {dtype} has form {_any_of(able)}"
    reason = capability.carries(spec)
    if reason is None:
        return None
    able = [name for name, each in FORMS.items() if each.carries(spec) is None]
    way_out = f"; form {_any_of(able)} carries it" if able else ""
    return f"form {form} cannot carry this spec: {reason}{way_out}"


def _any_of(names: list[str]) -> str:
    return " or ".join(names)


_EVERYWHERE = (limits.ONE_LENGTH, limits.ONE_BIAS)

_CONCATENATED = "past (batch, kv_heads, past, head_dim) in, present (batch, kv_heads, past + sequence, head_dim) out"
_BUFFER = "buffers (batch, kv_heads, max_sequence_length, head_dim) in and out, written in place where both are bound"

_FUSED = ("scores", "probs")

# Gather on these takes a clamped row, or zeros, for an index that the CPU refuses, as their users report (none was run
# here); a kernel on a device cannot raise.
_SILENT = (
    "CUDAExecutionProvider",
    "DmlExecutionProvider",
    "OpenVINOExecutionProvider",
    "TensorrtExecutionProvider",
    "WebGpuExecutionProvider",
)

FORMS: dict[str, Capability] = {
    "portable": Capability(
        form="portable",
        opset=18,
        ir_version=10,
        dtypes=("float32", "float16", "bfloat16"),
        minimum_runtime={"onnxruntime": "1.18", "onnx": "1.16"},  # the first with ir_version 10
        tested_providers=("CPUExecutionProvider",),
        silent_providers=_SILENT,
        cache=_CONCATENATED,
        limits=_EVERYWHERE,
    ),
    "standard": Capability(
        form="standard",
        opset=23,
        ir_version=11,
        dtypes=("float32", "float16", "bfloat16"),
        # 1.26 masks before the cap, 1.27 gives NaN for a row whose keys a bias hides
        minimum_runtime={"onnxruntime": "1.28", "onnx": "1.23"},
        tested_providers=("CPUExecutionProvider",),
        silent_providers=_SILENT,
        cache=_CONCATENATED,
        limits=(
            *_EVERYWHERE,
            limits.SOFTMAX,
            limits.NO_SINKS,
            limits.NO_VALUE_TERM,
            limits.NO_KEYS_READ,
            limits.ATTENTION_CAPS_FIRST,
        ),
        absent_stages=_FUSED,
    ),
    "shared": Capability(
        form="shared",
        opset=24,
        ir_version=11,
        dtypes=("float32", "float16", "bfloat16"),
        minimum_runtime={"onnxruntime": "1.27", "onnx": "1.23"},  # 1.26 masks before the cap
        tested_providers=("CPUExecutionProvider",),
        silent_providers=_SILENT,
        cache=_BUFFER + "; write_indices and nonpad_kv_seqlen (batch,) say where new keys go and how many count",
        limits=(
            *_EVERYWHERE,
            limits.SOFTMAX,
            limits.CAUSAL,
            limits.KEYS_AND_VALUES,
            limits.NO_SINKS,
            limits.NO_VALUE_TERM,
            limits.ATTENTION_CAPS_FIRST,
        ),
        absent_stages=_FUSED,
    ),
    "ort": Capability(
        form="ort",
        opset=23,
        ir_version=11,
        dtypes=("float32", "float16"),
        minimum_runtime={"onnxruntime": "1.32"},  # the first with query_seqlens: chunks of several batch rows
        tested_providers=("CPUExecutionProvider",),
        silent_providers=_SILENT,
        cache=_BUFFER + "; lengths follow from attention_mask (batch, past + sequence)",
        limits=(
            *_EVERYWHERE,
            limits.SOFTMAX,
            limits.ROTATION_FIRST,
            limits.KEYS_AND_VALUES,
            limits.EQUAL_WIDTHS,
            limits.HEADS_IN_EIGHTS,
            limits.NO_VALUE_TERM,
            limits.NO_KEYS_READ,
            limits.GROUP_QUERY_ATTENTION_CAPS_FIRST,
        ),
        absent_stages=_FUSED,
    ),
}
