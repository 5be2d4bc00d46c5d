"""What rotation by position must obey, whatever the pairing, also at positions near ten million."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe import tables
from portpe.encodings import DefaultSchedule, ProportionalSchedule, RotaryEncoding

FAR = 10_000_000


def rope(width=128, theta=10000.0, **keys):
    return RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=theta), **keys)


def turned(rotary, x, position):
    """x (..., width) turned at a position by a 2x2 matrix a pair, the first of the three views."""
    cos, sin = (values[0] for values in tables.cos_sin(rotary, np.array([position])))
    out = np.empty_like(x)
    for i in range(rotary.width // 2):
        first, second = (i, i + rotary.width // 2) if rotary.pairing == "half" else (2 * i, 2 * i + 1)
        matrix = np.array([[cos[i], -sin[i]], [sin[i], cos[i]]])
        out[..., [first, second]] = x[..., [first, second]] @ matrix.T
    return out


def test_half_and_interleaved_pairing_by_hand():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    half, interleaved = (turned(rope(4, pairing=p), x, 1) for p in ("half", "interleaved"))
    assert half == pytest.approx([-1.98411065, 1.95990067, 2.4623779, 4.01979967], abs=5e-9)
    assert interleaved == pytest.approx([-1.14263966, 1.9220756, 2.95985067, 4.0297995], abs=5e-9)


def test_proportional_pairs_span_the_head():
    rotary = RotaryEncoding(width=8, schedule=ProportionalSchedule(partial_rotary_factor=0.5))
    got = turned(rotary, np.arange(1.0, 9.0), 1)
    assert got == pytest.approx([-3.66705262, 1.39100783, 3, 4, 3.54298251, 6.16969182, 7, 8], abs=5e-9)


near_and_far = st.one_of(st.integers(0, 5000), st.integers(FAR - 5000, FAR))
vectors = st.lists(st.floats(-8, 8), min_size=24, max_size=24).map(np.array)
signs = st.sampled_from([1, -1])
pairings = st.sampled_from(["half", "interleaved"])


@settings(max_examples=150, deadline=None)
@given(vectors, near_and_far, st.integers(0, 3000), st.integers(0, FAR), pairings, signs)
def test_scores_depend_on_the_distance_alone(both, start, distance, shift, pairing, sign):
    q, k = both[:12], both[12:]
    rotary = rope(12, 500000.0, pairing=pairing, sign=sign)
    here = turned(rotary, q, start + distance) @ turned(rotary, k, start)
    there = turned(rotary, q, shift + distance) @ turned(rotary, k, shift)
    # The angles of positions near ten million are good to 2e-9 each.
    assert here == pytest.approx(there, abs=1e-8 * (1 + np.abs(q) @ np.abs(k) + q @ q + k @ k))


@settings(max_examples=100, deadline=None)
@given(vectors, near_and_far, pairings, signs, st.sampled_from([1.0, 1.3466]))
def test_rotation_keeps_the_norm_and_the_attention_factor_scales_it(x, position, pairing, sign, attention_factor):
    rotary = rope(24, 10000.0, pairing=pairing, sign=sign, attention_factor=attention_factor)
    norm = np.linalg.norm(turned(rotary, x, position))
    assert norm == pytest.approx(attention_factor * np.linalg.norm(x), rel=1e-13, abs=1e-300)


@settings(max_examples=100, deadline=None)
@given(vectors, near_and_far, pairings, signs)
def test_three_views_of_a_rotation_are_equal(x, position, pairing, sign):
    rotary = rope(24, 10000.0, pairing=pairing, sign=sign)
    cos, sin = (values[0] for values in tables.cos_sin(rotary, np.array([position])))
    matrices = turned(rotary, x, position)
    if pairing == "half":
        product = (x[:12] + 1j * x[12:]) * (cos + 1j * sin)
        complexes = np.concatenate([product.real, product.imag])
        halves = x * np.tile(cos, 2) + np.concatenate([-x[12:], x[:12]]) * np.tile(sin, 2)
    else:
        product = (x[::2] + 1j * x[1::2]) * (cos + 1j * sin)
        complexes = np.stack([product.real, product.imag], axis=-1).reshape(-1)
        halves = x * np.repeat(cos, 2) + np.stack([-x[1::2], x[::2]], axis=-1).reshape(-1) * np.repeat(sin, 2)
    assert complexes == pytest.approx(matrices, abs=1e-13)
    assert halves == pytest.approx(matrices, abs=1e-13)
