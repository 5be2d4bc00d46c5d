"""Layer: tests. Masks: where mlx aligns them, what a hidden row gives, and what each type does to a sentinel."""

import mlx.core as mx
import numpy as np
import pytest

from portpe.encodings import AlibiEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx import caches, masks
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 12, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "v_head_dim": 5, "scale": 0.4}


def spec_with(**fields):
    return AttentionSpec(**(SIZES | fields))


def hidden(batch, length, dtype=np.float32, seed=2):
    return mx.array(np.random.default_rng(seed).standard_normal((batch, length, 12)).astype(dtype))


def test_causal_is_aligned_at_the_bottom_right_in_mlx_and_here(block_of, as_float64):
    """X06: one query after three cached keys sees all four; torch's is_causal would show it the first alone."""
    values = mx.eye(4)[None, None]
    seen = mx.fast.scaled_dot_product_attention(
        mx.zeros((1, 1, 1, 4)), mx.zeros((1, 1, 4, 4)), values, scale=1.0, mask="causal"
    )
    np.testing.assert_array_equal(np.array(seen)[0, 0, 0], [0.25] * 4)

    block, _ = block_of(spec_with())
    rng = np.random.default_rng(1)
    past = [mx.array(rng.standard_normal((1, 2, 3, width)).astype(np.float32)) for width in (6, 5)]
    x = hidden(1, 2)
    probs = as_float64(block.stages(x, past_key=past[0], past_value=past[1])["probs"])
    assert (probs[:, :, 0, :4] > 0).all()
    assert (probs[:, :, 0, 4] == 0).all()
    assert (probs[:, :, 1] > 0).all()
    by_array = block(x, mx.array([[True] * 4 + [False], [True] * 5]), caches.PastCache(*past))
    by_name = block(x, "causal", caches.PastCache(*past))
    np.testing.assert_allclose(as_float64(by_name), as_float64(by_array), rtol=0, atol=1e-6)


def test_what_mlx_gives_a_row_without_keys(block_of, as_float64):
    """X07: the mean of the values for a bool mask or float32's lowest number, NaN for -inf. Here each is 0."""
    q, k, v = mx.zeros((1, 1, 1, 4)), mx.zeros((1, 1, 4, 4)), mx.eye(4)[None, None]
    forms = {
        "bool": (mx.zeros((1, 4), dtype=mx.bool_), 0.25),
        "-inf": (mx.full((1, 4), -mx.inf), np.nan),
        "lowest": (mx.full((1, 4), mx.finfo(mx.float32).min), 0.25),
    }
    block, weights = block_of(spec_with(biases={"q": False, "k": False, "v": False, "o": True}))
    for mask, expected in forms.values():
        found = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)
        np.testing.assert_array_equal(np.array(found)[0, 0, 0], [expected] * 4)
        ours = as_float64(block(hidden(2, 4), mask))
        np.testing.assert_array_equal(ours, np.broadcast_to(weights["o_proj.bias"], ours.shape))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sentinel", [-np.inf, np.finfo(np.float32).min, -1e9, -65504.0])
@pytest.mark.parametrize("made_in", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fields", [{}, {"bias": (AlibiEncoding(),)}, {"softcap": 3.0}, {"sinks": True}])
def test_an_additive_sentinel_means_the_same_in_every_type(dtype, sentinel, made_in, fields, block_of, as_float64):
    """K05: float32's lowest number becomes -inf in float16, and a row of it NaN; -65504 is float16's own."""
    block, _ = block_of(spec_with(**fields), dtype)
    x = hidden(2, 5).astype(getattr(mx, dtype))
    keep = np.tril(np.ones((5, 5), bool))
    keep[2:, 1] = False
    keep[3] = False  # a row that sees nothing
    with np.errstate(over="ignore"):
        additive = mx.array(np.where(keep, 0.0, sentinel).astype(np.float32)).astype(getattr(mx, made_in))
    found, expected = as_float64(block(x, additive)), as_float64(block(x, mx.array(keep)))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(expected[:, 3], 0.0)
    np.testing.assert_array_equal(found[:, 3], 0.0)
    tolerance = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_an_additive_mask_is_added_after_the_softcap(block_of, as_float64):
    """exp(ln 3) triples a key's weight, whatever the cap does to the scores."""
    for fields in ({}, {"softcap": 0.8}, {"sinks": True}):
        block, _ = block_of(spec_with(**fields))
        x = hidden(1, 4)
        stages = block.stages(x, attention_mask=np.ones((1, 4), int))
        weights = np.exp(as_float64(stages["scores"])) * np.tril(np.ones((4, 4)))
        sink = np.exp(as_float64(block.sinks))[None, :, None] if fields.get("sinks") else 0.0
        triple = np.where(np.arange(4) == 1, 3.0, 1.0)
        probs = weights * triple / ((weights * triple).sum(-1) + sink)[..., None]
        values = np.repeat(as_float64(stages["v"]), 2, axis=1)
        context = (probs @ values).transpose(0, 2, 1, 3).reshape(1, 4, -1)
        expected = context @ as_float64(block.o_proj.weight).T
        added = np.where(np.tril(np.ones((4, 4), bool)), np.log(triple), -np.inf).astype(np.float32)
        np.testing.assert_allclose(as_float64(block(x, mx.array(added))), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize(("window", "length", "past"), [(3, 1, 7), (3, 4, 7), (1, 3, 2), (4, 9, 0), (20, 4, 7)])
def test_a_window_holds_w_keys_whatever_the_mask(window, length, past, block_of, as_float64):
    """The query itself and the w - 1 before it, by slot; mlx-lm passes None for one token, "causal" for more."""
    block, _ = block_of(spec_with(window=window))
    rng = np.random.default_rng(4)
    keys, values = (mx.array(rng.standard_normal((2, 2, past, width)).astype(np.float32)) for width in (6, 5))
    x = hidden(2, length)
    i, j = np.arange(past, past + length)[:, None], np.arange(past + length)
    keep = (j <= i) & (j > i - window)
    probs = as_float64(block.stages(x, past_key=keys, past_value=values)["probs"])
    np.testing.assert_array_equal(probs > 0, np.broadcast_to(keep, probs.shape))
    expected = as_float64(block(x, mx.array(keep), caches.PastCache(keys, values)))
    causal = as_float64(block(x, "causal", caches.PastCache(keys, values)))
    np.testing.assert_allclose(causal, expected, rtol=0, atol=1e-6)
    if length == 1:
        np.testing.assert_allclose(
            as_float64(block(x, None, caches.PastCache(keys, values))), expected, rtol=0, atol=1e-6
        )


def test_other_masks_are_refused_before_the_cache_is_touched(block_of):
    block, _ = block_of(spec_with())
    cache = caches.PastCache(mx.zeros((1, 2, 3, 6)), mx.zeros((1, 2, 3, 5)))
    for mask, message in (
        (mx.ones((1, 5), dtype=mx.int32), r"mask must be bool \(True = keep\) or floating .*, got mlx.core.int32"),
        ("sliding", "mask must be None, 'causal' or an array, got 'sliding'"),
    ):
        with pytest.raises(SpecError, match=message):
            block(hidden(1, 2), mask, cache)
    assert cache.offset == 3


def test_a_hugging_face_mask_as_an_mlx_one():
    causal, both_ways = spec_with(), spec_with(causal=False)
    full, padded = np.ones((2, 5), int), np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert masks.from_attention_mask(causal, full, 2) == "causal"
    assert masks.from_attention_mask(both_ways, full, 5) is None
    found = np.array(masks.from_attention_mask(causal, padded, 2))
    np.testing.assert_array_equal(found[:, 0], [[[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]])
    found = np.array(masks.from_attention_mask(both_ways, padded, 5))
    np.testing.assert_array_equal(found[:, 0, 0], padded)


# --- ALiBi: which forms are one, and where 16 bits would lose it ---

SLOPES = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])  # four heads (Press 2021)


def products(q, k, scale):
    """Scores without any bias, in float64: q (B, 4, S, D), k (B, 2, T, D)."""
    return scale * q @ np.repeat(k, 2, axis=1).swapaxes(-1, -2)


def probabilities(logits, keep):
    weights = np.exp(logits - np.where(keep, logits, -np.inf).max(-1, keepdims=True)) * keep
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", ["slope * key", "-slope * (query - key)", "slope * (key - length + 1)"])
def test_causal_alibi_equals_every_form_that_differs_by_a_constant_of_the_row(name, block_of, as_float64):
    """A05: what counts is the softmax."""
    block, _ = block_of(spec_with(bias=(AlibiEncoding(),)))
    i, j = np.arange(6)[:, None], np.arange(6)
    distances = {
        "slope * key": j + 0 * i,
        "-slope * (query - key)": j - i,
        "slope * (key - length + 1)": j - 5 + 0 * i,
    }
    form = SLOPES[:, None, None] * distances[name]
    stages = block.stages(hidden(2, 6), attention_mask=np.ones((2, 6), int))
    raw = products(as_float64(stages["q"]), as_float64(stages["k"]), 0.4)
    expected = probabilities(raw + form, np.broadcast_to(j <= i, raw.shape))
    np.testing.assert_allclose(as_float64(stages["probs"]), expected, rtol=0, atol=1e-6)


def test_symmetric_alibi_is_another_encoding(block_of, as_float64):
    """A06: without causality slope * key and -slope * |query - key| part."""
    i, j = np.arange(6)[:, None], np.arange(6)
    keep = np.ones((2, 4, 6, 6), bool)
    found = {}
    for symmetric in (False, True):
        block, _ = block_of(spec_with(causal=False, bias=(AlibiEncoding(symmetric=symmetric),)))
        stages = block.stages(hidden(2, 6))
        distance = abs(i - j) if symmetric else i - j
        raw = products(as_float64(stages["q"]), as_float64(stages["k"]), 0.4)
        found[symmetric] = as_float64(stages["probs"])
        np.testing.assert_allclose(
            found[symmetric], probabilities(raw - SLOPES[:, None, None] * distance, keep), rtol=0, atol=1e-6
        )
        by_key = probabilities(raw + SLOPES[:, None, None] * j, keep)
        assert (np.abs(found[symmetric] - by_key).max() < 1e-6) is not symmetric
    assert np.abs(found[True] - found[False]).max() > 0.05


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_alibi_far_out_in_16_bits(dtype, block_of, as_float64):
    """Keys at a million and beyond, and a query a million past its keys: slope * key is inf in float16 and the same
    for 4096 neighbours in bfloat16; distances are not."""
    block, _ = block_of(spec_with(bias=(AlibiEncoding(),)), dtype)
    x = hidden(1, 6).astype(getattr(mx, dtype))
    near, far = np.arange(6)[None], np.arange(1_000_000, 1_000_006)[None]
    np.testing.assert_array_equal(as_float64(block(x, "causal", None, far)), as_float64(block(x, "causal", None, near)))
    keys = np.concatenate([np.arange(5), [1_000_000]])[None]
    past = block.stages(x[:, :5], np.arange(5)[None])
    cache = caches.PastCache(past["present_key"], past["present_value"])
    hide_itself = mx.array([[True] * 5 + [False]])
    found = as_float64(block(x[:, 5:], hide_itself, cache, np.array([[1_000_000]]), keys))
    q = as_float64(block.stages(x[:, 5:])["q"])
    logits = products(q, as_float64(past["present_key"]), 0.4) + SLOPES[:, None, None] * np.arange(5)
    probs = probabilities(logits, np.ones_like(logits, bool))
    values = np.repeat(as_float64(past["present_value"]), 2, axis=1)
    context = (probs @ values).transpose(0, 2, 1, 3).reshape(1, 1, -1)
    expected = context @ as_float64(block.o_proj.weight).T
    np.testing.assert_allclose(found, expected, rtol=0, atol={"float16": 0.004, "bfloat16": 0.03}[dtype])
