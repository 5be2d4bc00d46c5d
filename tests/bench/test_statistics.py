"""Layer: tests. Medians, quartiles and bootstrap intervals against numbers worked by hand."""

import pytest

from portpe.bench.statistics import Ratio, Spread, paired_ratio, spread


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ([7.0], Spread(7.0, 7.0, 7.0)),
        ([4.0, 1.0, 3.0, 2.0], Spread(2.5, 1.75, 3.25)),
        ([10.0, 0.0, 5.0], Spread(5.0, 2.5, 7.5)),
    ],
)
def test_median_and_quartiles(sample, expected):
    assert spread(sample) == expected


def test_a_slow_round_cancels_in_its_own_ratio():
    """Twice as slow in every round, while the machine runs at 1, 1/9 and 1/2 of its speed."""
    assert paired_ratio([2.0, 18.0, 4.0], [1.0, 9.0, 2.0]) == Ratio(2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("outliers", "rounds", "high"),
    [
        # The median of a resample is the outlier's where more than half of its rounds are: for 1 round of 5,
        # P(Binomial(5, 1/5) >= 3) = 0.058, above the 0.025 that the interval leaves at each end;
        (1, 5, 3.0),
        # for 1 round of 7, P(Binomial(7, 1/7) >= 4) = 0.010, below it.
        (1, 7, 1.0),
    ],
)
def test_the_interval_is_the_percentile_bootstrap_of_the_median(outliers, rounds, high):
    ratios = [3.0] * outliers + [1.0] * (rounds - outliers)
    assert paired_ratio(ratios, [1.0] * rounds) == Ratio(1.0, 1.0, high)


def test_the_same_seed_gives_the_same_interval():
    above = [1.0, 1.3, 0.8, 1.1, 1.9, 0.7, 1.05]
    first, second = (paired_ratio(above, [1.0] * 7, seed=3) for _ in range(2))
    assert first == second
    assert first.low < first.median < first.high
