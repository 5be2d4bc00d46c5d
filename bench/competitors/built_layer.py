"""Graphs that other builders make of a one-layer Llama, cut down to its attention."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from portpe.bench.case import Case
from portpe.bench.competitor import USUAL, Prepared, installed, memory
from portpe.bench.competitors import llama, onnx_session
from portpe.bench.subject import Subject
from portpe.errors import SpecError
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability

LONGEST = 600  # seconds that a builder may take
HIDDEN = "hidden_states"
CUT = "attention.onnx"


@dataclass
class BuiltLayer:
    """A builder's graph. ``command`` is run as ``python -m``, on a checkpoint folder, into an output folder."""

    name: str
    threads: str
    intra_op: int
    packages: tuple[str, ...]
    command: Callable[[Path, Path, Subject], Sequence[str]]
    in_place: bool
    score_arrays: float = 2.5
    note: str = ""
    runtime: str = "onnxruntime"
    peer: bool = True
    twin: bool = False
    slowness: float = USUAL

    def availability(self) -> Availability:
        found = onnx_session.availability()
        return installed(*self.packages, "transformers", "onnx") if found.usable else found

    def refusal(self, subject: Subject) -> str | None:
        if subject.dtype == "bfloat16":
            return "ONNX Runtime has no bfloat16 kernels on the CPU"
        return llama.beyond_llama(subject.spec)

    def memory(self, subject: Subject, case: Case) -> int:
        return memory(subject, case, self.score_arrays)

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        session = self._open(subject)
        output = session.get_outputs()[0].name
        found = _feeds(session, inputs, case, in_place=self.in_place)
        return onnx_session.bound(session, found.feeds, output, found.presents, in_place=self.in_place)

    def _open(self, subject: Subject) -> Any:
        source, home = subject.folder / "llama", subject.folder / self.name.replace(" ", "_")
        if not (home / CUT).is_file():
            if not source.is_dir():
                llama.checkpoint(subject, source)
            run_module(self.command(source, home, subject))
            cut_attention(home / "model.onnx", home / CUT)
        return onnx_session.open_session(home / CUT, self.intra_op)


def run_module(arguments: Sequence[str]) -> None:
    """``python -m`` with these arguments, without a network. Raises SpecError with its last line where it fails."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise SpecError(f"{arguments[0]} failed: {lines[-1]}")


def cut_attention(source: Path, target: Path) -> None:
    """Write the part of a one-layer model between its input norm and its output projection, beside the model.

    The part takes ``hidden_states`` in place of what the norm gives; sizes of its cache are left open. Weights stay in
    the model's own file; the block's output comes first. Raises SpecError where the two nodes are not found.
    """
    import onnx

    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    norm = _one(graph.node, lambda node: "input_layernorm" in node.name and "Norm" in node.op_type)
    output = _one(
        graph.node, lambda node: "o_proj" in node.name and node.op_type in ("MatMul", "Gemm", "Add"), last=True
    )
    start, end = norm.output[0], output.output[0]
    kept = _needed(graph, [end, *(o.name for o in graph.output if o.name != "logits")], start)
    for node in kept:
        node.input[:] = [HIDDEN if name == start else name for name in node.input]
    read = {name for node in kept for name in node.input}
    kind = _float_type(graph)
    values = [onnx.helper.make_tensor_value_info(HIDDEN, kind, ["batch", "sequence", "hidden"])]
    values += [_with_open_sizes(value) for value in graph.input if value.name in read]
    ends = [onnx.helper.make_tensor_value_info(end, kind, ["batch", "sequence", "hidden"])]
    ends += [_with_open_sizes(value) for value in graph.output if value.name != "logits"]
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    part = onnx.helper.make_graph(kept, "attention", values, ends, weights)
    onnx.save(
        onnx.helper.make_model(
            part, opset_imports=list(model.opset_import), ir_version=model.ir_version, functions=list(model.functions)
        ),
        target,
    )


@dataclass(frozen=True)
class _Found:
    feeds: dict[str, Array]
    presents: dict[str, str]


def _feeds(session: Any, inputs: BlockInputs, case: Case, *, in_place: bool) -> _Found:
    """Each input of a cut graph by what its name says, and which output follows which cache."""
    arrays: dict[str, Array] = {
        HIDDEN: inputs.hidden_states,
        "position_ids": inputs.position_ids,
        "attention_mask": inputs.attention_mask,
        "input_ids": np.zeros(inputs.position_ids.shape, np.int64),
        **onnx_session.external_cache(inputs),
    }
    feeds, caches = {}, []
    for value in session.get_inputs():
        if value.name in arrays:
            feeds[value.name] = arrays[value.name]
            continue
        past = inputs.past_key if "key" in value.name.removeprefix("past_key_values") else inputs.past_value
        axis = 2
        if len(value.shape) == 3:  # (batch, slots, kv_heads * head_dim)
            past, axis = past.swapaxes(1, 2).reshape(past.shape[0], past.shape[2], past.shape[1] * past.shape[3]), 1
        feeds[value.name] = onnx_session.buffer(past, case.capacity, axis) if in_place else past
        caches.append(value.name)
    outputs = [value.name for value in session.get_outputs()][1:]
    return _Found(feeds, dict(zip(outputs, caches, strict=True)))


def _one(nodes: Any, fits: Callable[[Any], bool], *, last: bool = False) -> Any:
    found = [node for node in nodes if fits(node)]
    if not found:
        raise SpecError("a layer's attention must lie between nodes named input_layernorm and o_proj, got neither")
    return found[-1 if last else 0]


def _needed(graph: Any, ends: Sequence[str], start: str) -> list[Any]:
    """The nodes that ``ends`` follow from, in order, those that ``start`` follows from left out."""
    wanted, kept = set(ends), []
    for node in reversed(graph.node):
        if wanted & set(node.output) - {start, ""}:
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]


def _float_type(graph: Any) -> int:
    """The type of the cache, and so of hidden states."""
    caches = [value for value in graph.input if "key" in value.name]
    return int(caches[0].type.tensor_type.elem_type)


def _with_open_sizes(value: Any) -> Any:
    """The same input or output with its slots named, not fixed."""
    import onnx

    kind = value.type.tensor_type
    sizes = [size.dim_param or size.dim_value for size in kind.shape.dim]
    if "cache" in value.name:  # one fixed length of a static cache
        sizes[1] = "slots"
    return onnx.helper.make_tensor_value_info(value.name, kind.elem_type, sizes)
