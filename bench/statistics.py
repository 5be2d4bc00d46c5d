"""Medians, quartiles, and the interval of a ratio that was measured in interleaved rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """The middle of a sample: median, lower and upper quartile (numpy's linear interpolation)."""

    median: float
    q1: float
    q3: float


@dataclass(frozen=True)
class Ratio:
    """A ratio of two competitors: its median over the rounds, and the ends of its 95 % interval."""

    median: float
    low: float
    high: float


def spread(sample: Sequence[float]) -> Spread:
    """Median and quartiles of at least one number."""
    q1, median, q3 = np.quantile(np.asarray(sample, np.float64), (0.25, 0.5, 0.75))
    return Spread(float(median), float(q1), float(q3))


def paired_ratio(above: Sequence[float], below: Sequence[float], *, seed: int = 0) -> Ratio:
    """The median over rounds of above / below, with its percentile bootstrap interval (Efron 1979).

    Both were timed in the same rounds, so a slow spell of the machine cancels in each round's own ratio. Rounds are
    resampled whole, with replacement; the same numbers and seed give the same interval.
    """
    ratios = np.asarray(above, np.float64) / np.asarray(below, np.float64)
    rng = np.random.default_rng(seed)
    medians = np.median(ratios[rng.integers(0, len(ratios), (RESAMPLES, len(ratios)))], axis=1)
    low, high = np.quantile(medians, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Ratio(float(np.median(ratios)), float(low), float(high))
