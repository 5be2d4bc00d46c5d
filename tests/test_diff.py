"""Comparing specs: every expected position is worked out here, from the laws themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portpe.diff import compare
from portpe.encodings import (
    AlibiEncoding,
    BucketsEncoding,
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    LearnedEncoding,
    LinearSchedule,
    LongropeSchedule,
    ProportionalSchedule,
    RotaryEncoding,
    SandwichEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.spec import AttentionSpec

HALF_ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def spec(**fields):
    return AttentionSpec(
        **{"hidden_size": 24, "num_heads": 3, "num_kv_heads": 3, "head_dim": 8, "v_head_dim": 8, "scale": 0.5} | fields
    )


def rotary(schedule, width=8, **fields):
    return spec(rotary=RotaryEncoding(width=width, schedule=schedule, **fields))


def first_by_hand(f, g, last, threshold, a=1.0, b=1.0):
    """The first position whose cos or sin differ, in extended precision."""
    p = np.arange(last, dtype=np.longdouble)[:, None]
    f, g = np.asarray(f, np.longdouble), np.asarray(g, np.longdouble)
    cos = np.abs(a * np.cos(p * f) - b * np.cos(p * g)).max(1)
    sin = np.abs(a * np.sin(p * f) - b * np.sin(p * g)).max(1)
    over = np.flatnonzero(np.maximum(cos, sin) > threshold)
    return int(over[0]) if over.size else None


def default_frequencies(base, width):
    return np.longdouble(base) ** (-np.arange(0, width, 2, dtype=np.longdouble) / width)


def test_equal_specs_have_no_differences():
    result = compare(rotary(DefaultSchedule()), rotary(DefaultSchedule()))
    assert result.differences == ()
    assert result.same_numbers


@pytest.mark.parametrize("theta", [500000.0, 10000.001, 10000.000001])
def test_a_base_shows_from_the_position_worked_out_by_hand(theta):
    result = compare(rotary(DefaultSchedule()), rotary(DefaultSchedule(rope_theta=theta)))
    (difference,) = result.differences
    assert difference.field == "rotary.schedule.rope_theta"
    assert (difference.left, difference.right) == (10000.0, theta)
    f, g = default_frequencies(10000.0, 8), default_frequencies(theta, 8)
    for dtype, threshold in HALF_ULP.items():
        by_hand = first_by_hand(f, g, 60_000, threshold)
        found = difference.seen.get(dtype)
        assert found == by_hand or (by_hand is None and (found is None or found >= 60_000))
    assert not result.same_numbers


def test_positions_past_the_horizon_are_not_searched():
    result = compare(rotary(DefaultSchedule()), rotary(DefaultSchedule(rope_theta=10000.000001)), horizon=100)
    assert result.same_numbers
    assert result.horizon == 100
    assert result.differences[0].first_position is None


def test_two_laws_of_the_same_numbers_are_the_same():
    whole = compare(rotary(DefaultSchedule()), rotary(ProportionalSchedule()), horizon=5000)
    assert whole.same_numbers
    assert "rotary.schedule.kind" in [difference.field for difference in whole.differences]
    unscaled = compare(rotary(DefaultSchedule()), rotary(LinearSchedule(factor=1.0)), horizon=5000)
    assert unscaled.same_numbers


def test_an_attention_factor_shows_at_position_0():
    law = {"factor": 4.0, "original_max_position_embeddings": 32}
    result = compare(rotary(YarnSchedule(**law)), rotary(YarnSchedule(**law), attention_factor=1.0))
    assert result.differences[0].seen == {"float32": 0, "float16": 0, "bfloat16": 0}


def test_longrope_shows_one_token_past_the_original_length():
    law = LongropeSchedule(
        short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_max_position_embeddings=64, factor=1.0
    )
    result = compare(rotary(DefaultSchedule()), rotary(law))
    assert {difference.first_position for difference in result.differences} == {64}


def test_longrope_fixed_to_its_long_set_shows_at_once():
    law = LongropeSchedule(
        short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_max_position_embeddings=64, factor=1.0
    )
    result = compare(rotary(DefaultSchedule()), rotary(law, regime={"kind": "fixed", "length": 100}))
    assert {difference.first_position for difference in result.differences} == {1}


BY_ROW, BY_CAPACITY = {"kind": "per_sequence"}, {"kind": "fixed", "length": 100}


def test_a_server_that_chooses_by_capacity_differs_in_short_prompts():
    """LongRoPE by sequence and by a capacity past the original length: other numbers at once, the same from 65 on."""
    law = LongropeSchedule(
        short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_max_position_embeddings=64, factor=1.0
    )
    by_sequence, by_capacity = (rotary(law, regime=regime) for regime in (BY_ROW, BY_CAPACITY))
    found = {difference.field: difference for difference in compare(by_sequence, by_capacity).differences}
    assert found["rotary.regime.kind"].left == "per_sequence"
    assert found["rotary.regime.kind"].right == "fixed"
    assert found["rotary.regime.kind"].first_position == 1
    short = rotary(law, regime={"kind": "fixed", "length": 64})
    assert {difference.first_position for difference in compare(by_sequence, short).differences} == {64}


def test_dynamic_yarn_shows_one_token_past_the_original_length():
    law = DynamicYarnSchedule(original_max_position_embeddings=50)
    for regime in (None, BY_ROW):
        result = compare(rotary(DefaultSchedule()), rotary(law, regime=regime))
        assert {difference.first_position for difference in result.differences} == {50}


@pytest.mark.parametrize("factor", [1.0005, 8.0])
def test_dynamic_shows_at_the_length_worked_out_by_hand(factor):
    limit, width = 50, 8
    result = compare(rotary(DefaultSchedule()), rotary(DynamicSchedule(factor=factor, max_position_embeddings=limit)))
    f = default_frequencies(10000.0, width)
    for dtype, threshold in HALF_ULP.items():
        for length in range(limit, 20_000):
            stretch = (factor * length / limit) - (factor - 1)
            g = default_frequencies(10000.0 * stretch ** (width / (width - 2)), width)
            if first_by_hand(f, g, length, threshold) is not None:
                break
        assert {difference.seen[dtype] for difference in result.differences} == {length - 1}


@pytest.mark.parametrize(
    ("field", "value", "first"),
    [("pairing", "interleaved", 1), ("channels", "last", 1), ("sign", -1, 1), ("width", 6, 1)],
)
def test_another_pairing_or_sign_shows_at_position_1(field, value, first):
    plain = {"width": 6 if field == "channels" else 8, "schedule": DefaultSchedule()}
    result = compare(spec(rotary=RotaryEncoding(**plain)), spec(rotary=RotaryEncoding(**plain | {field: value})))
    assert result.differences[0].field == f"rotary.{field}"
    assert result.differences[0].first_position == first


def test_no_rotary_against_one():
    assert compare(spec(), rotary(DefaultSchedule())).differences[0].first_position == 1
    scaled = compare(spec(), rotary(DefaultSchedule(), attention_factor=1.25))
    assert scaled.differences[0].first_position == 0


def test_windows_part_at_the_slot_that_loses_a_key():
    (difference,) = compare(spec(window=4), spec(window=7)).differences
    assert (difference.unit, difference.first_position) == ("slot", 4)
    (difference,) = compare(spec(), spec(window=5)).differences
    assert difference.first_position == 5
    (difference,) = compare(spec(causal=False, window_radius=2), spec(causal=False)).differences
    assert (difference.unit, difference.first_position) == ("distance", 3)


def test_a_scale_needs_two_keys_and_a_sink_one():
    assert compare(spec(), spec(scale=0.25)).differences[0].first_position == 1
    assert compare(spec(), spec(sinks=True)).differences[0].first_position == 0


def test_names_change_no_numbers():
    result = compare(spec(contract="hf"), spec(contract="paper", max_position_embeddings=99))
    assert [difference.field for difference in result.differences] == ["max_position_embeddings", "contract"]
    assert result.same_numbers


def test_learned_tables_part_where_the_shorter_one_ends():
    def learned(rows, offset=0):
        return spec(embedding=LearnedEncoding(rows=rows, width=24, offset=offset))

    assert compare(learned(40), learned(60)).differences[0].first_position == 40
    assert compare(learned(42, 2), learned(60, 2)).differences[0].first_position == 40
    assert compare(learned(42, 2), learned(42)).differences[0].first_position == 0
    assert compare(spec(), learned(42)).differences[0].first_position == 0


def test_sinusoids():
    def sines(**fields):
        return spec(embedding=SinusoidalEncoding(**{"width": 24} | fields))

    assert compare(sines(), sines(offset=1)).differences[0].first_position == 0
    assert compare(sines(), sines(order="sin_cos")).differences[0].first_position == 0
    assert compare(sines(rows=30), sines(rows=50)).differences[0].first_position == 30
    # at position 0 every base gives sin 0 and cos 0
    assert compare(sines(), sines(base=9999.0)).differences[0].first_position == 1


def test_alibi_by_distance():
    def alibi(causal=True, **fields):
        return spec(causal=causal, bias=(AlibiEncoding(**fields),))

    # slopes of three heads: 1/16, 1/256 and 1/4; a scale of 1 + s changes 1/4 most
    (difference,) = compare(alibi(), alibi(scale=1 + 2.0**-30)).differences
    assert difference.unit == "distance"
    assert difference.seen == {"float32": 2**8 + 1}  # d * 2**-32 > 2**-24
    assert compare(alibi(), alibi(symmetric=True)).same_numbers
    assert not compare(alibi(causal=False), alibi(causal=False, symmetric=True)).same_numbers
    assert compare(alibi(contract="bloom"), alibi(contract="mpt")).same_numbers
    assert compare(spec(), alibi()).differences[0].first_position == 1


def test_buckets_by_distance():
    def with_buckets(causal=True, **fields):
        return spec(causal=causal, bias=(BucketsEncoding(bidirectional=False, **fields),))

    # of 32 buckets 16 hold one distance each; the first wide one ends at 16 * (128 / 16)^(1 / 16) = 18.2, or at
    # 16 * (64 / 16)^(1 / 16) = 17.4: 18 is the first distance that has another row
    found = compare(with_buckets(), with_buckets(max_distance=64))
    assert [(one.field, one.unit, one.first_position) for one in found.differences] == [
        ("bias.0.max_distance", "distance", 18)
    ]
    assert compare(with_buckets(), with_buckets(num_buckets=20)).differences[0].first_position == 11
    assert compare(with_buckets(), spec(bias=(BucketsEncoding(),))).differences[0].first_position == 9
    two_way = [spec(causal=False, bias=(BucketsEncoding(bidirectional=b),)) for b in (True, False)]
    assert compare(*two_way).differences[0].first_position == 1  # keys ahead share the row of distance 0, or do not
    # a trained number stands at distance 0 too, and ALiBi adds nothing there
    assert compare(with_buckets(), spec(bias=(AlibiEncoding(),))).differences[0].first_position == 0
    (scaled,) = compare(with_buckets(), with_buckets(scale=0.5)).differences
    assert (scaled.field, scaled.first_position, scaled.tensors) == ("bias.0.scale", 0, "same")


def test_sandwiches_by_distance():
    def sandwich(base):
        return spec(bias=(SandwichEncoding(width=4, base=base),))

    (difference,) = compare(sandwich(100.0), sandwich(100.0 * (1 + 2.0**-20))).differences
    assert difference.unit == "distance"
    # the second wave's angle d / 10 is off by d * 2^-21 / 10, its cosine by sin(d / 10) times that: of 16 at distance 0
    assert difference.seen["float32"] > 1
    assert difference.seen["float32"] < difference.seen["float16"]
    assert compare(sandwich(100.0), sandwich(200.0)).differences[0].first_position == 1


@given(st.floats(1e2, 1e6), st.floats(1e2, 1e6), st.sampled_from([2, 4, 8]))
def test_comparing_is_symmetric(one, other, width):
    left, right = rotary(DefaultSchedule(rope_theta=one), width), rotary(DefaultSchedule(rope_theta=other), width)
    there, back = compare(left, right, horizon=3000), compare(right, left, horizon=3000)
    assert [d.seen for d in there.differences] == [d.seen for d in back.differences]
    assert compare(left, left).differences == ()
