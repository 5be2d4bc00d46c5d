"""Interleaved timing: every round runs every competitor once, in an order of its own."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

VISIT = 0.02  # seconds: shorter calls are repeated within one visit
LONGEST_WARM = 0.05  # seconds: longer calls are not run untimed first
MOST_CALLS = 50

Call = Callable[[], object]


@dataclass
class Times:
    """Seconds a call, one entry a round. ``calls`` is how many were timed together in each."""

    calls: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def extend(self, later: Times) -> None:
        """Add the rounds of another time."""
        self.wall += later.wall
        self.cpu += later.cpu


def order(groups: Sequence[Sequence[str]], round_number: int, seed: int) -> list[str]:
    """The order of one round: groups shuffled, and the members inside each; a group stays together.

    Those who are compared with each other most closely stand in one group, so that little time lies between them.
    """
    rng = random.Random(f"{seed}/{round_number}")
    shuffled = [list(group) for group in groups]
    rng.shuffle(shuffled)
    for group in shuffled:
        rng.shuffle(group)
    return [name for group in shuffled for name in group]


def interleaved(
    calls: Mapping[str, Call],
    groups: Sequence[Sequence[str]],
    *,
    rounds: int,
    seed: int,
    seconds: Mapping[str, float],
    between: Call = lambda: None,
    first: int = 0,
) -> dict[str, Times]:
    """Time every call ``rounds`` times over. ``seconds`` is about what each takes; ``between`` runs once a round.

    ``first`` is the number of the first round, by which orders differ.

    A visit runs short calls once untimed, so that what another competitor left in the caches is gone, then times as
    many as fill VISIT. Wall time is of a monotonic clock; CPU time is of the whole process, all its threads.
    """
    times = {name: Times(_calls(seconds[name])) for name in calls}
    with _no_collection():
        for number in range(first, first + rounds):
            between()
            for name in order(groups, number, seed):
                _visit(calls[name], times[name], warm=seconds[name] < LONGEST_WARM)
    return times


def once(call: Call) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    times = Times(1)
    with _no_collection():
        _visit(call, times, warm=False)
    return times.wall[0], times.cpu[0]


def _calls(seconds: float) -> int:
    return max(1, min(MOST_CALLS, round(VISIT / max(seconds, 1e-9))))


def _visit(call: Call, times: Times, *, warm: bool) -> None:
    if warm:
        call()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(times.calls):
        call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    times.wall.append(wall / times.calls)
    times.cpu.append(cpu / times.calls)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector waits: a pause of its own would be charged to whoever runs."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
