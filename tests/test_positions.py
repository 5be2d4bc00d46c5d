"""Positions and lengths by hand."""

import numpy as np
import pytest

from portpe.positions import sequence_lengths


@pytest.mark.parametrize(
    ("positions", "mask", "lengths"),
    [
        ([[0, 1, 2], [5, 3, 4]], [[1, 1, 1], [1, 1, 1]], [3, 6]),
        ([[0, 0, 0, 1], [0, 1, 2, 3]], [[0, 0, 1, 1], [1, 1, 1, 1]], [2, 4]),  # pads at the left take 0
        ([[0, 1, 2, 3], [0, 1, 2, 3]], [[1, 1, 0, 0], [1, 1, 1, 0]], [2, 3]),  # pads at the right, counted on by some
        ([[90, 7, 8], [0, 0, 0]], [[0, 1, 1], [0, 0, 0]], [9, 1]),  # a row of pads alone
        ([[6, 7, 8, 9]], [[1, 1, 1, 1]], [10]),  # keys 0 to 5 are evicted: 10 tokens were seen, 4 are held
        ([[[0, 1, 1]], [[0, 5, 2]]], [[1, 1, 1]], [6]),  # two axes: the largest coordinate
        ([[[0, 1, 1]], [[0, 5, 2]]], [[1, 0, 1]], [3]),
    ],
)
def test_a_rows_length_is_one_more_than_its_largest_kept_position(positions, mask, lengths):
    assert sequence_lengths(np.array(positions), np.array(mask)).tolist() == lengths
