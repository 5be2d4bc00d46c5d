"""What a parity run found: one check a stage, call and configuration; its JSON and its exit status."""

from __future__ import annotations

from dataclasses import dataclass, field

from portpe.interface import CACHE, STAGES
from portpe.parity.compare import Comparison
from portpe.parity.walk import OUTPUT_PROJECTION
from portpe.runtimes.base import Configuration

EXCEPTION = "exception"  # the stage of a check that a runtime did not finish
_STATES = "present_"  # and a name: what encodings cache besides keys and values
ORDER = (EXCEPTION, *STAGES[:-1], OUTPUT_PROJECTION, *CACHE, _STATES, "output")  # of a check's stage, as they arise


@dataclass(frozen=True)
class Check:
    """One stage of one case in one configuration of a runtime.

    Numbers are None where there was nothing to compare; ``problem`` then says why. ``passed`` False with stage
    ``exception``: the runtime raised.
    """

    runtime: str
    provider: str
    optimization: str
    form: str
    dtype: str
    case: str
    stage: str
    max_abs: float | None
    max_ulp: float | None
    bound: float | None
    first_position: int | None
    passed: bool
    problem: str | None = None


@dataclass(frozen=True)
class Unavailable:
    """A runtime, or a form and type of it, that could not be run here, and why."""

    runtime: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Every check of a run, what could not be run and why, and the versions that ran.

    ``missing`` names the runtimes that were asked for by name and are not here. ``quantization``: how far the weights
    of each quantised type move the output from that of whole weights (``Bundle.quantization_errors``). It is no part
    of ``passed``: a quantised graph is judged against the weights that it holds.
    """

    checks: tuple[Check, ...]
    unavailable: tuple[Unavailable, ...]
    versions: dict[str, str]
    missing: tuple[str, ...] = ()
    quantization: dict[str, dict[str, float] | None] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether something ran, everything that ran is within its bound, and nothing asked for is missing."""
        return bool(self.checks) and not self.missing and all(check.passed for check in self.checks)

    @property
    def raised(self) -> tuple[Check, ...]:
        """The checks that an exception ended."""
        return tuple(check for check in self.checks if check.stage == EXCEPTION)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    @property
    def first_divergence(self) -> Check | None:
        """The failure that stands earliest in the block, where the error arose, at the earliest position."""
        return min(self.failures, key=order, default=None)

    @property
    def status(self) -> int:
        """The exit status: 3 where a runtime raised, was asked for and is missing, or none ran; else 1 or 0."""
        if self.raised or self.missing or not self.checks:
            return 3
        return 0 if self.passed else 1


def order(check: Check) -> tuple[int, int]:
    """Where a check stands: its stage in the block, then its first position; no numbers at all stand before any."""
    return place(check.stage), -1 if check.first_position is None else check.first_position


def place(stage: str) -> int:
    """Where a stage stands in a block."""
    return ORDER.index(_STATES if stage.startswith(_STATES) and stage not in CACHE else stage)


def check_of(runtime: str, configuration: Configuration, provider: str, case: str, comparison: Comparison) -> Check:
    """A comparison with the place it was made in."""
    return Check(
        runtime=runtime,
        provider=provider,
        optimization=configuration.optimization,
        form=configuration.form,
        dtype=configuration.dtype,
        case=case,
        stage=comparison.stage,
        max_abs=comparison.max_abs,
        max_ulp=comparison.max_ulp,
        bound=comparison.bound,
        first_position=comparison.first_position,
        passed=comparison.passed,
        problem=comparison.problem,
    )
