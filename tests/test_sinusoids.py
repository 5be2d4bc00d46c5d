"""Sinusoidal embeddings against 50 digits, in every order, and the law they obey."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe import tables
from portpe.encodings import SinusoidalEncoding
from portpe.spec import AttentionSpec

FAR = 10_000_000


def layer(**keys):
    sizes = {"hidden_size": 12, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


def some_positions(count, seed):
    fixed = [0, 1, 2, 1023, 1024, 1025, 4095, 131071, FAR - 1]
    return np.concatenate([fixed, np.random.default_rng(seed).integers(0, FAR, count)])


def test_sinusoidal_orders_at_position_one():
    # sin 1, sin 0.01, cos 1, cos 0.01: the same four numbers, three orders.
    sin_1, sin_01, cos_1, cos_01 = 0.8414709848, 0.0099998333, 0.5403023059, 0.9999500004
    expected = {
        "interleaved": [sin_1, cos_1, sin_01, cos_01],  # Vaswani 2017
        "sin_cos": [sin_1, sin_01, cos_1, cos_01],
        "cos_sin": [cos_1, cos_01, sin_1, sin_01],
    }
    for order, row in expected.items():
        got = tables.sinusoid(SinusoidalEncoding(width=4, order=order), np.array([1]))
        assert got[0] == pytest.approx(row, abs=5e-11)


@pytest.mark.parametrize("order", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize(("denominator", "n"), [("half", 6), ("half_minus_one", 5)])
@pytest.mark.parametrize("offset", [0, 2])
def test_sinusoidal_rows_against_50_digits(order, denominator, n, offset):
    encoding = SinusoidalEncoding(width=12, order=order, denominator=denominator, base=10000.0, offset=offset)
    positions = some_positions(4, seed=n)
    got = tables.sinusoid(encoding, positions)
    assert got.shape == (len(positions), 12)
    channel = {
        "interleaved": lambda i: (2 * i, 2 * i + 1),
        "sin_cos": lambda i: (i, 6 + i),
        "cos_sin": lambda i: (6 + i, i),
    }[order]
    made = tables.table_set(layer(embedding=encoding), FAR)
    cos, sin = tables.combine(made, positions, prefix="embedding_")
    arranged = tables.arrange(encoding, cos, sin)
    with mpmath.workdps(50):
        for row, position in enumerate(positions):
            for i in range(6):
                angle = (int(position) + offset) * mpmath.mpf(10000) ** (-mpmath.mpf(i) / n)
                at_sin, at_cos = channel(i)
                for at, exact in ((at_sin, mpmath.sin(angle)), (at_cos, mpmath.cos(angle))):
                    assert abs(got[row, at] - float(exact)) <= 3e-9
                    assert abs(arranged[row, at] - float(exact)) <= 2e-7


@pytest.mark.parametrize(
    ("order", "denominator", "channels"),
    [
        ("interleaved", "half", ["s0", "c0", "s1", "c1", "s2"]),
        ("sin_cos", "half", ["s0", "s1", "s2", "c0", "c1"]),
        ("sin_cos", "half_minus_one", ["s0", "s1", "c0", "c1", "0"]),
        ("cos_sin", "half_minus_one", ["c0", "c1", "s0", "s1", "0"]),
    ],
)
def test_odd_widths_and_a_scale(order, denominator, channels):
    """Five channels: 10000 ** (-2i/5) of the paper, 10000 ** -i where two frequencies span the base."""
    encoding = SinusoidalEncoding(width=5, order=order, denominator=denominator, offset=2, scale=0.3)
    positions = np.array([0, 5, 1023, 70000, 3])
    made = tables.table_set(layer(hidden_size=5, embedding=encoding), 71000)
    looked_up = tables.arrange(encoding, *tables.combine(made, positions, prefix="embedding_"))
    exact = tables.sinusoid(encoding, positions)
    for row, position in enumerate(positions):
        for at, name in enumerate(channels):
            expected = 0.0
            if name != "0":
                exponent = -2 * int(name[1]) / 5 if denominator == "half" else -int(name[1])
                angle = (int(position) + 2) * mpmath.mpf(10000) ** mpmath.mpf(exponent)
                expected = 0.3 * float(mpmath.sin(angle) if name[0] == "s" else mpmath.cos(angle))
            assert exact[row, at] == pytest.approx(expected, abs=1e-11)
            assert looked_up[row, at] == pytest.approx(expected, abs=6e-8)


def test_mlx_has_another_sinusoid_by_the_same_name():
    import mlx.core as mx
    import mlx.nn as nn

    theirs = np.array(nn.SinusoidalPositionalEncoding(4)(mx.array([1.0])), dtype=np.float64)[0]
    assert theirs == pytest.approx([0.59500981, 7.07106883e-05, 0.38205141, 0.70710677], abs=1e-6)
    for order in ("interleaved", "sin_cos", "cos_sin"):
        for denominator in ("half", "half_minus_one"):
            ours = tables.sinusoid(SinusoidalEncoding(width=4, order=order, denominator=denominator), np.array([1]))[0]
            assert np.max(np.abs(theirs - ours)) > 0.1


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, FAR), st.integers(0, 100_000), st.sampled_from(["interleaved", "sin_cos", "cos_sin"]), st.booleans()
)
def test_moving_a_sinusoid_is_a_rotation_that_depends_on_the_step_alone(position, step, order, minus_one):
    width = 16
    encoding = SinusoidalEncoding(
        width=width, order=order, denominator="half_minus_one" if minus_one else "half", offset=3
    )
    channels = {
        "interleaved": (slice(0, None, 2), slice(1, None, 2)),
        "sin_cos": (slice(0, 8), slice(8, None)),
        "cos_sin": (slice(8, None), slice(0, 8)),
    }[order]
    sin, cos = (tables.sinusoid(encoding, np.array(position))[c] for c in channels)
    moved_sin, moved_cos = (tables.sinusoid(encoding, np.array(position + step))[c] for c in channels)
    turn = step * 10000.0 ** (-np.arange(8) / (7 if minus_one else 8))
    assert moved_sin == pytest.approx(sin * np.cos(turn) + cos * np.sin(turn), abs=2e-8)
    assert moved_cos == pytest.approx(cos * np.cos(turn) - sin * np.sin(turn), abs=2e-8)
