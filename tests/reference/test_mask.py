"""Layer: tests. Which keys a query sees, counted one by one."""

import pytest
import torch

from portpe.reference.mask import visible
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 6, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "v_head_dim": 3, "scale": 0.5}
CPU = torch.device("cpu")


def seen(seq, past, mask=None, **fields):
    spec = AttentionSpec(**SIZES, **fields)
    found = visible(spec, seq, past, None if mask is None else torch.tensor(mask).bool(), CPU)
    return found[:, 0].long().tolist()


def test_causality_is_aligned_bottom_right():
    """X06: one query over four keys sees all four; torch's is_causal would show it one."""
    assert seen(1, 3) == [[[1, 1, 1, 1]]]
    assert seen(3, 2) == [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]


def test_a_window_counts_the_query_itself():
    assert seen(4, 0, window=2) == [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]]
    assert seen(2, 3, window=3) == [[[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]]
    assert seen(1, 4, window=1) == [[[0, 0, 0, 0, 1]]]


def test_a_radius_goes_both_ways():
    assert seen(4, 0, causal=False, window_radius=1) == [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]]
    assert seen(3, 0, causal=False, window_radius=0) == [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
    assert seen(3, 0, causal=False) == [[[1, 1, 1]] * 3]


def test_pads_are_hidden_from_every_query():
    assert seen(2, 1, mask=[[0, 1, 1], [1, 1, 0]]) == [[[0, 1, 0], [0, 1, 1]], [[1, 1, 0], [1, 1, 0]]]


@pytest.mark.parametrize("window", [None, 1, 2, 3, 7, 8, 20])
@pytest.mark.parametrize(("seq", "past"), [(8, 0), (3, 5), (1, 7), (5, 2)])
def test_windows_by_counting(window, seq, past):
    """min(slot + 1, window) keys, the nearest ones; window off by one is one key too many in every row."""
    rows = seen(seq, past, window=window)[0]
    for row, keys in enumerate(rows):
        slot = past + row
        count = slot + 1 if window is None else min(slot + 1, window)
        assert keys == [0] * (slot + 1 - count) + [1] * count + [0] * (past + seq - slot - 1)
