"""Offsets between the cells of a grid: rows of the table against transformers' own indices, and by hand."""

import math

import numpy as np
import pytest

import portpe
from portpe.biases import grid
from portpe.encodings import GridNetworkEncoding, GridTableEncoding, GridVectorsEncoding
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


def test_rows_of_vectors_by_hand():
    """On 2 rows of 3 cells: dy + 1 and dx + 2."""
    encoding = GridVectorsEncoding(height=2, width=3)
    found = grid.vector_rows(encoding, np.array([[1], [0]]), np.array([[0, 1, 1, 0], [0, 0, 2, 2]]))
    assert found.tolist() == [[[2, 1, 1, 2]], [[2, 2, 0, 0]]]
    with pytest.raises(SpecError, match="must be < 3"):
        grid.vector_rows(encoding, np.array([[1], [3]]), np.array([[0], [0]]))


def test_a_table_of_another_grid_is_resampled_by_hand():
    """From 3 rows to 5: places 0.1 short of 0, 0.4, 1, 1.6 and past 2."""
    matrix, other = grid.resampling(GridVectorsEncoding(height=3, width=2, trained_on=(2, 4)))
    expected = [[1, 0, 0], [0.6, 0.4, 0], [0, 1, 0], [0, 0.4, 0.6], [0, 0, 1]]
    np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-15)
    assert other.shape == (3, 7)
    assert grid.resampling(GridVectorsEncoding(height=3, width=2, trained_on=(3, 2))) is None


@pytest.mark.parametrize(("size", "trained_on"), [((5, 3), (2, 7)), ((4, 6), (4, 5)), ((9, 2), (3, 8))])
def test_vectors_of_another_picture_are_those_of_sam(size, trained_on):
    import torch
    from transformers.models.sam.modeling_sam import SamVisionAttention

    from portpe.reference.bias import BIASES, ScoreInputs

    random = np.random.default_rng(4)
    encoding = GridVectorsEncoding(height=size[0], width=size[1], trained_on=trained_on)
    spec = AttentionSpec(**SIZES, causal=False, bias=(encoding,))
    weights = {name: torch.from_numpy(random.normal(size=s)) for name, s in encoding.weight_shapes(spec).items()}
    q = torch.from_numpy(random.normal(size=(1, 6, size[0] * size[1], 4)))
    theirs = (
        SamVisionAttention.get_decomposed_rel_pos(
            SamVisionAttention.__new__(SamVisionAttention), q[0], *weights.values(), size, size
        )
        .flatten(3)
        .flatten(1, 2)
    )
    places = torch.from_numpy(cells(*size))[:, None]
    inputs = ScoreInputs(q, q, q, places, places, torch.ones(1, 1, 1, 1).bool(), weights, None)
    ours = BIASES["grid_vectors"](encoding, spec, None, torch.float64)(inputs)
    torch.testing.assert_close(ours[0], theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))  # float32 places


def test_tabulate_lists_the_rows_of_vectors():
    spec = AttentionSpec(**SIZES, causal=False, bias=(GridVectorsEncoding(height=2, width=3),))
    found = portpe.tabulate(spec, cells(2, 3))
    assert set(found) == {"buckets"}
    assert found["buckets"].shape == (2, 6, 6)
    assert found["buckets"][:, 4, 2].tolist() == [2, 1]  # from (1, 1) to (0, 2)
