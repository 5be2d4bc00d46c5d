"""A parity report, grouped as people read it: by configuration, case and stage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portpe.parity.outcome import order, place

if TYPE_CHECKING:
    from portpe.parity import Check, Report


@dataclass(frozen=True)
class Group:
    """The checks of one configuration: a runtime, its provider and optimisation level, a form and a type."""

    runtime: str
    provider: str
    optimization: str
    form: str
    dtype: str
    checks: tuple[Check, ...]

    @property
    def name(self) -> str:
        """The configuration in one line, empty parts left out."""
        parts = (self.runtime, self.provider.removesuffix("ExecutionProvider"), self.optimization, self.form)
        return " ".join(part for part in (*parts, self.dtype) if part)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    @property
    def worst(self) -> Check:
        """The check that uses most of its bound."""
        return max(self.checks, key=used)

    def in_case(self, case: str) -> Check | None:
        """The worst check of one case, or None where the configuration did not run it."""
        return max((check for check in self.checks if check.case == case), key=used, default=None)

    def at_stage(self, stage: str) -> Check | None:
        """The worst check of one stage, or None."""
        return max((check for check in self.checks if check.stage == stage), key=used, default=None)

    @property
    def first_divergence(self) -> Check | None:
        """The failed check at the earliest stage, since later ones may only carry its error on, and position."""
        return min(self.failed, key=order, default=None)


def used(check: Check) -> float:
    """The share of its bound that an error takes; above 1 is a failure, inf where nothing finite came."""
    if check.max_abs is None or check.bound is None:
        return 0.0 if check.passed else math.inf
    if check.max_abs == 0.0:
        return 0.0
    return math.inf if check.bound == 0.0 else check.max_abs / check.bound


def groups(report: Report) -> list[Group]:
    """The checks by configuration, in the report's order."""
    found: dict[tuple[str, str, str, str, str], list[Check]] = {}
    for check in report.checks:
        key = (check.runtime, check.provider, check.optimization, check.form, check.dtype)
        found.setdefault(key, []).append(check)
    return [Group(*key, tuple(checks)) for key, checks in found.items()]


def cases(report: Report) -> list[str]:
    """The names of the cases, in the report's order."""
    return list(dict.fromkeys(check.case for check in report.checks))


def stages(checks: Iterable[Check]) -> list[str]:
    """The names of the stages, in the block's order."""
    return sorted({check.stage for check in checks}, key=place)


def quantization_cost(kind: str, error: Mapping[str, float] | None) -> str:
    """What a quantised type does to the layer's output, in one sentence: ``Report.quantization``."""
    if error is None:
        return f"{kind}: what its weights cost is not measured, because there are no golden values"
    return (
        f"{kind}: its weights move the output by {100 * error['relative']:.2g} % (root mean square) and by at most "
        f"{error['max_abs']:.2g}, where the largest output is {error['max_output']:.2g}"
    )


def verdict(report: Report) -> str:
    """The result in one sentence."""
    failed = len(report.failures)
    count = len(groups(report))
    configurations = f"{count} configuration{'s' if count != 1 else ''}"
    if not report.checks:
        return "nothing was checked"
    if failed:
        return f"{failed} of {len(report.checks)} checks failed, in {configurations}"
    return f"all {len(report.checks)} checks passed, in {configurations}"


def number(value: float | None) -> str:
    """An error or a bound: 1.2e-07, or a dash."""
    return "-" if value is None else f"{value:.1e}"


def share(check: Check) -> str:
    """``used`` for people: 57%, or 30x where it is far over."""
    value = used(check)
    if not math.isfinite(value):
        return "-" if check.problem else "inf"
    return f"{value:.0%}" if value < 10 else f"{value:,.0f}x" if value < 1e6 else f"{value:.0e}x"


def failures(found: Sequence[Group]) -> list[tuple[Group, Check]]:
    """Each failing configuration with its first divergence."""
    return [(group, first) for group in found if (first := group.first_divergence) is not None]


def sentence(check: Check) -> str:
    """A failed check in words."""
    where = "" if check.first_position is None else f", first at position {check.first_position}"
    what = check.problem or f"error {number(check.max_abs)}, bound {number(check.bound)}"
    return f"{check.stage} in {check.case}{where}: {what}"
