"""What mobius-onnx builds of the same layer: its default graph, its graph for the CPU, and its static cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from portpe.bench.competitors import llama, onnx_session
from portpe.bench.competitors.built_layer import BuiltLayer
from portpe.bench.subject import Subject

PACKAGES = ("mobius",)


def build_command(source: Path, output: Path, dtype: str, options: Sequence[str]) -> list[str]:
    """The arguments of ``python -m`` that build a checkpoint folder."""
    return ["mobius", "build", "--config", str(source), "--dtype", dtype, *options, str(output)]


def _command(*options: str) -> Callable[[Path, Path, Subject], Sequence[str]]:
    return lambda source, output, subject: build_command(source, output, subject.dtype, options)


def competitors(threads: int) -> list[BuiltLayer]:
    """Its three caches: concatenated, written in place by GroupQueryAttention, written in place by TensorScatter."""
    made = partial(BuiltLayer, threads=onnx_session.thread_statement(threads), intra_op=threads, packages=PACKAGES)
    note = "its attention, cut out of the one-layer model that it builds"
    return [
        made(name="mobius default", command=_command("--ep", "default"), in_place=False, note=note),
        made(name="mobius cpu", command=_command("--ep", "cpu"), in_place=True, score_arrays=0.0, note=note),
        made(
            name="mobius static cache",
            command=_command("--static-cache", "--max-seq-len", str(llama.POSITIONS)),
            in_place=True,
            note=f"{note}; the length of its cache left open",
        ),
    ]
