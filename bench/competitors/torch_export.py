"""What torch.onnx.export makes of the reference, on ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from portpe.bench.case import Case, inputs
from portpe.bench.competitor import USUAL, Prepared, installed, memory
from portpe.bench.competitors import onnx_session
from portpe.bench.subject import Subject
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability

OPSET = 18
SCORE_ARRAYS = 7.0
BATCH, ROWS, PAST = 2, 3, 5  # of the traced call: a size of 1 may be taken for a constant
NAMES = ("hidden_states", "position_ids", "attention_mask", "past_key", "past_value", "key_position_ids")
OUTPUTS = ("output", "present_key", "present_value")


@dataclass
class TorchOnnxExport:
    """The reference through torch's exporter, with every size left open."""

    threads: str
    intra_op: int
    name: str = "torch.onnx.export of the reference"
    runtime: str = "onnxruntime"
    peer: bool = True
    twin: bool = False
    slowness: float = USUAL
    note: str = f"opset {OPSET}, dynamo exporter"

    def availability(self) -> Availability:
        found = onnx_session.availability()
        return installed("torch", "onnxscript", "onnx") if found.usable else found

    def refusal(self, subject: Subject) -> str | None:
        return "torch.onnx.export takes float32 and float16" if subject.dtype == "bfloat16" else None

    def memory(self, subject: Subject, case: Case) -> int:
        return memory(subject, case, SCORE_ARRAYS)

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        del case  # its cache is no buffer
        path = subject.folder / f"torch_{subject.key}.onnx"
        if not path.is_file():
            with quiet():
                exported(subject).save(path, external_data=True)
        session = onnx_session.open_session(path, self.intra_op)
        taken = {value.name for value in session.get_inputs()}
        feeds = {name: getattr(inputs, name) for name in NAMES if name in taken}
        presents = {"present_key": "past_key", "present_value": "past_value"}
        return onnx_session.bound(session, feeds, "output", presents, in_place=False)


def exported(subject: Subject, block: Any = None) -> Any:
    """The ONNXProgram of the subject's reference block: one call of torch.onnx.export, every size left open."""
    import torch

    from portpe.reference.arrays import to_torch

    traced = _traced(subject)
    open_ = torch.export.Dim.DYNAMIC
    return torch.onnx.export(
        reference(subject) if block is None else block,
        kwargs={name: to_torch(array) for name, array in traced.items()},
        dynamo=True,
        opset_version=OPSET,
        dynamic_shapes={name: {0: open_, (2 if name.startswith("past") else 1): open_} for name in NAMES},
        input_names=list(NAMES),
        output_names=list(OUTPUTS),
        verbose=False,
    )


def _traced(subject: Subject) -> dict[str, Array]:
    """The arrays of a chunk behind a cache, each size another one."""
    rows = inputs(subject.spec, Case("prefill", ROWS), subject.dtype)
    cached = inputs(subject.spec, Case("decode", PAST), subject.dtype)
    positions = np.arange(PAST + ROWS, dtype=np.int64)[None]
    arrays = {
        "hidden_states": rows.hidden_states,
        "position_ids": positions[:, PAST:],
        "attention_mask": np.ones_like(positions),
        "past_key": cached.past_key,
        "past_value": cached.past_value,
        "key_position_ids": positions,
    }
    return {name: arrays[name].repeat(BATCH, axis=0) for name in NAMES}


def reference(subject: Subject) -> Any:
    """The block that is exported, tables in it."""
    import torch

    from portpe.reference import Attention

    return Attention(subject.spec, dtype=getattr(torch, subject.dtype), tables=subject.tables).load(subject.weights)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporter prints and warns of."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def competitors(threads: int) -> list[TorchOnnxExport]:
    """The one graph."""
    return [TorchOnnxExport(onnx_session.thread_statement(threads), threads)]
