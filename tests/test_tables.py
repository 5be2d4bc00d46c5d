"""Cosines and sines against 50 digits, the tables made of them, and what low-precision angles do."""

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe import tables
from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
    LinearSchedule,
    Llama3Schedule,
    ProportionalSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

FAR = 10_000_000


def layer(**keys):
    sizes = {"hidden_size": 24, "num_heads": 6, "num_kv_heads": 2, "head_dim": 128, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


def rope(width=128, theta=10000.0, **keys):
    return RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=theta), **keys)


def some_positions(count, end, seed):
    fixed = [0, 1, 2, 1023, 1024, 1025, 4095, 4096, 131071, end - 1]
    drawn = np.random.default_rng(seed).integers(0, end, count)
    return np.concatenate([np.array([p for p in fixed if p < end]), drawn])


def mp_cos_sin(theta, width, position, i, factor=1.0, attention_factor=1.0):
    """cos and sin of pair i at a position, times the attention factor, with 50 digits."""
    angle = position * mpmath.mpf(theta) ** (-mpmath.mpf(2 * i) / width) / mpmath.mpf(factor)
    return mpmath.cos(angle) * attention_factor, mpmath.sin(angle) * attention_factor


@pytest.mark.parametrize("attention_factor", [1.0, 0.7, 1.3466, 2.5])
@pytest.mark.parametrize(("theta", "width"), [(10000.0, 128), (500000.0, 128), (1000000.0, 64), (150000.0, 8)])
def test_exact_values_hold_to_position_ten_million(theta, width, attention_factor):
    rotary = rope(width, theta, attention_factor=attention_factor)
    positions = some_positions(12, FAR + 1, seed=width)
    cos, sin = tables.cos_sin(rotary, positions)
    assert cos.shape == sin.shape == (len(positions), width // 2)
    loudest = max(1.0, attention_factor)
    with mpmath.workdps(50):
        for row, position in enumerate(positions):
            for i in {0, 1, width // 4, width // 2 - 1}:
                exact = mp_cos_sin(theta, width, int(position), i, attention_factor=mpmath.mpf(attention_factor))
                for got, truth in zip((cos[row, i], sin[row, i]), exact, strict=True):
                    assert abs(mpmath.mpf(float(got)) - truth) <= 3e-9 * loudest
                    in_float32 = np.float32(got)
                    half_ulp = float(np.spacing(np.abs(np.float32(float(truth))))) / 2
                    assert abs(mpmath.mpf(float(in_float32)) - truth) <= (half_ulp + 5e-9) * loudest


def test_scaled_schedules_reach_the_table():
    # Position 131071 under factor 8 is position 16383.875 without it.
    rotary = RotaryEncoding(width=16, schedule=LinearSchedule(rope_theta=500000.0, factor=8.0))
    cos, sin = tables.cos_sin(rotary, np.array([131071]))
    with mpmath.workdps(50):
        for i in range(8):
            exact = mp_cos_sin(500000.0, 16, 131071, i, factor=8.0)
            assert (cos[0, i], sin[0, i]) == pytest.approx([float(v) for v in exact], abs=1e-11)


@pytest.mark.parametrize("attention_factor", [0.5, 1.0, 1.0693, 1.1386294361119891, 1.2079, 1.3466, 1.4159, 3.0])
def test_two_levels_in_float32_stay_within_2e_7(attention_factor):
    rotary = rope(64, 500000.0, attention_factor=attention_factor)
    made = tables.table_set(layer(rotary=rotary), FAR)
    positions = some_positions(30_000, FAR, seed=3)
    for got, truth in zip(tables.combine(made, positions), tables.cos_sin(rotary, positions), strict=True):
        assert got.dtype == np.float32
        assert np.max(np.abs(got - truth)) <= 2e-7 * max(1.0, attention_factor)


def test_table_rows_are_rounded_once():
    rotary = rope(32, 500000.0, attention_factor=1.25)
    made = tables.table_set(layer(rotary=rotary), 4 * tables.TABLE_STEP)
    assert {name: (rows.shape, rows.dtype.name) for name, rows in made.items()} == {
        "cos_hi": ((4, 16), "float32"),
        "sin_hi": ((4, 16), "float32"),
        "cos_lo": ((1024, 16), "float32"),
        "sin_lo": ((1024, 16), "float32"),
    }
    with mpmath.workdps(50):
        for row, i in [(0, 0), (1, 3), (3, 15)]:
            cos, sin = mp_cos_sin(500000.0, 32, row * 1024, i, attention_factor=mpmath.mpf("1.25"))
            assert made["cos_hi"][row, i] == np.float32(float(cos))
            assert made["sin_hi"][row, i] == np.float32(float(sin))
        for row, i in [(1, 0), (77, 3), (1023, 15)]:
            cos, sin = mp_cos_sin(500000.0, 32, row, i)
            assert made["cos_lo"][row, i] == np.float32(float(cos))
            assert made["sin_lo"][row, i] == np.float32(float(sin))


def test_tables_are_the_same_every_time():
    spec = layer(rotary=rope(), bias=(AlibiEncoding(),))
    first, second = tables.table_set(spec, 5000), tables.table_set(spec, 5000)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_a_row_does_not_depend_on_the_rows_asked_for_with_it():
    rotary = rope(80, 10000.0)
    positions = some_positions(500, FAR, seed=11)
    cos, sin = tables.cos_sin(rotary, positions)
    for n in (1, 2, 3, 7, 33):
        some_cos, some_sin = tables.cos_sin(rotary, positions[5 : 5 + n])
        assert np.array_equal(some_cos, cos[5 : 5 + n])
        assert np.array_equal(some_sin, sin[5 : 5 + n])


def test_a_table_that_grows_keeps_its_rows():
    # yarn, factor 40: rows past the first table take the same scaling and the same magnitude.
    schedule = YarnSchedule(factor=40.0, original_max_position_embeddings=4096, mscale=1.3, mscale_all_dim=1.0)
    rotary = RotaryEncoding(width=64, schedule=schedule)
    assert rotary.magnitude != 1.0
    whole = tables.cos_sin(rotary, np.arange(4352))
    grown = [tables.cos_sin(rotary, np.arange(start, stop)) for start, stop in ((0, 4096), (4096, 4352))]
    for part, both in enumerate(whole):
        assert np.array_equal(np.concatenate([portion[part] for portion in grown]), both)
    spec = layer(rotary=rotary)
    short, long = tables.table_set(spec, 4096), tables.table_set(spec, 4352)
    assert np.array_equal(long["cos_hi"][:4], short["cos_hi"])
    assert np.array_equal(long["cos_lo"], short["cos_lo"])


def test_sign_minus_one_negates_the_sines_of_both_levels():
    plus, minus = rope(16), rope(16, sign=-1)
    positions = some_positions(100, 2**20, seed=5)
    cos, sin = tables.cos_sin(plus, positions)
    assert np.array_equal(tables.cos_sin(minus, positions)[0], cos)
    assert np.array_equal(tables.cos_sin(minus, positions)[1], -sin)
    two_level = [tables.combine(tables.table_set(layer(rotary=r)), positions) for r in (plus, minus)]
    assert np.array_equal(two_level[1][0], two_level[0][0])
    assert np.array_equal(two_level[1][1], -two_level[0][1])


# --- sinusoidal embeddings --------------------------------------------------------------------


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
    positions = some_positions(4, FAR, seed=n)
    got = tables.sinusoid(encoding, positions)
    assert got.shape == (len(positions), 12)
    channel = {
        "interleaved": lambda i: (2 * i, 2 * i + 1),
        "sin_cos": lambda i: (i, 6 + i),
        "cos_sin": lambda i: (6 + i, i),
    }[order]
    made = tables.table_set(layer(hidden_size=12, embedding=encoding), FAR)
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


# --- the laws of rotation ---------------------------------------------------------------------


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


# --- low-precision angles ---------------------------------------------------------------------


class TestLowPrecisionAngles:
    """Casts that deployments make by accident: how bad each is, and that no table of ours has it."""

    THETA = 10000.0 ** (-np.arange(64) / 64)

    def worst_cos(self, positions, inv_freq):
        return np.max(
            np.abs(np.cos(np.multiply.outer(positions, inv_freq)) - np.cos(np.multiply.outer(positions, self.THETA)))
        )

    @pytest.mark.parametrize(
        ("low", "position", "error"),
        [
            (ml_dtypes.bfloat16, 4095, 1.6788301467895508),
            (np.float16, 4095, 0.8948813676834106),
            (np.float16, 32767, 1.9260175228118896),
        ],
    )
    def test_inverse_frequencies_cast_down(self, low, position, error):
        cast = self.THETA.astype(low).astype(np.float64)
        assert self.worst_cos(np.array([position]), cast) == pytest.approx(error, rel=2e-3)
        self.our_table_is_free_of_it(position)

    def test_bfloat16_frequencies_turn_by_whole_radians_too_much(self):
        cast = self.THETA.astype(ml_dtypes.bfloat16).astype(np.float64)
        assert np.max(np.abs(4095 * (cast - self.THETA))) == pytest.approx(5.0087890625, rel=1e-3)

    def test_float16_positions_collide(self):
        for n, distinct in ((4096, 3073), (32768, 6145)):
            assert len(np.unique(np.arange(n).astype(np.float16))) == distinct
        assert [float(np.float16(p)) for p in (4173, 4174, 2049)] == [4172.0, 4176.0, 2048.0]
        spec = layer(rotary=rope())
        cos, sin = tables.combine(tables.table_set(spec), np.arange(32768))
        assert len(np.unique(np.concatenate([cos, sin], axis=-1), axis=0)) == 32768

    def test_bfloat16_positions_lose_the_fastest_pair(self):
        position = 15962
        cast = float(np.array(position).astype(ml_dtypes.bfloat16))
        assert cast == 15936.0
        assert (math.cos(position), math.cos(cast)) == pytest.approx((-0.908015901251032, -0.2679500710721), abs=1e-9)
        cos, _ = tables.combine(tables.table_set(layer(rotary=rope())), np.array([position]))
        assert cos[0, 0] == pytest.approx(-0.908015901251032, abs=1.5e-7)

    @pytest.mark.parametrize(("position", "error"), [(131072, 7e-3), (1_000_000, 5.7e-2), (10_000_000, 0.76)])
    def test_float32_angles_are_wrong_far_out(self, position, error):
        near = np.arange(position - 2000, position + 1)
        single = np.float32(1) / np.float32(10000.0) ** (np.arange(0, 128, 2).astype(np.float32) / np.float32(128))
        angles = near.astype(np.float32)[:, None] * single
        assert angles.dtype == np.float32
        off = np.max(np.abs(np.cos(angles.astype(np.float64)) - np.cos(np.multiply.outer(near, self.THETA))))
        assert error / 3 < off < error * 1.5
        self.our_table_is_free_of_it(position)

    def our_table_is_free_of_it(self, position):
        made = tables.table_set(layer(rotary=rope()), position + 1)
        cos, sin = tables.combine(made, np.array([position]))
        with mpmath.workdps(50):
            for i in range(0, 64, 7):
                exact = mp_cos_sin(10000.0, 128, position, i)
                assert (float(cos[0, i]), float(sin[0, i])) == pytest.approx([float(v) for v in exact], abs=2e-7)

    @pytest.mark.parametrize("bad", [np.array([1.0]), np.array([3], dtype=np.float16), [0.5], np.array([True])])
    def test_positions_that_are_no_integers_are_refused(self, bad):
        with pytest.raises(SpecError, match="positions must be integers, got"):
            tables.cos_sin(rope(4), bad)
        with pytest.raises(SpecError, match="positions must be integers, got"):
            tables.sinusoid(SinusoidalEncoding(width=4), bad)


# --- how far tables reach ---------------------------------------------------------------------


YARN = YarnSchedule(factor=4.0, original_max_position_embeddings=32768)
LLAMA3 = Llama3Schedule(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192, rope_theta=500000.0
)


@pytest.mark.parametrize(
    ("keys", "exact", "hf"),
    [
        ({"rotary": rope(), "max_position_embeddings": 2048}, 2**20, 2048),
        ({"rotary": rope(), "max_position_embeddings": 2**20 + 1}, 2**20 + 1024, 2**20 + 1),
        ({"rotary": RotaryEncoding(width=8, schedule=YARN), "max_position_embeddings": 40960}, 2**20, 131072),
        ({"rotary": RotaryEncoding(width=8, schedule=LLAMA3), "max_position_embeddings": 131072}, 2**20, 131072),
        (
            {
                "rotary": RotaryEncoding(width=8, schedule=LinearSchedule(factor=2.5)),
                "max_position_embeddings": 1001,
            },
            2**20,
            2503,
        ),
        (
            {
                "rotary": RotaryEncoding(
                    width=8,
                    schedule=DynamicSchedule(factor=2.0, max_position_embeddings=64),
                    regime=FixedRegime(length=3_000_001),
                )
            },
            3_000_320,
            3_000_001,
        ),
        ({"embedding": SinusoidalEncoding(width=24, rows=1500, offset=2)}, 2**20, 1498),
    ],
)
def test_default_end(keys, exact, hf):
    spec = layer(**keys)
    assert tables.default_end(spec) == exact
    assert tables.default_end(spec.with_precision("hf")) == hf


def test_hf_tables_need_a_length():
    with pytest.raises(SpecError, match=r"max_position_embeddings is required .* got None; give --table-positions"):
        tables.default_end(layer(rotary=rope(precision="hf")))


def test_end_of_is_the_first_position_without_a_row():
    learned = LearnedEncoding(rows=50, width=24, offset=2)
    bounded = SinusoidalEncoding(width=24, rows=1500, offset=1)
    for keys, asked, end in [
        ({"rotary": rope()}, 5000, 5120),
        ({"rotary": rope(), "embedding": learned}, 5000, 48),
        ({"embedding": learned}, None, 48),
        ({"embedding": SinusoidalEncoding(width=24)}, 1025, 2048),
        ({"embedding": bounded}, None, 1499),
        ({"embedding": bounded}, 1000, 1024),
        ({"bias": (AlibiEncoding(),)}, None, None),
        ({}, None, None),
    ]:
        spec = layer(**keys)
        assert tables.end_of(spec, tables.table_set(spec, asked)) == end


def test_a_sinusoidal_table_has_no_step_past_the_models_own():
    encoding = SinusoidalEncoding(width=24, rows=1026, offset=2)  # positions 0 to 1023
    made = tables.table_set(layer(embedding=encoding))
    assert made["embedding_cos_hi"].shape == (1, 12)
    hf = tables.table_set(layer(embedding=encoding).with_precision("hf"))
    assert hf["embedding"].shape == (1024, 24)


def test_positions_outside_a_table_are_refused():
    made = tables.table_set(layer(rotary=rope(8)), 2048)
    assert tables.combine(made, np.array([2047]))[0].shape == (1, 4)
    with pytest.raises(SpecError, match="positions must be < 2048, the end of the position table, got 2048"):
        tables.combine(made, np.array([5, 2048]))
    with pytest.raises(SpecError, match="positions must be >= 0, got -1"):
        tables.combine(made, np.array([-1]))
    full = {"cos": np.zeros((7, 4), np.float32), "sin": np.zeros((7, 4), np.float32)}
    with pytest.raises(SpecError, match="positions must be < 7"):
        tables.combine(full, np.array([[7]]))
    assert tables.combine(full, np.zeros((2, 0), dtype=np.int64))[0].shape == (2, 0, 4)


def test_a_length_dependent_layer_has_tables_only_under_a_regime():
    schedule = DynamicSchedule(factor=2.0, max_position_embeddings=64)
    with pytest.raises(SpecError, match="seq_len is required for the length-dependent schedule dynamic"):
        tables.table_set(layer(rotary=RotaryEncoding(width=8, schedule=schedule)))
    fixed = RotaryEncoding(width=8, schedule=schedule, regime=FixedRegime(length=200))
    made = tables.table_set(layer(rotary=fixed), 100)
    truth = tables.cos_sin(RotaryEncoding(width=8, schedule=schedule), np.array([99]), 200)
    assert tables.combine(made, np.array([99]))[0] == pytest.approx(truth[0], abs=2e-7)


def test_table_sets_by_kind():
    names = {
        "none": ({}, set()),
        "learned": ({"embedding": LearnedEncoding(rows=9, width=24)}, set()),
        "alibi": ({"bias": (AlibiEncoding(),)}, {"slopes"}),
        "both": (
            {"rotary": rope(), "embedding": SinusoidalEncoding(width=24)},
            {
                f"{site}{wave}_{level}"
                for site in ("", "embedding_")
                for wave in ("cos", "sin")
                for level in ("hi", "lo")
            },
        ),
    }
    for keys, expected in names.values():
        assert set(tables.table_set(layer(**keys))) == expected
    slopes = tables.table_set(layer(bias=(AlibiEncoding(scale=0.125),)))["slopes"]
    assert slopes.dtype == np.float32
    assert slopes == pytest.approx([2**-5, 2**-7, 2**-9, 2**-11, 2**-4, 2**-6], rel=1e-7)
    with pytest.raises(SpecError, match="table_positions must be >= 1, got 0"):
        tables.table_set(layer(rotary=rope()), 0)
    with pytest.raises(SpecError, match="bias must hold at most one alibi"):
        tables.table_set(layer(bias=(AlibiEncoding(), AlibiEncoding(symmetric=True))))
