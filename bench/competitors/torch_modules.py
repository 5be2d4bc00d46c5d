"""The layer in PyTorch: the reference, compiled and not, and a plain block with a static cache."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from portpe.bench.case import Case
from portpe.bench.competitor import USUAL, Prepared, installed, memory
from portpe.bench.competitors.llama import beyond_plain
from portpe.bench.subject import Subject
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability
from portpe.spec import AttentionSpec

if TYPE_CHECKING:
    import torch

    from portpe.reference import Attention


@dataclass
class TorchModule:
    """A module that ``make`` builds once a subject and ``bind`` puts before the inputs of a case."""

    name: str
    threads: str
    compiled: bool
    make: Callable[[Subject], Any]
    bind: Callable[[Any, Subject, Case, dict[str, Any]], Callable[[], Any]]
    refuse: Callable[[AttentionSpec], str | None]
    score_arrays: float
    peer: bool
    twin: bool = False
    slowness: float = USUAL
    note: str = ""
    runtime: str = "pytorch"
    _modules: dict[str, Any] = field(default_factory=dict)

    def availability(self) -> Availability:
        found = installed("torch", extra="pip install 'portpe[torch]'")
        if found.usable and self.compiled and not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")):
            return Availability(False, reason="torch.compile needs a C++ compiler, and none is on PATH; install g++")
        return found

    def refusal(self, subject: Subject) -> str | None:
        return self.refuse(subject.spec)

    def memory(self, subject: Subject, case: Case) -> int:
        return memory(subject, case, self.score_arrays)

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        import torch

        from portpe.reference.arrays import to_numpy, to_torch

        if subject.key not in self._modules:
            self._modules[subject.key] = self.make(subject)
        arrays = [name for name in BlockInputs.__dataclass_fields__ if name != "past_states"]  # nobody here has any
        tensors = {name: to_torch(getattr(inputs, name)) for name in arrays}
        call = self.bind(self._modules[subject.key], subject, case, tensors)
        if self.compiled:
            logging.getLogger("torch._dynamo").setLevel(
                logging.ERROR
            )  # it tells of every place where it leaves the graph
            torch._dynamo.reset()  # every case is compiled for its own shapes, as a user would who wants speed
            call = torch.compile(call, dynamic=False)

        # The reference reads positions on the host: a compiled graph guards tensors of inference mode wrongly there.
        mode = torch.no_grad if self.compiled else torch.inference_mode

        def run() -> Any:
            with mode():
                return call()

        def array(output: torch.Tensor) -> Array:
            return to_numpy(output)

        return Prepared(run, array)


def competitors(threads: int) -> list[TorchModule]:
    """The reference and the static cache, each eager and compiled."""
    statement = f"torch.set_num_threads({threads})"
    reference = partial(TorchModule, threads=statement, make=_reference, bind=_call_reference, score_arrays=5.0)
    static = partial(TorchModule, threads=statement, make=_plain_block, bind=_call_static, score_arrays=0.0, peer=True)
    compile_note = "compiled for each case's own shapes, before the clock starts"
    return [
        reference(name="pytorch reference", compiled=False, peer=False, twin=True, refuse=_nothing),
        reference(name="torch.compile of the reference", compiled=True, peer=True, refuse=_nothing, note=compile_note),
        static(name="torch static cache", compiled=False, twin=True, refuse=beyond_plain),
        static(name="torch.compile static cache", compiled=True, refuse=beyond_plain, note=compile_note),
    ]


def _nothing(_spec: AttentionSpec) -> None:
    return None


def _reference(subject: Subject) -> Attention:
    import torch

    from portpe.reference import Attention

    return Attention(subject.spec, dtype=getattr(torch, subject.dtype), tables=subject.tables).load(subject.weights)


def _call_reference(
    block: Attention, subject: Subject, case: Case, tensors: dict[str, torch.Tensor]
) -> Callable[[], torch.Tensor]:
    del case
    given = {name: tensors[name] for name in ("hidden_states", "position_ids", "past_key", "past_value")}
    if subject.spec.needs_key_positions:
        given["key_position_ids"] = tensors["key_position_ids"]

    def call() -> torch.Tensor:
        found: torch.Tensor = block(**given).output
        return found

    return call


def _plain_block(subject: Subject) -> Any:
    from portpe.bench.competitors.static_cache import StaticBlock

    return StaticBlock(subject.spec, subject.weights, subject.tables, subject.dtype)


def _call_static(
    block: Any, subject: Subject, case: Case, tensors: dict[str, torch.Tensor]
) -> Callable[[], torch.Tensor]:
    del subject
    cache = block.new_cache(case.capacity, tensors["past_key"], tensors["past_value"])
    hidden, positions, past = tensors["hidden_states"], tensors["position_ids"], case.past

    def call() -> torch.Tensor:
        found: torch.Tensor = block(hidden, positions, cache, past)
        return found

    return call
