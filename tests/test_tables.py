"""Cosines and sines against 50 digits, the tables made of them, and what low-precision angles do."""

import mpmath
import numpy as np
import pytest

from portpe import tables
from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
    LinearSchedule,
    Llama3Schedule,
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
