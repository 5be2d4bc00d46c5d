"""ALiBi slopes for any head count, and the bias that distances make of them."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe import biases
from portpe.biases import alibi
from portpe.encodings import AlibiEncoding
from portpe.errors import SpecError


def mp_slopes(num_heads, bias_max=8.0):
    """Press's released rule at 50 digits."""

    def of_power(n):
        return [mpmath.mpf(2) ** (-mpmath.mpf(bias_max) * h / n) for h in range(1, n + 1)]

    lower = 2 ** int(math.log2(num_heads))
    return of_power(lower) + of_power(2 * lower)[0::2][: num_heads - lower]


@pytest.mark.parametrize("bias_max", [8.0, 6.0, 16.0, 5.5])
@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 20, 31, 32, 33, 40, 64, 71, 96, 112, 127, 128])
def test_slopes_are_within_one_ulp_of_the_rule(num_heads, bias_max):
    got = biases.alibi_slopes(num_heads, bias_max)
    assert got.shape == (num_heads,)
    with mpmath.workdps(50):
        for value, exact in zip(got, mp_slopes(num_heads, bias_max), strict=True):
            assert abs(mpmath.mpf(float(value)) - exact) <= math.ulp(float(exact))


def test_the_first_slope_has_exponent_one():
    # Counting heads from 0 gives 1.0, 0.5, ...
    assert biases.alibi_slopes(8).tolist() == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    for heads in (1, 2, 4, 16, 32, 64, 128):
        slopes = biases.alibi_slopes(heads)
        assert slopes[0] == 2 ** (-8 / heads)
        assert slopes[-1] == 2**-8


def test_other_head_counts_interleave_the_next_power():
    slopes = biases.alibi_slopes(12)
    assert slopes[:8] == pytest.approx(2.0 ** -np.arange(1, 9), rel=1e-15)
    assert slopes[8:] == pytest.approx(
        [0.7071067811865476, 0.3535533905932738, 0.17677669529663687, 0.08838834764831845]
    )
    naive = 2.0 ** (-8 / 12)  # the power-of-two formula at 12 heads
    assert naive == pytest.approx(0.6299605249474366)
    assert abs(slopes[0] - naive) > 0.1


def test_slopes_past_a_power_of_two_start_again():
    # Baichuan2 13B, 40 heads: not sorted, whatever looks nicer.
    slopes = biases.alibi_slopes(40)
    assert slopes[[31, 32, 39]] == pytest.approx([0.00390625, 0.9170040432046712, 0.27262693316631437], rel=1e-14)
    assert slopes[32] > slopes[31]
    assert not np.array_equal(slopes, np.sort(slopes)[::-1])


def test_mlx_agrees_on_slopes():
    import mlx.core as mx
    import mlx.nn as nn

    for heads in (8, 12, 20):
        theirs = np.array(nn.ALiBi.create_alibi_slope(heads).astype(mx.float32)).reshape(-1)
        assert theirs == pytest.approx(biases.alibi_slopes(heads), rel=1e-6)


def test_bias_max_is_the_exponent_of_the_last_head():
    assert biases.alibi_slopes(4, 16.0).tolist() == [2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16]


@pytest.mark.parametrize("heads", [0, -3])
def test_heads_are_counted_from_one(heads):
    with pytest.raises(SpecError, match=f"num_heads must be >= 1, got {heads}"):
        biases.alibi_slopes(heads)


def softmax(scores, mask):
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


QUERIES, KEYS = np.array([3, 7, 20]), np.array([0, 1, 5, 7, 20])


class TestForms:
    """Users compare slope*key, -slope*(query-key) and slope*(key-len+1) and report faults that are none."""

    SCORES = np.random.default_rng(0).normal(size=(6, 3, 5)) * 3

    def forms(self):
        slopes = biases.alibi_slopes(6)[:, None, None]
        by_key = slopes * KEYS + 0 * QUERIES[:, None]
        from_the_end = slopes * (KEYS - KEYS.max()) + 0 * QUERIES[:, None]
        return by_key, from_the_end

    def test_causal_forms_differ_by_a_constant_of_each_row(self):
        mask = QUERIES[:, None] >= KEYS
        ours = alibi.additive(AlibiEncoding(), 6, QUERIES, KEYS)
        probabilities = softmax(self.SCORES + ours, mask)
        for other in self.forms():
            assert np.max(np.abs(other - ours)) > 1  # as arrays they are far apart
            shift = (other - ours)[..., :1]
            assert other - ours == pytest.approx(np.broadcast_to(shift, other.shape), abs=1e-12)
            assert softmax(self.SCORES + other, mask) == pytest.approx(probabilities, abs=1e-14)

    def test_without_causality_only_the_symmetric_form_is_alibi(self):
        everything = np.ones((3, 5), dtype=bool)
        symmetric = softmax(self.SCORES + alibi.additive(AlibiEncoding(symmetric=True), 6, QUERIES, KEYS), everything)
        one_sided = softmax(self.SCORES + alibi.additive(AlibiEncoding(), 6, QUERIES, KEYS), everything)
        assert np.max(np.abs(symmetric - one_sided)) > 0.1
        for other in self.forms():
            assert np.max(np.abs(softmax(self.SCORES + other, everything) - symmetric)) > 0.1

    def test_symmetric_equals_causal_at_and_below_the_diagonal(self):
        causal, symmetric = (alibi.additive(AlibiEncoding(symmetric=s), 6, QUERIES, KEYS) for s in (False, True))
        below = QUERIES[:, None] >= KEYS
        assert np.array_equal(causal[:, below], symmetric[:, below])
        assert np.array_equal(causal[:, ~below], -symmetric[:, ~below])


def test_bias_by_hand():
    got = alibi.additive(AlibiEncoding(scale=0.5), 2, [9], [9, 7, 12])  # slopes 2**-4 and 2**-8
    assert got.tolist() == [[[0.0, -2 * 2**-5, 3 * 2**-5]], [[0.0, -2 * 2**-9, 3 * 2**-9]]]
    symmetric = alibi.additive(AlibiEncoding(symmetric=True), 2, [9], [9, 7, 12])
    assert symmetric.tolist() == [[[0.0, -2 * 2**-4, -3 * 2**-4]], [[0.0, -2 * 2**-8, -3 * 2**-8]]]


def test_batched_positions_take_their_own_rows():
    queries, keys = np.array([[4, 9], [100, 3]]), np.array([[0, 4, 9], [2, 3, 50]])
    batched = alibi.additive(AlibiEncoding(), 3, queries, keys)
    assert batched.shape == (2, 3, 2, 3)
    for row in range(2):
        assert np.array_equal(batched[row], alibi.additive(AlibiEncoding(), 3, queries[row], keys[row]))


def test_left_padding_moves_positions_and_not_distances():
    # BLOOM takes its key index from the mask: two pads, then 0, 1, 2; pads stand at 0.
    mask = np.array([0, 0, 1, 1, 1])
    positions = np.maximum(np.cumsum(mask) - 1, 0)
    assert positions.tolist() == [0, 0, 0, 1, 2]
    bias = alibi.additive(AlibiEncoding(contract="bloom"), 8, positions[-1:], positions)[0, 0]
    assert (bias - bias[0]).tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]
    unpadded = alibi.additive(AlibiEncoding(), 8, np.array([2]), np.arange(3))[0, 0]
    assert np.array_equal(bias[2:], unpadded)
    from_slots = alibi.additive(AlibiEncoding(), 8, np.array([4]), np.arange(5))[0, 0]
    assert np.array_equal(from_slots[2:], unpadded)  # distances forgive what absolute key indices do not


def test_bloom_bias_of_a_padded_batch():
    import torch
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    theirs = build_alibi_tensor(torch.from_numpy(mask), 12, torch.float32).numpy().reshape(2, 12, 1, 5)
    positions = np.maximum(np.cumsum(mask, axis=-1) - 1, 0)
    ours = alibi.additive(AlibiEncoding(contract="bloom", precision="hf"), 12, positions[:, -1:], positions)
    keep = mask[:, None, None, :].astype(bool) & np.ones((2, 12, 1, 5), dtype=bool)
    difference = ours - theirs
    for batch in range(2):
        for head in range(12):
            row = difference[batch, head, 0][keep[batch, head, 0]]
            assert row == pytest.approx(np.full_like(row, row[0]), abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(0, 10**7), min_size=1, max_size=4),
    st.lists(st.integers(0, 10**7), min_size=2, max_size=5),
    st.integers(0, 10**9),
    st.booleans(),
)
def test_a_shift_of_all_positions_changes_nothing(heads, queries, keys, shift, symmetric):
    encoding = AlibiEncoding(symmetric=symmetric)
    here = alibi.additive(encoding, heads, queries, keys)
    there = alibi.additive(encoding, heads, np.array(queries) + shift, np.array(keys) + shift)
    assert np.array_equal(here, there)


def test_float_positions_are_refused():
    with pytest.raises(SpecError, match="positions must be integers, got float64"):
        alibi.additive(AlibiEncoding(), 2, [0.5], [0, 1])
