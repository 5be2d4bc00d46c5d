"""Layer: tests. What mx.fast.scaled_dot_product_attention is asked: no mask where none is needed, no key that no query
sees, one group of queries in place of grouped heads; and that the answers stay."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache, RotatingKVCache

from portpe.encodings import AlibiEncoding, DefaultSchedule, RotaryEncoding
from portpe.random_weights import random_weights
from portpe.runtimes.mlx import Attention, attention, caches, masks
from portpe.runtimes.mlx.positions import Run
from portpe.spec import AttentionSpec

ROTARY = {"rotary": RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=100.0))}


def loaded(**fields):
    sizes = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 5, "scale": 0.4}
    spec = AttentionSpec(**(sizes | fields))
    block = Attention(spec)
    block.load(random_weights(spec, 4))
    return block


def hidden(batch, length, seed=5):
    return mx.array(np.random.default_rng(seed).standard_normal((batch, length, 20)).astype(np.float32))


@pytest.fixture
def asked(monkeypatch):
    """The shapes of q and k and the mask of each call of mx.fast's attention."""
    calls, real = [], mx.fast.scaled_dot_product_attention

    def spy(q, k, v, *, scale, mask=None, sinks=None):
        calls.append((q.shape, k.shape, mask))
        return real(q, k, v, scale=scale, mask=mask, sinks=sinks)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", spy)
    return calls


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", ["KVCache", "RotatingKVCache"])
def test_decoding_needs_no_mask_and_reads_the_window_alone(window, kind, asked):
    block = loaded(window=window, **ROTARY)
    cache = RotatingKVCache(max_size=window or 64) if kind == "RotatingKVCache" else KVCache()
    x = hidden(2, 14)
    block(x[:, :6], "causal", cache)
    for step in range(6, 14):
        del asked[:]
        block(x[:, step : step + 1], None if step % 2 else "causal", cache)
        ((_, keys, mask),) = asked
        assert mask is None
        assert keys == (2, 2, step + 1 if window is None else window, 8)


@pytest.mark.parametrize("cuts", [[14], [6, 8], [6, 1, 5, 1, 1], [1] * 14])
def test_a_window_over_a_whole_cache_is_what_a_mask_of_it_gives(cuts):
    for fields in (ROTARY, {"bias": (AlibiEncoding(),)}, ROTARY | {"sinks": True}, ROTARY | {"softcap": 3.0}):
        block, x = loaded(window=4, **fields), hidden(2, 14)
        i, j = np.arange(14)[:, None], np.arange(14)
        expected = np.array(block(x, mx.array((j <= i) & (j > i - 4))))
        cache, outputs, start = KVCache(), [], 0
        for cut in cuts:
            outputs.append(block(x[:, start : start + cut], "causal" if cut > 1 else None, cache))
            start += cut
        np.testing.assert_allclose(np.array(mx.concatenate(outputs, axis=1)), expected, rtol=0, atol=5e-6)


def test_a_chunk_reads_the_keys_that_some_query_sees(asked):
    """Six queries with a window of 4 reach 9 keys; the caller's own array speaks of all of them."""
    block, x = loaded(window=4, **ROTARY), hidden(1, 16)
    cache = KVCache()
    block(x[:, :10], "causal", cache)
    block(x[:, 10:], "causal", cache)
    assert asked[-1][1] == (1, 2, 9, 8)
    assert asked[-1][2].shape == (6, 9)
    cache = KVCache()
    block(x[:, :10], "causal", cache)
    block(x[:, 10:], mx.ones((6, 16), dtype=mx.bool_), cache)
    assert asked[-1][1] == (1, 2, 16, 8)


def test_a_prefill_is_causal_by_name(asked):
    """Where nothing else hides or is added: then mlx need not read a mask."""
    x = hidden(1, 6)
    for fields, by_name in (
        (ROTARY, True),
        (ROTARY | {"window": 6}, True),
        (ROTARY | {"sinks": True}, True),
        (ROTARY | {"window": 5}, False),
        ({"bias": (AlibiEncoding(),)}, False),
    ):
        loaded(**fields)(x, "causal", KVCache())
        assert isinstance(asked[-1][2], str) is by_name


def test_a_left_padded_batch_hides_its_pads_in_every_step(asked):
    block = loaded(**ROTARY)
    cache = BatchKVCache([0, 2])
    block(hidden(2, 5), "causal", cache)
    block(hidden(2, 1), None, cache)
    np.testing.assert_array_equal(np.array(asked[-1][2])[:, 0, 0], [[True] * 6, [False] * 2 + [True] * 4])


# --- grouped heads as a group of queries ---


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_one_query_of_grouped_heads_is_a_group_of_queries(kv_heads, dtype, asked):
    """The same numbers as mlx's own grouping, with masks of every shape that broadcasts."""
    rng = np.random.default_rng(6)

    def draw(*shape):
        return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)

    q, k, v = draw(2, 6, 1, 8), draw(2, kv_heads, 9, 8), draw(2, kv_heads, 9, 5)
    keep = mx.array(rng.random((2, 6, 1, 9)) < 0.7)
    keep[..., 4] = True
    cases = {"none": (None, masks.Mask()), "bias by head": (draw(1, 6, 1, 9).astype(mx.float32), masks.Mask())}
    for shape in ((9,), (1, 9), (1, 1, 9), (6, 1, 9), (1, 6, 1, 9), (2, 1, 1, 9), (2, 6, 1, 9)):
        part = keep.reshape(12, 9)[: int(np.prod(shape)) // 9].reshape(shape)
        cases[f"keep {shape}"] = (None, masks.Mask(keep=part, may_hide_all=True))
        cases[f"bias and keep {shape}"] = (draw(2, 6, 1, 9).astype(mx.float32), masks.Mask(keep=part))
    for name, (bias, mask) in cases.items():
        found = attention.fused(q, k, v, 0.3, bias, mask, None)
        assert asked[-1][0] == (2, kv_heads, 6 // kv_heads, 8), name
        plain = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask.combined(bias, dtype))
        assert found.dtype == dtype
        error = mx.max(mx.abs(found.astype(mx.float32) - plain.astype(mx.float32))).item()
        assert error <= mx.finfo(dtype).eps * 4, name


def test_what_is_no_group_is_asked_as_it_is(asked):
    """More than one query, a sink by head, heads that are not grouped."""
    q, k, v = mx.ones((1, 6, 1, 8)), mx.ones((1, 2, 9, 8)), mx.ones((1, 2, 9, 5))
    attention.fused(q, k, v, 0.3, None, masks.Mask(), mx.zeros((6,)))
    assert asked[-1][0] == (1, 6, 1, 8)
    attention.fused(mx.ones((1, 6, 3, 8)), k, v, 0.3, None, masks.Mask(causal=True), None)
    assert asked[-1][0] == (1, 6, 3, 8)
    attention.fused(q, mx.ones((1, 6, 9, 8)), mx.ones((1, 6, 9, 5)), 0.3, None, masks.Mask(), None)
    assert asked[-1][0] == (1, 6, 1, 8)


def test_on_a_gpu_mlx_is_asked_as_it_is(asked, monkeypatch):
    """Its kernels group heads and skip hidden keys by themselves."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    attention.fused(mx.ones((1, 6, 1, 8)), mx.ones((1, 2, 9, 8)), mx.ones((1, 2, 9, 5)), 0.3, None, masks.Mask(), None)
    assert asked[-1][0] == (1, 6, 1, 8)
    q, k, v = mx.ones((1, 6, 130, 8)), mx.ones((1, 2, 130, 8)), mx.ones((1, 2, 130, 5))
    del asked[:]
    attention.fused(q, k, v, 0.3, None, masks.Mask(causal=True), None)
    assert asked == [((1, 6, 130, 8), (1, 2, 130, 8), "causal")]


@pytest.mark.parametrize("sinks", [None, mx.array([0.5, -1.0, 2.0, 0.0, 3.0, -2.0])], ids=["plain", "sinks"])
@pytest.mark.parametrize(("length", "past"), [(64, 0), (65, 0), (130, 0), (128, 9), (200, 70)])
def test_a_causal_prefill_in_chunks_is_the_whole(length, past, sinks, asked):
    """Each chunk sees the keys up to its own last one, and no chunk is asked about later ones."""
    rng = np.random.default_rng(6)
    q, k, v = (
        mx.array(rng.standard_normal((2, heads, count, width)).astype(np.float32))
        for heads, count, width in ((6, length, 8), (2, length + past, 8), (2, length + past, 5))
    )
    found = np.array(attention.fused(q, k, v, 0.3, None, masks.Mask(causal=True), sinks))
    ends = [min(end, length) for end in range(64, length + 64, 64)]
    assert [keys[2] for _, keys, _ in asked] == [past + end for end in ends]
    i, j = np.arange(past, past + length)[:, None], np.arange(past + length)
    plain = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mx.array(j <= i), sinks=sinks)
    np.testing.assert_allclose(found, np.array(plain), rtol=0, atol=2e-6)


def test_keys_before_every_window_are_left_out_by_slot():
    keys, values = mx.arange(10).reshape(1, 1, 10, 1), mx.arange(10).reshape(1, 1, 10, 1)
    got = caches.within(caches.Fetched(keys, values, Run(20, 10), Run(28, 2)), 3)
    assert got.key_slots == Run(26, 4)
    np.testing.assert_array_equal(np.array(got.keys).ravel(), [6, 7, 8, 9])
    ring = caches.Fetched(keys, values, np.arange(10)[::-1].copy(), Run(9, 1))
    assert caches.within(ring, 3) is ring
