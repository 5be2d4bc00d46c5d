"""What the model builder of onnxruntime-genai makes of the same layer, for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portpe.bench.competitors import onnx_session
from portpe.bench.competitors.built_layer import BuiltLayer
from portpe.bench.subject import Subject

PRECISIONS = {"float32": "fp32", "float16": "fp16"}


def competitors(threads: int) -> list[BuiltLayer]:
    """The one graph: GroupQueryAttention with its rotation inside."""
    return [
        BuiltLayer(
            name="ort-genai builder",
            threads=onnx_session.thread_statement(threads),
            intra_op=threads,
            packages=("onnxruntime_genai", "onnx_ir"),
            command=_command,
            in_place=True,
            score_arrays=0.0,
            note="its attention, cut out of the one-layer model that it builds",
        )
    ]


def _command(source: Path, output: Path, subject: Subject) -> Sequence[str]:
    places = ["-i", str(source), "-o", str(output), "-c", str(output / "cache")]
    return ["onnxruntime_genai.models.builder", *places, "-p", PRECISIONS[subject.dtype], "-e", "cpu"]
