"""portpe's graph forms on ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from portpe.bench.case import Case
from portpe.bench.competitor import USUAL, Prepared, dense_memory, tiled_memory
from portpe.bench.competitors import onnx_session
from portpe.bench.subject import Subject
from portpe.exporters.onnx import FORMS
from portpe.interface import BlockInputs
from portpe.runtimes import graph_io
from portpe.runtimes.base import Availability

IN_PLACE = ("shared", "ort")  # forms whose cache is a buffer
TILED = ("ort",)  # forms whose kernel holds no whole array of scores


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
    _sessions: dict[str, Any] = field(default_factory=dict)

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
        return (tiled_memory if self.form in TILED else dense_memory)(subject, case)

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        if subject.key not in self._sessions:
            self._sessions[subject.key] = onnx_session.open_session(subject.graphs[self.form], self.intra_op)
        session = self._sessions[subject.key]
        names = {value.name for value in session.get_inputs()}
        feeds = {
            name: getattr(inputs, field) for name, field in graph_io.input_names(subject.spec, subject.layer).items()
        }
        feeds |= {name: array for name, array in onnx_session.external_cache(inputs).items() if name in names}
        pasts = {
            f"present.{subject.layer}.{part}": f"past_key_values.{subject.layer}.{part}" for part in ("key", "value")
        }
        pasts = pasts if subject.spec.causal else {}
        in_place = self.form in IN_PLACE and subject.spec.causal
        if in_place:
            feeds |= {past: onnx_session.buffer(feeds[past], case.capacity) for past in pasts.values()}
        return onnx_session.bound(session, feeds, graph_io.OUTPUT, pasts, in_place=in_place)


def competitors(threads: int) -> list[OnnxForm]:
    """One a form, in the order of the capability table."""
    return [OnnxForm(form, onnx_session.thread_statement(threads), threads) for form in FORMS]
