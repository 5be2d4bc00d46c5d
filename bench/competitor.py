"""What takes part in a bench: the one protocol that our own forms and their peers follow."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from portpe.bench import costs
from portpe.bench.case import Case
from portpe.bench.subject import Subject
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability


@dataclass(frozen=True)
class Prepared:
    """One competitor, ready for one case.

    ``run`` makes the whole call, from inputs in the runtime's own memory to its own output, and may be repeated:
    every call starts from the same cache. ``array`` turns what it returned into numpy, outside the timed part.
    """

    run: Callable[[], Any]
    array: Callable[[Any], Array]


class Competitor(Protocol):
    """A way to run the layer.

    ``peer`` is False for portpe's own; ``twin`` says whether it runs the layer without its encoding too; ``threads``
    how it is kept to so many; ``note`` what a reader must know. ``slowness`` is about how many times longer than the
    machine's limit a prefill takes: the matrix of cases is chosen by it.
    """

    name: str
    runtime: str
    peer: bool
    twin: bool
    threads: str
    slowness: float

    @property
    def note(self) -> str: ...

    def availability(self) -> Availability:
        """Usable here, or the reason why not."""
        ...

    def refusal(self, subject: Subject) -> str | None:
        """Why it cannot run this layer; None where it can."""
        ...

    def memory(self, subject: Subject, case: Case) -> int:
        """About how many bytes a call takes at most, the weights included."""
        ...

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        """Load the layer and put the inputs where the runtime wants them; what ``run`` holds goes with it."""
        ...


def memory(subject: Subject, case: Case, score_arrays: float) -> int:
    """Bytes of a call: weights twice (as read, as packed), cache twice, activations, and whole arrays of scores.

    How many ``score_arrays`` (heads, rows, total) a runtime holds at its peak was measured, its arena's slack in it; a
    kernel that works through its scores in tiles holds none.
    """
    spec, width = subject.spec, 4 * case.rows
    activations = width * (3 * spec.hidden_size + 3 * spec.num_heads * (spec.head_dim + spec.v_head_dim))
    weights, cache = costs.weight_bytes(spec, subject.dtype), costs.cache_bytes(spec, case, subject.dtype)
    return 2 * weights + 2 * cache + activations + round(score_arrays * costs.score_bytes(spec, case))


USUAL = 1.5  # slowness of a kernel that is made for the machine


def installed(*packages: str, extra: str = "") -> Availability:
    """Usable where every package can be imported; the version is that of the first (module names, not projects)."""
    for name in packages:
        project = PROJECTS.get(name, name.partition(".")[0])
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            return Availability(False, reason=f"{project} is not installed; {extra or f'pip install {project}'}")
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation raises what it likes, and must not end the listing
            return Availability(False, reason=f"{name} cannot be imported: {' '.join(str(error).split())}")
    return Availability(True, version=version_of(packages[0]))


PROJECTS = {"mobius": "mobius-onnx", "onnxruntime_genai": "onnxruntime-genai", "mlx_lm": "mlx-lm"}


def version_of(module: str) -> str | None:
    """The installed version of the distribution that a module belongs to, where it is known."""
    try:
        return version(PROJECTS.get(module, module.partition(".")[0]))
    except PackageNotFoundError:
        return None
