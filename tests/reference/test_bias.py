"""Layer: tests. ALiBi in the block: slopes and distances by hand, padding, and what half precision leaves of them."""

import math

import numpy as np
import pytest
import torch

from portpe.encodings import AlibiEncoding
from portpe.reference import Attention
from portpe.reference.bias import BIASES, ScoreInputs
from portpe.spec import AttentionSpec


def bias(encoding, heads, queries, keys, dtype=torch.float64, tables=None):
    """Of queries and keys at these positions; ALiBi reads nothing else."""
    sizes = {"hidden_size": 20, "num_kv_heads": heads, "head_dim": 4, "v_head_dim": 3, "scale": 0.5}
    spec = AttentionSpec(**sizes, num_heads=heads, bias=(encoding,))
    nothing = torch.empty(0)
    places = (torch.tensor(queries), torch.tensor(keys))
    return BIASES[encoding.kind](encoding, spec, tables, dtype)(ScoreInputs(*[nothing] * 3, *places, nothing, {}, None))


def test_slope_times_distance_by_hand():
    found = bias(AlibiEncoding(), 4, [[5, 9]], [[0, 5, 7]])
    # slopes 1/4, 1/16, 1/64, 1/256; distances 5, 0, -2 and 9, 4, 2
    assert found.shape == (1, 4, 2, 3)
    assert found[0, 0].tolist() == [[-1.25, 0.0, 0.5], [-2.25, -1.0, -0.5]]
    assert found[0, 3].tolist() == [[-5 / 256, 0.0, 2 / 256], [-9 / 256, -4 / 256, -2 / 256]]


def test_symmetric_scaled_and_of_another_bias_max():
    encoding = AlibiEncoding(symmetric=True, scale=0.125, bias_max=4.0)
    found = bias(encoding, 4, [[5, 9]], [[0, 5, 7]])
    assert found[0, 1].tolist() == [[-0.125 * d / 4 for d in row] for row in ([5, 0, 2], [9, 4, 2])]


def test_each_batch_row_has_its_own_distances():
    found = bias(AlibiEncoding(), 2, [[3], [10]], [[0, 3], [7, 10]])
    assert found[:, 0, 0].tolist() == [[-3 / 16, 0.0], [-3 / 16, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_bias_reaches_the_scores_in_float32(dtype):
    found = bias(AlibiEncoding(), 8, [[4097]], [[1]], dtype)
    assert found.dtype == torch.float32
    assert found[0, :, 0, 0].tolist() == [-4096 * 2.0**-h for h in range(1, 9)]


def test_tables_give_the_slopes_where_they_are_given():
    found = bias(AlibiEncoding(), 2, [[3]], [[1]], tables={"slopes": np.array([3.0, 0.5], np.float32)})
    assert found[0, :, 0, 0].tolist() == [-6.0, -1.0]


def test_bfloat16_keeps_distances_and_not_key_indices():
    """A07. 4097 keys, 8 heads; the bias of distance d <= 256 is exact when it is cast, but formed from the key index j
    it is rounded by up to 4 (half of the spacing 8 at 2048) for slope 1/2, and the last query sees only 769 numbers."""
    keys = torch.arange(4097)
    slopes = torch.tensor([2.0**-h for h in range(1, 9)])
    by_index = (slopes[:, None] * keys).bfloat16().double()
    error = (by_index - slopes.double()[:, None] * keys).abs().amax(-1)
    assert error.tolist() == [4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert by_index[0].unique().numel() == 769

    ours = bias(AlibiEncoding(), 8, [[4096]], [keys.tolist()], torch.bfloat16)[0, :, 0]
    exact = -slopes.double()[:, None] * (4096 - keys)
    assert torch.equal(ours.double(), exact)  # no rounding at all before the scores
    cast = ours.bfloat16().double()
    assert ((cast - exact).abs() <= exact.abs() * 2.0**-8).all()  # half a unit, relative to the bias itself
    assert torch.equal(cast[:, -257:], exact[:, -257:])


def test_key_positions_follow_the_mask(weights_of, states):
    """A08: two pads, then keys at 0, 1, 2: head 0 of 8 has slope 1/2, so BLOOM's form is 0, 0, 0, 0.5, 1."""
    spec = AttentionSpec(
        hidden_size=20, num_heads=8, num_kv_heads=2, head_dim=4, v_head_dim=3, scale=0.5, bias=(AlibiEncoding(),)
    )
    plain = spec.model_copy(update={"bias": ()})
    attention, without = (Attention(s, dtype=torch.float64).load(weights_of(s)) for s in (spec, plain))
    x, mask = states(spec, 1, 5), torch.tensor([[0, 0, 1, 1, 1]])
    added = attention.stages(x, attention_mask=mask)["scores"] - without.stages(x, attention_mask=mask)["scores"]
    last = added[0, 0, 4] + 0.5 * 2  # our form is relative to the query, which stands at position 2
    np.testing.assert_allclose(last, [0.0, 0.0, 0.0, 0.5, 1.0], atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_far_block_attends_as_a_near_one_does(dtype, weights_of, states):
    """A07 in the block: all positions a million further on change nothing, in any type."""
    spec = AttentionSpec(
        hidden_size=20, num_heads=6, num_kv_heads=2, head_dim=4, v_head_dim=3, scale=0.5, bias=(AlibiEncoding(),)
    )
    attention = Attention(spec, dtype=dtype).load(weights_of(spec))
    x, near = states(spec, 2, 5).to(dtype), torch.tensor([[0, 1, 2, 3, 4], [3, 5, 6, 8, 9]])
    assert torch.equal(attention(x, near).output, attention(x, near + 1_000_000).output)


def test_the_slopes_of_twelve_heads_are_the_published_ones():
    """Eight heads' slopes, then every second of sixteen's (Press 2021's released code)."""
    found = -bias(AlibiEncoding(), 12, [[1]], [[0]])[0, :, 0, 0]
    expected = [2.0**-h for h in range(1, 9)] + [math.sqrt(0.5) ** h for h in (1, 3, 5, 7)]
    np.testing.assert_allclose(found, expected, rtol=1e-15)
