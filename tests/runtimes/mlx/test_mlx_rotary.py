"""Layer: tests. Rotation by tables against formulas in float64, and mx.fast.rope as it is."""

import mlx.core as mx
import numpy as np
import pytest

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.runtimes.mlx.rotary import SITES
from portpe.spec import AttentionSpec
from portpe.tables import table_set

FAR = [2_049, 8_191, 70_000, 262_145, 1_000_000]


def rotary_of(width=64, base=10000.0, **fields):
    encoding = RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=base), **fields)
    spec = AttentionSpec(
        hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=width, v_head_dim=4, scale=1.0, rotary=encoding
    )
    return SITES["rotary"](encoding, table_set(spec))


def turned(x, positions, base=10000.0, interleaved=False):
    """The last axis of x turned in float64: x (..., S, R), positions (S,)."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions, np.float64)[:, None] * base ** (-np.arange(half) / half)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    first, second = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    return np.stack([first, second], -1).reshape(x.shape) if interleaved else np.concatenate([first, second], -1)


def by_table(rope, x, positions):
    return rope(x, *rope.cos_sin(mx.array(np.atleast_2d(positions))))


def fast(x, offset, traditional=False, base=10000.0):
    return mx.fast.rope(x, x.shape[-1], traditional=traditional, base=base, scale=1.0, offset=offset)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("position", FAR)
def test_the_table_stays_exact_where_mlx_drifts(position):
    """F09: a float32 angle is off by half an ulp of the position; the table by one rounding of cos and sin."""
    x = np.zeros((1, 1, 1, 64), np.float32)
    x[..., :32] = 1.0
    expected = turned(x.astype(np.float64), [position])
    ours = np.abs(np.array(by_table(rotary_of(), mx.array(x), [position])) - expected).max()
    theirs = np.abs(np.array(fast(mx.array(x), position)) - expected).max()
    assert ours <= 2e-7
    half_ulp_of_the_angle = position * 2.0**-24
    assert theirs <= 2 * half_ulp_of_the_angle
    assert theirs > 20 * ours or position < 5000


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_both_pairings_in_every_type(pairing, dtype, as_float64, ulp):
    """One cast at the end: each element is within one rounding of the exact one, at a million too."""
    positions = [999_999, 3, 131_071, 0, 70_000]
    x = mx.array(normal(2, 3, 5, 24)).astype(getattr(mx, dtype))
    found = by_table(rotary_of(24, 500.0, pairing=pairing), x, positions)
    expected = turned(as_float64(x), positions, 500.0, pairing == "interleaved")
    assert found.dtype == x.dtype
    bound = ulp[dtype] * np.abs(expected) + 4e-7 * np.abs(expected).max()
    assert (np.abs(as_float64(found) - expected) <= bound).all()


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 2.0e-3), ("bfloat16", 1.6e-2)])
@pytest.mark.parametrize("start", [0, 131_072])
def test_mlx_rounds_cos_sin_and_products_in_16_bits(dtype, bound, start, as_float64):
    """X03: mlx's result is rounded three times and ours once (elements reach 4: half an ulp is 2^-10, 2^-7)."""
    positions = np.arange(start, start + 1024)
    x = mx.array(normal(1, 2, 1024, 32)).astype(getattr(mx, dtype))
    expected = turned(as_float64(x), positions)
    ours = np.abs(as_float64(by_table(rotary_of(32), x, positions)) - expected).max()
    theirs = np.abs(as_float64(fast(x, start)) - expected).max()
    assert ours <= bound
    assert theirs >= 1.2 * ours


def test_rows_that_are_alike_stay_alike():
    """X01: mx.fast.rope on the GPU once turned the first row of a single-token batch alone."""
    row = normal(1, 4, 1, 64)
    x = mx.array(np.concatenate([row, row]))
    for found in (fast(x, 5), by_table(rotary_of(), x, [5])):
        np.testing.assert_array_equal(np.array(found)[0], np.array(found)[1])
        np.testing.assert_allclose(np.array(found)[:1], turned(row.astype(np.float64), [5]), rtol=0, atol=2e-5)


def test_a_collapsed_batch_equals_the_4d_call():
    """X02: (B * H, 1, D) is the same rotation as (B, H, 1, D)."""
    x = mx.array(normal(2, 4, 1, 64))
    flat = x.reshape(8, 1, 64)
    np.testing.assert_array_equal(np.array(fast(flat, 5)), np.array(fast(x, 5)).reshape(8, 1, 64))
    ours = rotary_of()
    cos, sin = ours.cos_sin(mx.array([[5]]))
    np.testing.assert_array_equal(
        np.array(ours(flat, cos[:, 0], sin[:, 0])), np.array(ours(x, cos, sin)).reshape(8, 1, 64)
    )


def test_offsets_by_row_keep_the_shape():
    """S08: a vector of offsets is one a row, not one a token."""
    x = mx.array(normal(2, 8, 1, 32))
    expected = np.concatenate(
        [turned(np.array(x)[row : row + 1].astype(np.float64), [p]) for row, p in ((0, 5), (1, 9))]
    )
    ours = by_table(rotary_of(32), x, [[5], [9]])
    theirs = fast(x, mx.array([5, 9]))
    assert ours.shape == theirs.shape == (2, 8, 1, 32)
    np.testing.assert_allclose(np.array(ours), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.array(theirs), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("channels", "kept"), [("first", slice(12, None)), ("last", slice(None, 8))])
def test_channels_that_are_not_turned_pass_bit_for_bit(channels, kept):
    encoding = RotaryEncoding(width=12, channels=channels, schedule=DefaultSchedule(), attention_factor=1.3)
    spec = AttentionSpec(
        hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=20, v_head_dim=4, scale=1.0, rotary=encoding
    )
    x = normal(2, 3, 4, 20)
    found = np.array(by_table(SITES["rotary"](encoding, table_set(spec)), mx.array(x), [7, 1, 9, 4]))
    np.testing.assert_array_equal(found[..., kept], x[..., kept])
    part = slice(0, 12) if channels == "first" else slice(8, 20)
    expected = 1.3 * turned(x[..., part].astype(np.float64), [7, 1, 9, 4])
    np.testing.assert_allclose(found[..., part], expected, rtol=0, atol=2e-6)
