"""Frequencies against their formulas at 50 digits, and against numbers worked out elsewhere."""

import decimal
import math
import time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe import schedules
from portpe.encodings import (
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    FixedRegime,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    ProportionalSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.errors import SpecError

WIDTHS = [4, 6, 16, 64, 80, 96, 128, 192, 256, 512]
BASES = [1e4, 5e5, 1e6, 150000.0, 25000000.0, 1234.5678]


# Formulas at 50 digits, written from the papers and from transformers' documented keys.


def mp_theta(base, width):
    return [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / width) for i in range(width // 2)]


def mp_rebased(base, stretch, width):
    return mp_theta(mpmath.mpf(base) * stretch ** (mpmath.mpf(width) / (width - 2)), width)


def mp_ramp(s, width):
    def index_of(turns):
        original = mpmath.mpf(s.original_max_position_embeddings)
        return width * mpmath.log(original / (2 * mpmath.pi * mpmath.mpf(turns))) / (2 * mpmath.log(s.rope_theta))

    low, high = index_of(s.beta_fast), index_of(s.beta_slow)
    if s.truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, mpmath.mpf(0)), min(high, mpmath.mpf(width - 1))
    if low == high:
        high += mpmath.mpf("0.001")
    return [min(max((i - low) / (high - low), mpmath.mpf(0)), mpmath.mpf(1)) for i in range(width // 2)]


def mp_by_parts(s, width, seq_len):
    factor = mpmath.mpf(s.factor)
    return [t * (1 - r) + t / factor * r for t, r in zip(mp_theta(s.rope_theta, width), mp_ramp(s, width), strict=True)]


def mp_dynamic_yarn(s, width, seq_len):
    factor = max(mpmath.mpf(1), mpmath.mpf(seq_len) / s.original_max_position_embeddings)
    return [t * (1 - r) + t / factor * r for t, r in zip(mp_theta(s.rope_theta, width), mp_ramp(s, width), strict=True)]


def mp_llama3(s, width, seq_len):
    original, factor = mpmath.mpf(s.original_max_position_embeddings), mpmath.mpf(s.factor)
    low, high = mpmath.mpf(s.low_freq_factor), mpmath.mpf(s.high_freq_factor)
    out = []
    for theta in mp_theta(s.rope_theta, width):
        wavelength = 2 * mpmath.pi / theta
        if wavelength < original / high:
            out.append(theta)
        elif wavelength > original / low:
            out.append(theta / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * theta / factor + smooth * theta)
    return out


def mp_dynamic(s, width, seq_len):
    trained, factor = s.max_position_embeddings, mpmath.mpf(s.factor)
    return mp_rebased(s.rope_theta, factor * max(seq_len, trained) / trained - (factor - 1), width)


def mp_longrope(s, width, seq_len):
    divisors = s.long_factor if seq_len > s.original_max_position_embeddings else s.short_factor
    return [t / mpmath.mpf(d) for t, d in zip(mp_theta(s.rope_theta, width), divisors, strict=True)]


def mp_proportional(s, width, seq_len):
    turned = int((s.partial_rotary_factor * width) // 2)
    exact = [t / mpmath.mpf(s.factor) for t in mp_theta(s.rope_theta, width)]
    return exact[:turned] + [mpmath.mpf(0)] * (width // 2 - turned)


FORMULAS = {
    "default": lambda s, width, seq_len: mp_theta(s.rope_theta, width),
    "linear": lambda s, width, seq_len: [t / mpmath.mpf(s.factor) for t in mp_theta(s.rope_theta, width)],
    "ntk": lambda s, width, seq_len: mp_rebased(s.rope_theta, mpmath.mpf(s.factor), width),
    "ntk_by_parts": mp_by_parts,
    "yarn": mp_by_parts,
    "dynamic": mp_dynamic,
    "dynamic_yarn": mp_dynamic_yarn,
    "longrope": mp_longrope,
    "llama3": mp_llama3,
    "proportional": mp_proportional,
}


def assert_within_one_ulp(schedule, width, seq_len=None):
    got = schedules.inv_freq(RotaryEncoding(width=width, schedule=schedule), seq_len)
    with mpmath.workdps(50):
        expected = FORMULAS[schedule.kind](schedule, width, seq_len)
        assert got.dtype == np.float64
        assert got.shape == (width // 2,)
        for i, (value, exact) in enumerate(zip(got, expected, strict=True)):
            assert abs(mpmath.mpf(float(value)) - exact) <= math.ulp(float(exact)), (i, float(value), exact)


def all_kinds(base, width):
    half = width // 2
    short = tuple(1.0 + 0.013 * i for i in range(half))
    long = tuple(1.0 + 0.7 * i**1.3 for i in range(half))
    ramp = {"rope_theta": base, "original_max_position_embeddings": 4096}
    # A range of no width that starts 0.0004 before pair 1: what widens it decides that pair.
    turns = 4096 / (2 * math.pi) * base ** (-2 * (1 - 0.0004) / width)
    return [
        (DefaultSchedule(rope_theta=base), None),
        (LinearSchedule(rope_theta=base, factor=2.7), None),
        (NtkSchedule(rope_theta=base, factor=3.3), None),
        (NtkByPartsSchedule(factor=16.0, **ramp), None),
        (NtkByPartsSchedule(factor=0.7, beta_fast=20.5, beta_slow=0.3, truncate=False, **ramp), None),
        (YarnSchedule(factor=40.0, **ramp), None),
        (YarnSchedule(factor=32.0, truncate=False, **ramp), None),
        (YarnSchedule(factor=32.0, beta_fast=1.0, beta_slow=32.0, **ramp), None),
        (YarnSchedule(factor=8.0, beta_fast=5.0, beta_slow=5.0, truncate=False, **ramp), None),
        (YarnSchedule(factor=8.0, beta_fast=turns, beta_slow=turns, truncate=False, **ramp), None),
        (DynamicSchedule(rope_theta=base, factor=2.0, max_position_embeddings=2048), 1),
        (DynamicSchedule(rope_theta=base, factor=2.5, max_position_embeddings=2048), 2049),
        (DynamicSchedule(rope_theta=base, factor=0.4, max_position_embeddings=1000), 77777),
        (DynamicYarnSchedule(**ramp), 4096),
        (DynamicYarnSchedule(truncate=False, **ramp), 4097),
        (DynamicYarnSchedule(beta_fast=20.5, beta_slow=0.3, **ramp), 77777),
        (LongropeSchedule(short_factor=short, long_factor=long, factor=32.0, **ramp), 4096),
        (LongropeSchedule(short_factor=short, long_factor=long, factor=32.0, **ramp), 4097),
        (Llama3Schedule(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ramp), None),
        (Llama3Schedule(factor=32.0, low_freq_factor=0.125, high_freq_factor=0.5, **ramp), None),
        (ProportionalSchedule(rope_theta=base, partial_rotary_factor=0.25), None),
        (ProportionalSchedule(rope_theta=base, partial_rotary_factor=0.37, factor=8.0), None),
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("base", BASES)
def test_every_schedule_is_within_one_ulp_of_its_formula_at_50_digits(base, width):
    for schedule, seq_len in all_kinds(base, width):
        assert_within_one_ulp(schedule, width, seq_len)


def test_every_law_is_measured():
    assert set(FORMULAS) == {*schedules.LAWS, *schedules.LENGTH_LAWS}
    assert {schedule.kind for schedule, _ in all_kinds(1e4, 8)} == set(FORMULAS)


bases = st.floats(1.5, 1e9)
factors = st.floats(0.1, 1000.0)
widths = st.integers(2, 100).map(lambda n: 2 * n)
lengths = st.integers(1, 10**7)
trained_lengths = st.integers(16, 10**6)


@st.composite
def schedules_of_width(draw):
    width = draw(widths)
    base, factor, original = draw(bases), draw(factors), draw(trained_lengths)
    ramp = {
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": draw(st.floats(0.5, 64.0)),
        "beta_slow": draw(st.floats(0.5, 64.0)),
        "truncate": draw(st.booleans()),
    }
    divisors = st.lists(st.floats(0.5, 100.0), min_size=width // 2, max_size=width // 2).map(tuple)
    low = draw(st.floats(0.1, 8.0))
    made = {
        "default": lambda: DefaultSchedule(rope_theta=base),
        "linear": lambda: LinearSchedule(rope_theta=base, factor=factor),
        "ntk": lambda: NtkSchedule(rope_theta=base, factor=factor),
        "dynamic": lambda: DynamicSchedule(rope_theta=base, factor=factor, max_position_embeddings=original),
        "ntk_by_parts": lambda: NtkByPartsSchedule(**ramp),
        "yarn": lambda: YarnSchedule(**ramp),
        "dynamic_yarn": lambda: DynamicYarnSchedule(**{k: v for k, v in ramp.items() if k != "factor"}),
        "llama3": lambda: Llama3Schedule(
            rope_theta=base,
            factor=factor,
            low_freq_factor=low,
            high_freq_factor=low * draw(st.floats(1.01, 10.0)),
            original_max_position_embeddings=original,
        ),
        "longrope": lambda: LongropeSchedule(
            rope_theta=base,
            short_factor=draw(divisors),
            long_factor=draw(divisors),
            original_max_position_embeddings=original,
            factor=factor,
        ),
        "proportional": lambda: ProportionalSchedule(
            rope_theta=base, factor=factor, partial_rotary_factor=draw(st.floats(0.01, 1.0))
        ),
    }
    return made[draw(st.sampled_from(sorted(made)))](), width


@settings(max_examples=250, deadline=None)
@given(schedules_of_width(), lengths)
def test_drawn_schedules_are_within_one_ulp(drawn, seq_len):
    schedule, width = drawn
    assert_within_one_ulp(schedule, width, seq_len)


@pytest.mark.parametrize("denominator", ["half", "half_minus_one"])
@pytest.mark.parametrize("width", [4, 6, 12, 384, 768, 1280])
@pytest.mark.parametrize("base", [10000.0, 99.5])
def test_sinusoidal_frequencies_are_within_one_ulp(width, denominator, base):
    got = schedules.sinusoidal(SinusoidalEncoding(width=width, denominator=denominator, base=base))
    n = width // 2 - (denominator == "half_minus_one")
    with mpmath.workdps(50):
        for i, value in enumerate(got):
            exact = mpmath.mpf(base) ** (-mpmath.mpf(i) / n)
            assert abs(mpmath.mpf(float(value)) - exact) <= math.ulp(float(exact))
    if denominator == "half_minus_one":
        assert got[-1] == pytest.approx(1 / base, rel=1e-15)


def test_pi_has_more_digits_than_the_arithmetic():
    with mpmath.workdps(60):
        assert abs(mpmath.mpf(str(schedules._PI)) - mpmath.pi) < mpmath.mpf(10) ** -55


def test_a_callers_decimal_context_changes_nothing():
    rotary = RotaryEncoding(width=64, schedule=YarnSchedule(factor=4.0, original_max_position_embeddings=4096))
    expected = schedules.inv_freq(rotary)
    with decimal.localcontext(decimal.Context(prec=5, rounding=decimal.ROUND_UP, traps=[decimal.Inexact])):
        assert np.array_equal(schedules.inv_freq(rotary), expected)


def test_64_frequencies_take_milliseconds():
    rotary = RotaryEncoding(width=128, schedule=YarnSchedule(factor=4.0, original_max_position_embeddings=4096))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        schedules.inv_freq(rotary)
        best = min(best, time.perf_counter() - start)
    assert best < 5e-3


class TestLengthDependence:
    DYNAMIC = DynamicSchedule(factor=2.0, max_position_embeddings=2048)

    def test_dynamic_follows_the_length_from_one_past_the_trained_one(self):
        rotary = RotaryEncoding(width=128, schedule=self.DYNAMIC)
        last = [schedules.inv_freq(rotary, n)[63] for n in (2048, 2049, 4096)]
        assert last == pytest.approx([0.000115478193, 0.0001153655394, 3.849273344e-05], rel=1e-6)
        base_at_4096 = schedules.inv_freq(rotary, 4096)[1] ** (-128 / 2)
        assert base_at_4096 == pytest.approx(30527.7367488067, rel=1e-12)

    def test_dynamic_is_the_default_up_to_the_trained_length(self):
        rotary = RotaryEncoding(width=128, schedule=self.DYNAMIC)
        plain = schedules.inv_freq(RotaryEncoding(width=128, schedule=DefaultSchedule()))
        for length in (1, 70, 2047, 2048):
            assert np.array_equal(schedules.inv_freq(rotary, length), plain)

    def test_no_two_lengths_past_the_trained_one_share_a_table(self):
        rotary = RotaryEncoding(width=128, schedule=self.DYNAMIC)
        first_pairs = {float(schedules.inv_freq(rotary, n)[1]) for n in range(2048, 2112)}
        assert len(first_pairs) == 64

    def test_dynamic_keeps_no_history(self):
        rotary = RotaryEncoding(width=128, schedule=self.DYNAMIC)
        before = schedules.inv_freq(rotary, 3000)
        schedules.inv_freq(rotary, 100_000)
        assert np.array_equal(schedules.inv_freq(rotary, 3000), before)

    def test_longrope_is_short_through_the_original_length_and_long_from_one_past_it(self):
        schedule = LongropeSchedule(
            short_factor=(1.0,) * 48, long_factor=(2.0,) * 48, original_max_position_embeddings=4096, factor=32.0
        )
        rotary = RotaryEncoding(width=96, schedule=schedule)
        assert [schedules.inv_freq(rotary, n)[0] for n in (1, 4095, 4096, 4097, 131072)] == [1, 1, 1, 0.5, 0.5]
        assert rotary.magnitude == pytest.approx(1.1902380714238083, rel=1e-15)

    @pytest.mark.parametrize(
        "schedule",
        [
            DYNAMIC,
            LongropeSchedule(
                short_factor=(1.0,) * 6, long_factor=(2.0,) * 6, original_max_position_embeddings=64, factor=2.0
            ),
        ],
    )
    def test_a_length_is_asked_for_and_a_regime_goes_before_it(self, schedule):
        rotary = RotaryEncoding(width=12, schedule=schedule)
        with pytest.raises(SpecError, match=rf"seq_len is required .* {schedule.kind}.*--context"):
            schedules.inv_freq(rotary)
        with pytest.raises(SpecError, match="seq_len must be >= 1, got 0"):
            schedules.inv_freq(rotary, 0)
        fixed = RotaryEncoding(width=12, schedule=schedule, regime=FixedRegime(length=9999))
        assert np.array_equal(schedules.inv_freq(fixed), schedules.inv_freq(rotary, 9999))
        assert np.array_equal(schedules.inv_freq(fixed, 5), schedules.inv_freq(rotary, 9999))
        assert not np.array_equal(schedules.inv_freq(fixed), schedules.inv_freq(rotary, 5))


def yarn_of(width, **keys):
    return schedules.inv_freq(RotaryEncoding(width=width, schedule=YarnSchedule(**keys)))


class TestPublishedSettings:
    """Numbers that reports or other implementations give for settings of released models."""

    def test_llama3_factor_is_the_configs_own(self):
        # Llama 3.2 1B: factor 32, head_dim 64. An implementation with 8 built in divides by 8.
        schedule = Llama3Schedule(
            rope_theta=500000.0,
            factor=32.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        )
        got = schedules.inv_freq(RotaryEncoding(width=64, schedule=schedule))
        ratio = schedules.inv_freq(RotaryEncoding(width=64, schedule=DefaultSchedule(rope_theta=500000.0))) / got
        assert np.all(ratio[:15] == 1)
        assert ratio[15:18] == pytest.approx([1.6513, 3.2923, 9.6667], abs=5e-5)
        assert ratio[18:] == pytest.approx([32.0] * 14, rel=1e-15)
        assert got[[17, 31]] == pytest.approx([9.708286234e-05, 9.41830649e-08], rel=3e-6)

    def test_llama3_band_is_scaled_and_not_discarded(self):
        # Llama 3.1: a table of the right shape with plain frequencies passes any test of shapes.
        schedule = Llama3Schedule(
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        )
        got = schedules.inv_freq(RotaryEncoding(width=128, schedule=schedule))
        ratio = schedules.inv_freq(RotaryEncoding(width=128, schedule=DefaultSchedule(rope_theta=500000.0))) / got
        assert np.all(ratio[:29] == 1)
        assert ratio[29:35] == pytest.approx([1.2075, 1.5534, 2.0263, 2.6945, 3.6843, 5.2573], abs=5e-5)
        assert ratio[35:] == pytest.approx([8.0] * 29, rel=1e-15)

    def test_yarn_range_stays_fractional_without_truncation(self):
        # gpt-oss
        keys = {"rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
        low, high = schedules.correction_range(YarnSchedule(**keys), 64)
        assert (float(low), float(high)) == pytest.approx((8.092779115512402, 17.39802450158856), rel=1e-14)
        assert yarn_of(64, **keys)[[9, 12, 17]] == pytest.approx(
            [0.03170569614, 0.006794959307, 0.0001293186942], rel=3e-7
        )

    def test_yarn_truncates_unless_told_not_to(self):
        keys = {"rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
        assert schedules.correction_range(YarnSchedule(**keys), 64) == (8, 18)
        assert yarn_of(64, **keys)[[9, 12, 17]] == pytest.approx(
            [0.03162075207, 0.007015713956, 0.0002279478358], rel=3e-7
        )

    def test_yarn_takes_its_own_factor_and_no_ratio_of_lengths(self):
        # Qwen3: 40960 / 32768 = 1.25 is what some releases took for the factor.
        keys = {"rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}
        assert yarn_of(128, **keys)[63] == pytest.approx(3.102344408034696e-07, rel=3e-7)
        assert YarnSchedule(**keys).magnitude() == pytest.approx(1.138629436111989, rel=1e-15)

    def test_swapped_betas_are_another_range(self):
        # beta_fast below beta_slow turns the ramp round; no law may put them into order by itself.
        keys = {"factor": 32.0, "original_max_position_embeddings": 4096}
        usual = YarnSchedule(beta_fast=32.0, beta_slow=1.0, **keys)
        swapped = YarnSchedule(beta_fast=1.0, beta_slow=32.0, **keys)
        low, high = schedules.correction_range(swapped, 64)
        assert low > high
        plain = schedules.inv_freq(RotaryEncoding(width=64, schedule=DefaultSchedule()))
        got, proper = (schedules.inv_freq(RotaryEncoding(width=64, schedule=s)) for s in (swapped, usual))
        assert plain[0] / got[0] == pytest.approx(32.0)  # the fastest pair interpolated, the slowest kept
        assert plain[-1] == got[-1]
        assert plain[0] == proper[0]
        assert plain[-1] / proper[-1] == pytest.approx(32.0)

    def test_proportional_spans_the_whole_head(self):
        # Gemma 4's global layers: 64 of 256 pairs turn, exponents over 512 channels.
        schedule = ProportionalSchedule(rope_theta=1000000.0, partial_rotary_factor=0.25)
        got = schedules.inv_freq(RotaryEncoding(width=512, schedule=schedule))
        assert got.shape == (256,)
        assert np.count_nonzero(got) == 64
        assert got[[1, 63, 64]] == pytest.approx([0.9474635124, 0.0333762467, 0.0], rel=1e-7)
        partial = schedules.inv_freq(RotaryEncoding(width=128, schedule=DefaultSchedule(rope_theta=1000000.0)))
        assert partial.shape == (64,)
        assert np.max(np.abs(partial / got[:64] - 1)) > 0.9  # partial rotation is another thing altogether

    def test_a_small_proportional_head(self):
        schedule = ProportionalSchedule(partial_rotary_factor=0.5)
        got = schedules.inv_freq(RotaryEncoding(width=8, schedule=schedule))
        assert got == pytest.approx([1.0, 0.1, 0.0, 0.0], rel=1e-15)


class TestAttentionFactor:
    @pytest.mark.parametrize(
        ("keys", "given_factor", "expected"),
        [
            ({"factor": 64.0}, 1.0, 1.0),  # a given 1.0 is a value, not an absence
            ({"factor": 64.0}, None, 1.4158883083359672),
            ({"factor": 8.0}, 1.2079441541679836, 1.2079441541679836),
            ({"factor": 8.0}, 0.75, 0.75),
            ({"factor": 64.0, "mscale": 1.0, "mscale_all_dim": 0.707}, 0.5, 0.5),  # given beats the ratio
            ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.0}, None, 1.3688879454113936),  # 0 is absent
            ({"factor": 40.0, "mscale": 0.0, "mscale_all_dim": 1.0}, None, 1.3688879454113936),
            ({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}, None, 0.9210423553163399),
            ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, None, 1.0),
            ({"factor": 1.0}, None, 1.0),
            ({"factor": 0.5}, None, 1.0),
        ],
    )
    def test_yarn(self, keys, given_factor, expected):
        rotary = RotaryEncoding(
            width=64,
            schedule=YarnSchedule(**keys, original_max_position_embeddings=4096),
            attention_factor=given_factor,
        )
        assert rotary.magnitude == pytest.approx(expected, rel=1e-15)

    def test_it_is_no_part_of_the_frequencies(self):
        schedule = YarnSchedule(factor=64.0, original_max_position_embeddings=4096)
        plain, scaled = (
            schedules.inv_freq(RotaryEncoding(width=64, schedule=schedule, attention_factor=a)) for a in (None, 0.5)
        )
        assert np.array_equal(plain, scaled)

    def test_only_yarn_and_longrope_have_one_of_their_own(self):
        for schedule, _ in all_kinds(1e4, 8):
            expected_one = schedule.kind not in ("yarn", "longrope")
            assert (RotaryEncoding(width=8, schedule=schedule).magnitude == 1.0) == expected_one


@pytest.mark.parametrize("make", [YarnSchedule, NtkByPartsSchedule])
def test_a_base_of_one_has_no_correction_range(make):
    schedule = make(rope_theta=1.0, factor=4.0, original_max_position_embeddings=64)
    with pytest.raises(SpecError, match=r"rope_theta must differ from 1 .* got 1\.0"):
        schedules.inv_freq(RotaryEncoding(width=8, schedule=schedule))
