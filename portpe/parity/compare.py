"""Arrays of a runtime against the truth, every element within its own bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from portpe.interface import DTYPES, Array
from portpe.parity.bounds import Exact

ULP_FLOOR = 2.0**-10  # of the stage's largest value: below it an ulp says nothing about the stage


@dataclass(frozen=True)
class Comparison:
    """One stage of one call.

    ``bound`` is ``max_abs`` over the largest ratio of an error to its own bound, so ``max_abs <= bound`` exactly where
    every element is within its bound. ``first_position`` is the lowest position of a row that is not. ``problem``
    says what is wrong where there are no numbers to compare: a shape, a type, a NaN.
    """

    stage: str
    max_abs: float | None
    max_ulp: float | None
    bound: float | None
    first_position: int | None
    problem: str | None = None

    @property
    def passed(self) -> bool:
        return self.problem is None and self.first_position is None


def broken(stage: str, problem: str) -> Comparison:
    """A stage that has no numbers to compare."""
    return Comparison(stage, None, None, None, None, problem)


def problem_of(array: Array | None, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> str | None:
    """What keeps an array from being compared: it is missing, its shape, its type, or None."""
    if array is None:
        return "it is missing"
    if array.shape != shape:
        return f"shape must be {shape}, got {array.shape}"
    if array.dtype not in [DTYPES[name] for name in dtypes]:
        return f"type must be {' or '.join(dtypes)}, got {array.dtype}"
    return None


def compared(
    stage: str, actual: Array, truth: Exact, error: Exact, positions: NDArray[np.int64], dtype: str
) -> Comparison:
    """Compare rows; the first axis is that of ``positions``, ``error`` is the bound of each element."""
    wide = actual.astype(np.float64)
    if not np.isfinite(wide).all():
        bad = ~np.isfinite(wide).reshape(len(wide), -1).all(axis=1)
        return Comparison(stage, None, None, None, int(positions[bad].min()), "it has NaN or infinity")
    difference = np.abs(wide - truth)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(difference == 0, 0.0, difference / error)
    largest, worst = float(difference.max(initial=0.0)), float(ratio.max(initial=0.0))
    outside = (~(ratio <= 1)).reshape(len(ratio), -1).any(axis=1)
    return Comparison(
        stage=stage,
        max_abs=largest,
        max_ulp=float((difference / _ulp(truth, dtype)).max(initial=0.0)),
        bound=largest / worst if worst > 0 and np.isfinite(worst) else float(error.max(initial=0.0)),
        first_position=int(positions[outside].min()) if outside.any() else None,
    )


def _ulp(truth: Exact, dtype: str) -> Exact:
    """A unit in the last place of the type at each value, floored at ULP_FLOOR of the largest."""
    info: Any = ml_dtypes.finfo(DTYPES[dtype])  # type: ignore[no-untyped-call]
    size = np.maximum(np.abs(truth), ULP_FLOOR * float(np.abs(truth).max(initial=0.0)))
    size = np.maximum(size, float(info.tiny))
    return np.asarray(np.exp2(np.floor(np.log2(size))) * float(info.eps))
