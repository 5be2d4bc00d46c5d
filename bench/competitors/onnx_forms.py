"""portpe's graph forms on ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portpe.bench.case import Case
from portpe.bench.competitor import USUAL, Prepared, memory
from portpe.bench.competitors import onnx_session
from portpe.bench.subject import Subject
from portpe.exporters.onnx import FORMS
from portpe.interface import BlockInputs
from portpe.runtimes import graph_io
from portpe.runtimes.base import Availability
from portpe.runtimes.cache_layout import CacheLayout

SCORE_ARRAYS = {"portable": 7.0, "standard": 2.5, "shared": 2.5, "ort": 0.0}


@dataclass
class OnnxForm:
    """One form; its graph is the bundle's."""

    form: str
    threads: str
    intra_op: int
    runtime: str = "onnxruntime"
    peer: bool = False
    twin: bool = True
    slowness: float = USUAL
    note: str = ""

    @property
    def name(self) -> str:
        return f"onnxruntime {self.form}"

    def availability(self) -> Availability:
        return onnx_session.availability()

    def refusal(self, subject: Subject) -> str | None:
        if self.form in subject.graphs:
            return None
        reason = FORMS[self.form].carries(subject.spec)
        return f"the form cannot carry it: {reason}" if reason else "the bundle has no graph of this form"

    def memory(self, subject: Subject, case: Case) -> int:
        return memory(subject, case, SCORE_ARRAYS[self.form])

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        session = onnx_session.open_session(subject.graphs[self.form], self.intra_op)
        layout = _layout(session, subject)
        feeds = {
            name: getattr(inputs, field) for name, field in graph_io.input_names(subject.spec, subject.layer).items()
        }
        feeds = layout.as_buffers(feeds, case.rows, case.capacity - case.total)
        presents = dict(zip(layout.present, layout.past, strict=True)) if subject.spec.causal else {}
        return onnx_session.bound(session, feeds, graph_io.OUTPUT, presents, in_place=layout.buffered)


def _layout(session: Any, subject: Subject) -> CacheLayout:
    """Whether the graph's cache grows or is a buffer, as the graph itself says."""
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    return CacheLayout.of(subject.spec, subject.layer, shapes)


def competitors(threads: int) -> list[OnnxForm]:
    """One a form, in the order of the capability table."""
    return [OnnxForm(form, onnx_session.thread_statement(threads), threads) for form in FORMS]
