"""Offsets between the cells of a grid: rows of the table against transformers' own indices, and by hand."""

import math

import numpy as np
import pytest

import portpe
from portpe.biases import grid
from portpe.encodings import GridNetworkEncoding, GridTableEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 3, "head_dim": 4, "v_head_dim": 5, "scale": 1.0}


def cells(height, width, prefix=0):
    """(2, prefix + height * width): every cell, row by row; the prefix stands at (0, 0)."""
    return np.pad(np.indices((height, width)).reshape(2, -1), ((0, 0), (prefix, 0)))


def rows_of(encoding, positions):
    return grid.rows(encoding, positions, positions, np.arange(positions.shape[1]))


def test_rows_by_hand():
    """On 2 rows of 3 cells: (dy + 1) * 5 + dx + 2."""
    encoding = GridTableEncoding(height=2, width=3)
    found = grid.rows(encoding, np.array([[1], [0]]), np.array([[0, 1, 1, 0], [0, 0, 2, 2]]), np.array([0]))
    assert found.tolist() == [[12, 7, 5, 10]]  # (1, 0), (0, 0), (0, -2), (1, -2)


def test_absolute_rows_by_hand():
    """On 2 rows of 3 cells: |dy| * 3 + |dx|."""
    encoding = GridTableEncoding(height=2, width=3, offsets="absolute")
    found = grid.rows(encoding, np.array([[1], [0]]), np.array([[0, 1, 1, 0], [0, 0, 2, 2]]), np.array([0]))
    assert found.tolist() == [[3, 0, 2, 5]]


def test_a_first_token_has_rows_of_its_own():
    """On 2 by 2 cells nine rows are offsets; then come the first token as query, as key, and as both."""
    found = rows_of(GridTableEncoding(height=2, width=2, prefix_tokens=1), cells(2, 2, 1))
    assert found[0].tolist() == [11, 9, 9, 9, 9]
    assert found[1:, 0].tolist() == [10, 10, 10, 10]
    assert found[1:, 1:].tolist() == rows_of(GridTableEncoding(height=2, width=2), cells(2, 2)).tolist()
    assert found[1].tolist() == [10, 4, 3, 1, 0]


def test_rows_are_those_of_swin():
    from transformers.models.swin.modeling_swin import SwinRelativePositionBias

    theirs = SwinRelativePositionBias(6, (3, 5)).relative_position_index.reshape(15, 15)
    assert np.array_equal(rows_of(GridTableEncoding(height=3, width=5), cells(3, 5)), theirs.numpy())


def test_rows_are_those_of_beit():
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    theirs = BeitRelativePositionBias.generate_relative_position_index((4, 3))
    ours = rows_of(GridTableEncoding(height=4, width=3, prefix_tokens=1), cells(4, 3, 1))
    assert np.array_equal(ours, theirs.numpy())


def test_rows_are_those_of_levit():
    from transformers.models.levit.modeling_levit import LevitAttention

    module = LevitAttention(12, 4, 3, 2, 5)
    ours = rows_of(GridTableEncoding(height=5, width=5, offsets="absolute"), cells(5, 5))
    assert np.array_equal(ours, module.attention_bias_idxs.numpy())


@pytest.mark.parametrize("offsets", ["signed", "absolute"])
def test_every_row_of_the_table_is_read(offsets):
    encoding = GridTableEncoding(height=3, width=4, offsets=offsets)
    assert np.unique(rows_of(encoding, cells(3, 4))).tolist() == list(range(encoding.rows))


def test_a_shift_within_the_grid_changes_nothing():
    encoding = GridTableEncoding(height=9, width=7)
    near = cells(4, 3)
    assert np.array_equal(rows_of(encoding, near), rows_of(encoding, near + np.array([[5], [4]])))


def test_tabulate():
    encoding = GridTableEncoding(height=2, width=3, prefix_tokens=1)
    table = np.arange(18 * 6, dtype=np.float32).reshape(18, 6)
    spec = AttentionSpec(**SIZES, causal=False, bias=(encoding,))
    found = portpe.tabulate(spec, [[0, 1, 0], [0, 2, 1]], weights={"relative_position_bias_table": table})
    assert found["buckets"].tolist() == [[17, 15, 15], [16, 7, 13], [16, 1, 7]]
    assert np.array_equal(found["bias"][5], 6 * found["buckets"] + 5)


@pytest.mark.parametrize(
    ("positions", "message"),
    [([[0, 2], [0, 0]], "positions must be < 2"), ([[0, 0], [3, 0]], "positions must be < 3")],
)
def test_cells_outside_the_grid_are_refused(positions, message):
    spec = AttentionSpec(**SIZES, causal=False, bias=(GridTableEncoding(height=2, width=3),))
    with pytest.raises(SpecError, match=message):
        portpe.tabulate(spec, positions, weights={"relative_position_bias_table": np.zeros((15, 6))})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefix_tokens": 2}, "prefix_tokens must be 0, or 1 with signed offsets, got 2 with signed"),
        ({"prefix_tokens": 1, "offsets": "absolute"}, "got 1 with absolute"),
        ({"height": 0}, "height must be greater than 0, got 0"),
    ],
)
def test_settings_that_make_no_grid_are_refused(fields, message):
    with pytest.raises(SpecError, match=message):
        GridTableEncoding(**{"height": 2, "width": 3, **fields})


def test_a_grid_needs_a_layer_without_causality():
    with pytest.raises(SpecError, match="bias over a grid needs causal false, got true"):
        AttentionSpec(**SIZES, bias=(GridTableEncoding(height=2, width=3),))


def test_a_network_of_offsets():
    """On 3 by 2 cells, trained on windows of 5 by 3: y = 8 dy / 4 and 8 dx / 2."""
    encoding = GridNetworkEncoding(height=3, width=2, extent=(5, 3), units=2)
    x = grid.network_inputs(encoding)
    assert x.shape == (15, 2)
    logs = {2: math.log(3, 8), 4: math.log(5, 8)}
    assert x[0].tolist() == pytest.approx([-logs[4], -logs[4]], rel=1e-15)  # dy -2, dx -1
    assert x[11].tolist() == pytest.approx([logs[2], logs[4]], rel=1e-15)  # dy 1, dx 1
    weights = {
        "grid_in.weight": np.array([[1.0, -0.5], [-2.0, 0.25]]),
        "grid_in.bias": np.array([0.125, 0.5]),
        "grid_out.weight": np.array([[1.0, -1.0]] * 5 + [[0.5, 2.0]]),
    }
    spec = AttentionSpec(**SIZES, causal=False, bias=(encoding,))
    found = portpe.tabulate(spec, [[0, 2], [1, 0]], weights=weights)["bias"]
    # of query (2, 0) and key (0, 1): dy 2, dx -1, so x = (log8 5, -log8 5)
    hidden = [1.5 * logs[4] + 0.125, max(-2.25 * logs[4] + 0.5, 0.0)]
    assert hidden[1] == 0.0
    assert found[0, 1, 0] == pytest.approx(16 / (1 + math.exp(-hidden[0])), rel=1e-14)
    assert found[5, 1, 0] == pytest.approx(16 / (1 + math.exp(-0.5 * hidden[0])), rel=1e-14)
