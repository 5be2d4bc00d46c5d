"""Layer: tests. What is added to the hidden states: rows of learned tables, sines and cosines, and their ends."""

import math

import numpy as np
import pytest
import torch

from portpe.encodings import LearnedEncoding, SinusoidalEncoding
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.reference.embedding import EMBEDDINGS
from portpe.spec import AttentionSpec
from portpe.tables import table_set

SIZES = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "v_head_dim": 3, "scale": 0.5}


def learned(rows, offset, width=6):
    return AttentionSpec(hidden_size=width, **SIZES, embedding=LearnedEncoding(rows=rows, width=width, offset=offset))


def added(spec, weights, positions, mask=None):
    """What the block adds to hidden states of zero."""
    attention = Attention(spec, dtype=torch.float64).load(weights)
    batch, seq = len(mask or positions), len((mask or positions)[0])
    x = torch.zeros(batch, seq, spec.hidden_size).double()
    ids = None if positions is None else torch.tensor(positions)
    return attention.stages(x, ids, None if mask is None else torch.tensor(mask))["embedded"].numpy()


def test_rows_are_those_of_the_positions(weights_of):
    """S11: rows 3, 4, 9, and not 0, 1, 2 for a sequence of three."""
    spec = learned(rows=12, offset=0)
    weights = weights_of(spec)
    found = added(spec, weights, [[3, 4, 9]])
    assert np.array_equal(found[0], weights["position_embedding.weight"][[3, 4, 9]])


@pytest.mark.parametrize(
    ("mask", "offset", "rows"),
    [
        ([[0, 0, 1, 1, 1]], 2, [[2, 3, 4]]),  # S15: OPT starts at row 2, wherever the pads end
        ([[1, 1, 1, 0, 0]], 2, [[2, 3, 4]]),  # S14: RoBERTa, pads on the right
        ([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], 0, [[0, 1, 2], [0, 1, 2, 3, 4]]),  # S01
    ],
)
def test_rows_follow_the_mask(weights_of, mask, offset, rows):
    spec = learned(rows=9, offset=offset)
    weights = weights_of(spec)
    found = added(spec, weights, None, mask)
    for b, expected in enumerate(rows):
        kept = found[b][np.array(mask[b]) == 1]
        assert np.array_equal(kept, weights["position_embedding.weight"][expected])


@pytest.mark.parametrize(
    ("rows", "offset", "positions", "end"),
    [
        (512, 0, [[0, 2595]], 512),  # N04
        (16, 0, [[15, 16]], 16),  # S16: offset 15 and two new tokens need 17 rows
        (16, 2, [[13, 14]], 14),  # the offset takes two of the rows
    ],
)
def test_a_position_past_the_table_is_refused_and_never_wrapped(weights_of, rows, offset, positions, end):
    spec = learned(rows, offset)
    last = positions[0][-1]
    with pytest.raises(SpecError, match=f"position_ids must be < {end}, the end of the position table, got {last}"):
        added(spec, weights_of(spec), positions)
    found = added(spec, weights_of(spec), [[end - 1]])
    assert np.array_equal(found[0, 0], weights_of(spec)["position_embedding.weight"][rows - 1])


def test_a_late_chunk_is_measured_by_its_positions(weights_of):
    """S16 with a cache: 15 tokens are there, two come, the table has 16 rows."""
    spec = learned(rows=16, offset=0)
    attention = Attention(spec, dtype=torch.float64).load(weights_of(spec))
    first = attention(torch.zeros(1, 15, 6).double())
    cache = {"past_key": first.present_key, "past_value": first.present_value}
    attention(torch.zeros(1, 1, 6).double(), **cache)
    with pytest.raises(SpecError, match="position_ids must be < 16, the end of the position table, got 16"):
        attention(torch.zeros(1, 2, 6).double(), **cache)


@pytest.mark.parametrize("left_pads", [0, 1, 2, 5])
def test_left_pads_change_no_token(weights_of, states, left_pads):
    """S02, for a learned table: a prompt of three tokens behind any number of pads."""
    spec = learned(rows=4, offset=0, width=6)
    attention, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 1, 3)
    padded = torch.cat((torch.full((1, left_pads, 6), 7.0).double(), x), 1)
    mask = torch.tensor([[0] * left_pads + [1] * 3])
    found = attention(padded, attention_mask=mask).output[:, left_pads:]
    torch.testing.assert_close(found, attention(x).output, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("denominator", ["half", "half_minus_one"])
@pytest.mark.parametrize("order", ["interleaved", "sin_cos", "cos_sin"])
def test_sines_and_cosines_exact_and_from_tables(order, denominator, offset):
    encoding = SinusoidalEncoding(width=8, order=order, denominator=denominator, offset=offset)
    spec = AttentionSpec(hidden_size=8, **SIZES, embedding=encoding)
    positions = [[0, 5, 1023, 1024], [2047, 3, 1500, 77]]
    exact = EMBEDDINGS["sinusoidal"](encoding, None, torch.float64)(torch.tensor(positions))
    looked_up = EMBEDDINGS["sinusoidal"](encoding, table_set(spec, 2048), torch.float32)(torch.tensor(positions))
    assert looked_up.dtype == torch.float32
    below = 4 if denominator == "half" else 3
    places = {"interleaved": (2, 0, 2, 1), "sin_cos": (1, 0, 1, 4), "cos_sin": (1, 4, 1, 0)}[order]
    for b, s, i in np.ndindex(2, 4, 4):
        angle = (positions[b][s] + offset) * 10000.0 ** (-i / below)
        for channel, value in (
            (places[0] * i + places[1], math.sin(angle)),
            (places[2] * i + places[3], math.cos(angle)),
        ):
            assert exact[b, s, channel] == pytest.approx(value, abs=1e-12)
            assert looked_up[b, s, channel] == pytest.approx(value, abs=2e-7)


def test_a_sinusoidal_table_ends_where_the_model_s_does(weights_of):
    encoding = SinusoidalEncoding(width=6, offset=2, rows=30)
    spec = AttentionSpec(hidden_size=6, **SIZES, embedding=encoding)
    with pytest.raises(SpecError, match="position_ids must be < 28, the end of the position table, got 28"):
        added(spec, weights_of(spec), [[28]])
    assert added(spec, weights_of(spec), [[27]])[0, 0, 0] == pytest.approx(math.sin(29), abs=1e-14)


def test_embed_scale_multiplies_the_states_and_not_the_encoding(weights_of, states):
    spec = learned(rows=9, offset=0).model_copy(update={"embed_scale": 3.0})
    weights, x = weights_of(spec), states(spec, 2, 3)
    found = Attention(spec, dtype=torch.float64).load(weights).stages(x, torch.tensor([[1, 0, 5], [8, 2, 2]]))
    expected = 3 * x.numpy() + weights["position_embedding.weight"][[[1, 0, 5], [8, 2, 2]]]
    np.testing.assert_allclose(found["embedded"], expected, rtol=1e-15)


@pytest.mark.parametrize("name", ["cos_hi", "sin_lo"])
def test_a_table_set_that_lacks_a_table_is_refused(name):
    encoding = SinusoidalEncoding(width=6)
    tables = table_set(AttentionSpec(hidden_size=6, **SIZES, embedding=encoding), 1024)
    del tables[f"embedding_{name}"]
    with pytest.raises(SpecError, match="is required and missing"):
        EMBEDDINGS["sinusoidal"](encoding, tables, torch.float32)


def test_a_position_past_the_tables_that_a_block_holds_is_refused(weights_of):
    spec = AttentionSpec(hidden_size=6, **SIZES, embedding=SinusoidalEncoding(width=6))
    attention = Attention(spec, dtype=torch.float64, tables=table_set(spec, 2048)).load(weights_of(spec))
    attention(torch.zeros(1, 1, 6).double(), torch.tensor([[2047]]))
    with pytest.raises(SpecError, match="position_ids must be < 2048"):
        attention(torch.zeros(1, 1, 6).double(), torch.tensor([[2048]]))
