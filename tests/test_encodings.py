"""What the parts of a spec accept and refuse, each refusal in one line that names field, rule and value."""

import math

import pytest

from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
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

YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 3.0],
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def refused(make, message):
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value) == message
    assert caught.value.__cause__ is None  # no pydantic traceback behind it
    assert caught.value.__suppress_context__


NUMBERS = [
    (DefaultSchedule, {}, "rope_theta"),
    (LinearSchedule, {"factor": 2.0}, "factor"),
    (NtkSchedule, {"factor": 2.0}, "factor"),
    (DynamicSchedule, {"factor": 2.0, "max_position_embeddings": 64}, "factor"),
    (NtkByPartsSchedule, YARN, "factor"),
    (NtkByPartsSchedule, YARN, "beta_fast"),
    (YarnSchedule, YARN, "beta_slow"),
    (YarnSchedule, YARN, "rope_theta"),
    (LongropeSchedule, LONGROPE, "factor"),
    (Llama3Schedule, LLAMA3, "low_freq_factor"),
    (Llama3Schedule, LLAMA3, "high_freq_factor"),
    (ProportionalSchedule, {}, "factor"),
    (ProportionalSchedule, {}, "partial_rotary_factor"),
    (RotaryEncoding, {"width": 4, "schedule": DefaultSchedule()}, "attention_factor"),
    (SinusoidalEncoding, {"width": 4}, "base"),
    (AlibiEncoding, {}, "bias_max"),
    (AlibiEncoding, {}, "scale"),
]


@pytest.mark.parametrize(("part", "keys", "field"), NUMBERS)
def test_numbers_must_be_positive_and_finite(part, keys, field):
    refused(lambda: part(**{**keys, field: -2.0}), f"{field} must be greater than 0, got -2.0")
    refused(lambda: part(**{**keys, field: 0}), f"{field} must be greater than 0, got 0")
    refused(lambda: part(**{**keys, field: "2"}), f"{field} must be a valid number, got '2'")
    refused(lambda: part(**{**keys, field: True}), f"{field} must be a valid number, got True")
    for value, shown in ((math.nan, "nan"), (math.inf, "inf")):
        with pytest.raises(SpecError, match=rf"^{field} must be [^\n]*, got {shown}$"):
            part(**{**keys, field: value})


COUNTS = [
    (DynamicSchedule, {"factor": 2.0, "max_position_embeddings": 64}, "max_position_embeddings"),
    (YarnSchedule, YARN, "original_max_position_embeddings"),
    (LongropeSchedule, LONGROPE, "original_max_position_embeddings"),
    (Llama3Schedule, LLAMA3, "original_max_position_embeddings"),
    (FixedRegime, {}, "length"),
    (RotaryEncoding, {"schedule": DefaultSchedule()}, "width"),
    (SinusoidalEncoding, {}, "width"),
    (LearnedEncoding, {"rows": 4}, "width"),
    (LearnedEncoding, {"width": 4}, "rows"),
]


@pytest.mark.parametrize(("part", "keys", "field"), COUNTS)
def test_counts_are_whole_numbers(part, keys, field):
    for value in (4.0, "4", True, None, 4.5):
        refused(lambda value=value: part(**{**keys, field: value}), f"{field} must be a valid integer, got {value!r}")
    for value in (0, -8):
        with pytest.raises(SpecError, match=rf"^{field} must be greater than [01], got {value}$"):
            part(**{**keys, field: value})


def test_an_int_is_the_float_that_it_equals():
    whole = YarnSchedule(factor=4, rope_theta=150000, beta_fast=32, beta_slow=1, original_max_position_embeddings=64)
    real = YarnSchedule(factor=4.0, rope_theta=150000.0, original_max_position_embeddings=64)
    assert whole == real
    assert whole.model_dump_json() == real.model_dump_json()
    assert isinstance(whole.factor, float)
    assert AlibiEncoding(bias_max=8, scale=1) == AlibiEncoding()


def test_missing_and_unknown_fields():
    refused(LinearSchedule, "factor is required and missing")
    refused(
        lambda: Llama3Schedule(**{**LLAMA3, "factors": 8.0}), "factors is not a known field; remove it or mend its name"
    )
    refused(
        lambda: RotaryEncoding(width=4, schedule={"factor": 2.0}),
        "schedule.kind is required and missing",
    )
    with pytest.raises(SpecError, match=r"^schedule\.kind must be one of 'default', 'linear', .*, got 'su'$"):
        RotaryEncoding(width=4, schedule={"kind": "su"})


def test_a_part_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        DefaultSchedule().rope_theta = 5.0


class TestRotary:
    def test_an_odd_width_names_what_transformers_would_rotate(self):
        for width in (1, 7, 33):
            refused(
                lambda width=width: RotaryEncoding(width=width, schedule=DefaultSchedule()),
                f"width must be even, got {width}; transformers would rotate {width + 1} channels",
            )

    @pytest.mark.parametrize("field", ["short_factor", "long_factor"])
    @pytest.mark.parametrize("length", [1, 3])
    def test_longrope_lists_have_one_divisor_a_pair(self, field, length):
        schedule = LongropeSchedule(**{**LONGROPE, field: [1.0] * length})
        refused(
            lambda: RotaryEncoding(width=4, schedule=schedule),
            f"schedule.{field} must have width / 2 = 2 entries, got {length}",
        )

    def test_longrope_lists_hold_positive_numbers(self):
        refused(
            lambda: LongropeSchedule(**{**LONGROPE, "short_factor": [1.0, -1.0]}),
            "short_factor.1 must be greater than 0, got -1.0",
        )
        with pytest.raises(SpecError, match=r"^long_factor must have a length >= 1"):
            LongropeSchedule(**{**LONGROPE, "long_factor": []})

    def test_longrope_needs_an_original_length_with_a_logarithm(self):
        refused(
            lambda: LongropeSchedule(**{**LONGROPE, "original_max_position_embeddings": 1}),
            "original_max_position_embeddings must be greater than 1, got 1",
        )

    @pytest.mark.parametrize(
        "schedule", [NtkSchedule(factor=2.0), DynamicSchedule(factor=2.0, max_position_embeddings=9)]
    )
    def test_a_base_change_needs_two_pairs(self, schedule):
        refused(
            lambda: RotaryEncoding(width=2, schedule=schedule), f"width must be > 2 for schedule {schedule.kind}, got 2"
        )

    def test_a_regime_is_for_length_dependent_schedules(self):
        regime = FixedRegime(length=9)
        refused(
            lambda: RotaryEncoding(width=4, schedule=YarnSchedule(**YARN), regime=regime),
            "regime needs a length-dependent schedule, got yarn",
        )
        assert RotaryEncoding(width=4, schedule=LongropeSchedule(**LONGROPE), regime=regime).regime == regime

    @pytest.mark.parametrize(
        ("field", "value", "choices"),
        [
            ("pairing", "neox", "'half' or 'interleaved'"),
            ("channels", "middle", "'first' or 'last'"),
            ("sign", 0, "1 or -1"),
            ("precision", "float32", "'exact' or 'hf'"),
        ],
    )
    def test_choices(self, field, value, choices):
        refused(
            lambda: RotaryEncoding(width=4, schedule=DefaultSchedule(), **{field: value}),
            f"{field} must be {choices}, got {value!r}",
        )

    def test_errors_inside_a_schedule_say_where(self):
        refused(
            lambda: RotaryEncoding(width=4, schedule={"kind": "linear", "factor": -2.0}),
            "schedule.factor must be greater than 0, got -2.0",
        )

    def test_mscale_is_no_negative_temperature(self):
        refused(lambda: YarnSchedule(**YARN, mscale=-1.0), "mscale must be greater than or equal to 0, got -1.0")
        assert YarnSchedule(**YARN, mscale=0.0, mscale_all_dim=0.0).magnitude() == YarnSchedule(**YARN).magnitude()


class TestEmbedding:
    def test_sinusoidal_widths(self):
        refused(
            lambda: SinusoidalEncoding(width=5, order="cos_sin"),
            "width must be even for order cos_sin with half, got 5",
        )
        refused(
            lambda: SinusoidalEncoding(width=5, denominator="half_minus_one"),
            "width must be even for order interleaved with half_minus_one, got 5",
        )
        refused(
            lambda: SinusoidalEncoding(width=2, denominator="half_minus_one"),
            "width must be >= 4 for denominator half_minus_one, got 2",
        )

    def test_an_offset_leaves_a_row(self):
        refused(lambda: LearnedEncoding(rows=2, width=4, offset=2), "rows must be > offset = 2, got 2")
        refused(lambda: SinusoidalEncoding(rows=3, width=4, offset=5), "rows must be > offset = 5, got 3")
        refused(
            lambda: LearnedEncoding(rows=2, width=4, offset=-1), "offset must be greater than or equal to 0, got -1"
        )
        assert LearnedEncoding(rows=3, width=4, offset=2).rows == 3
