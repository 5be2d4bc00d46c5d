"""Which calls are made: those that fit into memory and time, by an estimate; what is left out is said."""

from __future__ import annotations

from dataclasses import dataclass

from portpe.bench import costs
from portpe.bench.case import Case
from portpe.bench.competitor import Competitor
from portpe.bench.settings import MAX_ROUNDS, MIN_ROUNDS, Settings
from portpe.bench.subject import Subject

MEMORY_SHARE = 0.6  # of the memory available, for one call
HOPELESS = 5.0  # times the fastest: no more rounds after the first MIN_ROUNDS


@dataclass(frozen=True)
class Machine:
    """What estimates are made from: bytes free, bytes and operations a second."""

    memory: int | None
    read_bandwidth: float
    gemm_rate: float


def seconds(subject: Subject, case: Case, machine: Machine) -> float:
    """The least time of one call that the limits allow: operations and bytes, whichever takes longer."""
    computing = costs.flops(subject.spec, case) / machine.gemm_rate
    reading = costs.bytes_read(subject.spec, case, subject.dtype) / machine.read_bandwidth
    return max(computing, reading)


def refusal(
    competitor: Competitor, subject: Subject, case: Case, machine: Machine, settings: Settings, end: int | None
) -> str | None:
    """Why a competitor does not run a case: it cannot, its memory, its time, or None."""
    if end is not None and case.total > end:
        return f"its positions reach {case.total - 1}, and the tables end at {end - 1}"
    if reason := competitor.refusal(subject):
        return reason
    needed = competitor.memory(subject, case)
    if machine.memory is not None and needed > MEMORY_SHARE * machine.memory:
        return f"it would take about {needed / 1e9:.1f} GB, and {machine.memory / 1e9:.1f} GB are free"
    least = (settings.rounds or MIN_ROUNDS) + 2  # judged once, timed once, then the rounds
    slowness = competitor.slowness if case.phase == "prefill" else 1.0
    took = least * slowness * seconds(subject, case, machine)
    if took > settings.budget:
        return (
            f"{least} calls would take about {took:.0f} s, and one case has {settings.budget:.0f} s; "
            "give a larger --budget"
        )
    return None


def rounds(visits: dict[str, float], settings: Settings, *, done: int = 0, spent: float = 0.0) -> int:
    """How many more rounds fit into the budget of a case, after those ``done``, which took so long; ``visits`` are the
    seconds of each visit of a round.
    """
    if settings.rounds is not None:
        return settings.rounds - done
    fit = int((settings.budget - spent) / max(sum(visits.values()), 1e-9))
    return max(MIN_ROUNDS - done, min(MAX_ROUNDS - done, fit))


def hopeless(seconds_of: dict[str, float]) -> set[str]:
    """Those that take more than HOPELESS times as long as the fastest."""
    return {name for name, took in seconds_of.items() if took > HOPELESS * min(seconds_of.values())}


def too_slow(seconds_of: dict[str, float], settings: Settings) -> dict[str, str]:
    """Those that must go so that the least number of rounds fits into the budget: the slowest first, with why."""
    least = settings.rounds or MIN_ROUNDS
    kept, gone = dict(seconds_of), {}
    while len(kept) > 1 and least * sum(kept.values()) > settings.budget:
        name = max(kept, key=lambda one: kept[one])
        gone[name] = (
            f"one call took {kept.pop(name):.1f} s, and {least} rounds of all competitors do not fit into "
            f"{settings.budget:.0f} s; give a larger --budget"
        )
    return gone
