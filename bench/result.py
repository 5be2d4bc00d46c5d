"""What a bench found, as plain data; ``to_dict`` of ``Report`` is the JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from portpe.bench.statistics import Ratio, Spread

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Entrant:
    """A competitor, usable here or not."""

    name: str
    runtime: str
    peer: bool
    usable: bool
    version: str | None
    reason: str | None
    threads: str
    note: str


@dataclass(frozen=True)
class Result:
    """One competitor in one case, with the encoding or without.

    Times are seconds a call, of ``rounds`` rounds. ``fraction_of_limit`` is the least time that the machine's limit
    allows over the median; ``fraction_of_gemv``, of decode steps alone, the same by the rate of matrix-vector products;
    ``ratio`` is to the case's ``baseline``, over the rounds of both. A wrong competitor has neither times nor ranks.
    """

    competitor: str
    peer: bool
    encoded: bool
    verdict: str
    max_abs: float
    share_of_bound: float
    calls: int | None = None
    rounds: int | None = None
    wall: Spread | None = None
    cpu: Spread | None = None
    fraction_of_limit: float | None = None
    fraction_of_gemv: float | None = None
    ratio: Ratio | None = None


@dataclass(frozen=True)
class Overhead:
    """What the encoding costs one competitor: its time with it over its time without, minus 1."""

    competitor: str
    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class CaseResult:
    """One case. ``limits`` are medians over its own rounds; ``limit`` is the one that its fractions are of."""

    phase: str
    length: int
    rounds: int
    flops: int
    bytes_read: int
    limit: str
    limit_seconds: float
    limits: dict[str, float]
    baseline: str | None
    results: list[Result]
    overhead: list[Overhead]

    @property
    def name(self) -> str:
        return f"{self.phase} {self.length}"

    def ranked(self) -> list[Result]:
        """Those with the encoding that are right, fastest first by the ratio's clock."""
        found = [result for result in self.results if result.encoded and result.ratio is not None]
        return sorted(found, key=lambda result: result.ratio.median if result.ratio else math.inf)


@dataclass(frozen=True)
class LeftOut:
    """What was not run, and why. ``competitor`` None: the whole case; ``case`` None: every case."""

    competitor: str | None
    case: str | None
    reason: str
    failed: bool = False


@dataclass(frozen=True)
class Timing:
    """A thing that is done once, timed a few times over: seconds, as medians and quartiles."""

    name: str
    wall: Spread
    cpu: Spread | None
    repeats: int
    nodes: int | None = None
    graph_bytes: int | None = None


@dataclass(frozen=True)
class Memory:
    """A process of its own for one competitor and case: bytes at their peak, after the imports and at the end."""

    competitor: str
    case: str
    imported_bytes: int
    peak_bytes: int


@dataclass
class Report:
    """Everything, in the order of the JSON."""

    subject: dict[str, Any]
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    limits: dict[str, dict[str, Any]]
    competitors: list[Entrant]
    cases: list[CaseResult] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    export: list[Timing] = field(default_factory=list)
    processes: list[Timing] = field(default_factory=list)
    imports: list[Timing] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[tuple[CaseResult, Result]]:
        """Each wrong output, with its case."""
        return [(case, result) for case in self.cases for result in case.results if result.verdict == "wrong"]

    @property
    def status(self) -> int:
        """0; 1 where one of portpe's own gave other numbers; 3 where one raised."""
        own = {entrant.name for entrant in self.competitors if not entrant.peer}
        if any(one.failed and one.competitor in own for one in self.left_out):
            return 3
        return int(any(not result.peer for _, result in self.wrong))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; infinities become null."""
        data: dict[str, Any] = _finite({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)})
        return data


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
