"""Rope keys: where they stand, which of them wins, and what each rope_type makes of them."""

import math
from pathlib import Path

import numpy as np
import pytest

from portpe.config import load_spec, read
from portpe.encodings import (
    DefaultSchedule,
    DynamicSchedule,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    ProportionalSchedule,
    YarnSchedule,
)
from portpe.errors import SpecError
from portpe.schedules import inv_freq, magnitude

YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def rotary(config, **options):
    return load_spec(config, **options).rotary


def warnings(config):
    return " | ".join(read(config).warnings)


# --- each type and its defaults ------------------------------------------------------------


def test_no_block_is_default(llama):
    assert rotary(llama()).schedule == DefaultSchedule(rope_theta=20000.0)
    assert rotary(llama(rope_scaling={})).schedule == DefaultSchedule(rope_theta=20000.0)
    assert rotary(llama(rope_theta=None)).schedule == DefaultSchedule(rope_theta=10000.0)
    assert rotary(llama(rope_scaling={"rope_type": "default"})).attention_factor == 1.0


def test_linear(llama):
    assert rotary(llama(rope_scaling={"type": "linear", "factor": 4.0})).schedule == LinearSchedule(
        rope_theta=20000.0, factor=4.0
    )


def test_dynamic_starts_at_max_position_embeddings(llama):
    config = llama(rope_scaling={"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64})
    assert rotary(config).schedule == DynamicSchedule(rope_theta=20000.0, factor=2.0, max_position_embeddings=640)
    assert "is not used by rope_type 'dynamic'" in warnings(config)


def test_yarn_defaults(llama):
    law = rotary(llama(rope_scaling=YARN)).schedule
    assert law == YarnSchedule(rope_theta=20000.0, factor=40.0, original_max_position_embeddings=4096)
    assert (law.beta_fast, law.beta_slow, law.truncate) == (32.0, 1.0, True)


@pytest.mark.parametrize("value", [0, None, 0.0])
def test_yarn_betas_of_nothing_are_the_defaults(llama, value):
    law = rotary(llama(rope_scaling=YARN | {"beta_fast": value, "beta_slow": value})).schedule
    assert (law.beta_fast, law.beta_slow) == (32.0, 1.0)


def test_yarn_null_factor_is_stated_over_original_length(llama):
    config = llama(rope_scaling=YARN | {"factor": None, "original_max_position_embeddings": 128})
    assert rotary(config).schedule.factor == 640 / 128
    with pytest.raises(SpecError, match=r"^rope_scaling.factor is required and missing$"):
        rotary(llama(rope_scaling={"rope_type": "yarn"}))


def test_an_explicit_factor_goes_before_the_ratio_of_lengths(llama):
    config = llama(
        head_dim=128,
        max_position_embeddings=40960,
        rope_theta=1000000.0,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    )
    assert rotary(config).schedule.factor == 4.0  # not 40960 / 32768
    assert rotary(config).attention_factor == 1.138629436111989  # 0.1 ln 4 + 1
    assert inv_freq(rotary(config))[63] == pytest.approx(3.102344408034696e-07, rel=1e-6)


# attention_factor by hand: g(s, m) = 0.1 m ln s + 1
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 0.1 * math.log(40) + 1),
        ({"attention_factor": 1.0, "factor": 64.0}, 1.0),
        ({"attention_factor": 1.7, "factor": 8.0}, 1.7),
        ({"attention_factor": 0.5, "mscale": 1.0, "mscale_all_dim": 0.707}, 0.5),
        ({"attention_factor": None}, 0.1 * math.log(40) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, 0.1 * math.log(40) + 1),
        ({"mscale": 0.707}, 0.1 * math.log(40) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (
            {"mscale": 0.707, "mscale_all_dim": 1.0},
            (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
        ),
        ({"factor": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarn_magnitude_explicit_then_ratio_then_formula(llama, keys, expected):
    assert rotary(llama(rope_scaling=YARN | keys)).attention_factor == pytest.approx(expected, rel=1e-15)


def test_yarn_reported_magnitudes(llama):
    """Figures of public reports, each from transformers."""
    for keys, expected in [
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, 1.3688879454113936),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, 0.9210423553163399),
    ]:
        assert rotary(llama(rope_scaling=YARN | keys)).attention_factor == expected


@pytest.mark.parametrize(
    ("truncate", "expected"),
    [
        ({"truncate": False}, {9: 0.03170569614, 12: 0.006794959307, 17: 0.0001293186942}),
        ({}, {9: 0.03162075207, 12: 0.007015713956, 17: 0.0002279478358}),
        ({"truncate": None}, {9: 0.03162075207}),
    ],
)
def test_yarn_truncates_unless_told_otherwise(llama, truncate, expected):
    block = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, **truncate}
    frequencies = inv_freq(rotary(llama(head_dim=64, rope_theta=150000.0, rope_scaling=block)))
    for index, value in expected.items():
        assert frequencies[index] == pytest.approx(value, rel=2e-6)


def test_inverted_betas_are_a_warning(llama):
    config = llama(rope_scaling=YARN | {"beta_fast": 1, "beta_slow": 32})
    assert "rope_scaling.beta_fast = 1.0 < beta_slow = 32.0" in warnings(config)
    assert (rotary(config).schedule.beta_fast, rotary(config).schedule.beta_slow) == (1.0, 32.0)


def test_longrope(llama):
    config = llama(original_max_position_embeddings=64, rope_scaling=LONG)
    encoding = rotary(config)
    assert encoding.schedule == LongropeSchedule(
        rope_theta=20000.0,
        short_factor=(1.0,) * 4,
        long_factor=(2.0,) * 4,
        original_max_position_embeddings=64,
        factor=10.0,
    )
    assert encoding.attention_factor == pytest.approx(math.sqrt(1 + math.log(10) / math.log(64)), rel=1e-15)
    assert rotary(llama(rope_scaling=LONG | {"factor": 3.0})).schedule.factor == 3.0
    assert rotary(llama(rope_scaling=LONG | {"attention_factor": 1.25})).attention_factor == 1.25


def test_longrope_figures_of_a_128k_model(llama):
    """Short through the original length, long one past it."""
    config = llama(
        model_type="phi3",
        head_dim=96,
        max_position_embeddings=131072,
        rope_theta=10000.0,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    )
    encoding = rotary(config)
    assert encoding.attention_factor == 1.1902380714238083
    assert [inv_freq(encoding, length)[0] for length in (4095, 4096, 4097)] == [1.0, 1.0, 0.5]


def test_llama3(llama):
    assert rotary(llama(rope_scaling=LLAMA3)).schedule == Llama3Schedule(
        rope_theta=20000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    inverted = llama(rope_scaling=LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0})
    assert "the ramp is inverted" in warnings(inverted)


@pytest.mark.parametrize(
    ("head_dim", "factor", "ratios"),
    [
        (64, 32.0, {0: 1.0, 14: 1.0, 15: 1.6513, 16: 3.2923, 17: 9.6667, 18: 32.0, 31: 32.0}),
        (128, 8.0, {28: 1.0, 29: 1.2075, 30: 1.5534, 31: 2.0263, 32: 2.6945, 33: 3.6843, 34: 5.2573, 35: 8.0}),
    ],
)
def test_llama3_scales_by_the_factor_of_the_config(llama, head_dim, factor, ratios):
    block = LLAMA3 | {"factor": factor}
    scaled = inv_freq(rotary(llama(head_dim=head_dim, rope_theta=500000.0, rope_scaling=block)))
    plain = 500000.0 ** (-2 / head_dim * np.arange(head_dim // 2))
    for index, ratio in ratios.items():
        assert plain[index] / scaled[index] == pytest.approx(ratio, abs=5e-5)


def test_proportional_has_the_width_of_the_head(llama):
    block = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    encoding = rotary(llama(head_dim=512, rope_theta=1000000.0, rope_scaling=block))
    assert encoding.width == 512
    assert encoding.schedule == ProportionalSchedule(rope_theta=1000000.0, partial_rotary_factor=0.25)
    frequencies = inv_freq(encoding)
    assert len(frequencies) == 256
    assert (frequencies > 0).sum() == 64
    assert frequencies[1] == pytest.approx(1e6 ** (-2 / 512), rel=1e-15)
    assert frequencies[63] == pytest.approx(0.0333762467, rel=1e-7)
    assert frequencies[64] == 0.0


# --- numbers and names ---------------------------------------------------------------------


def test_whole_numbers_equal_their_floats(llama):
    as_ints = {key: int(value) if isinstance(value, float) else value for key, value in LLAMA3.items()}
    assert as_ints["factor"] == 8
    assert load_spec(llama(rope_theta=20000, rope_scaling=as_ints)) == load_spec(llama(rope_scaling=LLAMA3))
    as_floats = LLAMA3 | {"original_max_position_embeddings": 8192.0}
    assert load_spec(llama(rope_scaling=as_floats)) == load_spec(llama(rope_scaling=LLAMA3))


def test_both_names_of_the_type_may_stand_together(llama):
    config = llama(rope_scaling={"type": "linear", "rope_type": "linear", "factor": 8.0})
    assert rotary(config).schedule == LinearSchedule(rope_theta=20000.0, factor=8.0)
    assert read(config).warnings == ()


def test_rope_type_wins_over_type_with_a_warning(llama):
    config = llama(rope_scaling={"rope_type": "linear", "type": "dynamic", "factor": 8.0})
    assert rotary(config).schedule.kind == "linear"
    assert "rope_scaling.rope_type = 'linear' wins over type = 'dynamic'" in warnings(config)
    with pytest.warns(UserWarning, match=r"^rope_scaling.rope_type = 'linear' wins over type = 'dynamic'$") as noticed:
        load_spec(config)
    assert [Path(warning.filename) for warning in noticed] == [Path(__file__)]
    longrope = llama(rope_scaling=LONG | {"rope_type": "longrope", "type": "su"})
    assert rotary(longrope).schedule.kind == "longrope"


@pytest.mark.parametrize("model_type", ["llama", "phi3", "qwen2"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_su_is_longrope_everywhere(llama, model_type, key):
    block = {name: value for name, value in LONG.items() if name != "type"} | {key: "su"}
    assert rotary(llama(model_type=model_type, rope_scaling=block)).schedule.kind == "longrope"


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_yarn_is_longrope_for_phi3(llama, key):
    block = {name: value for name, value in LONG.items() if name != "type"} | {key: "yarn"}
    assert rotary(llama(model_type="phi3", rope_scaling=block)).schedule.kind == "longrope"


# --- where keys stand ----------------------------------------------------------------------


@pytest.mark.parametrize("block", [LLAMA3, YARN, LONG, {"rope_type": "linear", "factor": 2.0}])
def test_the_two_layouts_say_the_same(llama, block):
    older = llama(rope_scaling=block)
    newer = llama(rope_theta=None, rope_parameters=block | {"rope_theta": 20000.0})
    assert load_spec(older) == load_spec(newer)


def test_inside_the_block_goes_before_the_top(llama):
    config = llama(rope_parameters={"rope_type": "default", "rope_theta": 777.0})
    assert rotary(config).schedule.rope_theta == 777.0
    assert "rope_parameters.rope_theta = 777.0 goes before rope_theta = 20000.0" in warnings(config)


def test_rope_scaling_replaces_rope_parameters(llama):
    config = llama(
        rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": 777.0},
        rope_scaling={"rope_type": "linear", "factor": 2.0},
    )
    assert rotary(config).schedule == LinearSchedule(rope_theta=10000.0, factor=2.0)
    assert "rope_scaling replaces rope_parameters" in warnings(config)
    empty = llama(rope_parameters={"rope_type": "linear", "factor": 2.0}, rope_scaling={})
    assert rotary(empty).schedule.kind == "linear"


@pytest.mark.parametrize("block", [LLAMA3, YARN, LONG | {"original_max_position_embeddings": 32}])
def test_the_original_length_at_the_top_goes_first(llama, block):
    config = llama(original_max_position_embeddings=48, rope_scaling=block)
    assert rotary(config).schedule.original_max_position_embeddings == 48
    assert "original_max_position_embeddings = 48 at the top goes before" in warnings(config)


@pytest.mark.parametrize("block", [LLAMA3, YARN, LONG])
def test_without_an_original_length_the_stated_one_is_taken_and_said(llama, block):
    block = {key: value for key, value in block.items() if key != "original_max_position_embeddings"}
    config = llama(rope_scaling=block)
    assert rotary(config).schedule.original_max_position_embeddings == 640
    assert "original_max_position_embeddings is absent: 640 is taken" in warnings(config)


def test_gpt_neox_names(llama):
    base = llama(model_type="gpt_neox", num_key_value_heads=None, rope_theta=None, rms_norm_eps=None, hidden_size=160)
    assert (rotary(base).width, rotary(base).schedule.rope_theta) == (4, 10000.0)  # a quarter of 16
    named = rotary(base | {"rotary_pct": 0.5, "rotary_emb_base": 5000})
    assert (named.width, named.schedule.rope_theta) == (8, 5000.0)
    assert rotary(base | {"rotary_emb_base": 5000, "rope_theta": 5000.0}).schedule.rope_theta == 5000.0
    with pytest.raises(SpecError, match=r"^rotary_emb_base and rope_theta are names of one value and must agree"):
        load_spec(base | {"rotary_emb_base": 5000, "rope_theta": 6000})
    inside = base | {"rotary_pct": 0.5, "rope_parameters": {"partial_rotary_factor": 0.75}}
    assert rotary(inside).width == 12


@pytest.mark.parametrize(("model_type", "width"), [("phi", 8), ("glm", 8), ("glm4", 8), ("llama", 16), ("phi3", 16)])
def test_partial_rotary_factor_by_family_and_by_key(llama, model_type, width):
    base = llama(model_type=model_type, head_dim=16, rms_norm_eps=None)
    assert rotary(base).width == width
    assert rotary(base | {"partial_rotary_factor": 0.25}).width == 4
    assert (
        rotary(base | {"partial_rotary_factor": 0.25, "rope_parameters": {"partial_rotary_factor": 0.75}}).width == 12
    )


def test_the_width_is_the_floor_of_a_float64_product(llama):
    # 80 * 0.4 = 32.0 in float64; 0.29 * 100 = 28.999999999999996, so 28
    assert rotary(llama(model_type="phi", head_dim=80, rms_norm_eps=None, partial_rotary_factor=0.4)).width == 32
    assert rotary(llama(model_type="phi", head_dim=100, rms_norm_eps=None, partial_rotary_factor=0.29)).width == 28


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "cohere", "gpt_oss"])
def test_a_partial_factor_that_transformers_would_pass_over_is_honoured_and_said(llama, model_type):
    config = llama(model_type=model_type, head_dim=16, rms_norm_eps=None) | {
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}
    }
    assert rotary(config).width == 8
    assert "partial_rotary_factor = 0.5 is honoured as documented" in warnings(config)


def test_per_layer_blocks(llama):
    full = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
    config = llama(
        model_type="qwen3",
        head_dim=64,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_theta=None,
        rope_parameters={
            "full_attention": full | {"truncate": False},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    )
    first, second = load_spec(config), load_spec(config, layer=1)
    assert first.rotary.schedule.truncate is False
    assert inv_freq(first.rotary)[9] == pytest.approx(0.03170569614, rel=2e-6)  # truncated: 0.03162075207
    assert second.rotary.schedule == DefaultSchedule(rope_theta=10000.0)
    assert (first.window, second.window) == (None, 9)


def test_per_layer_blocks_may_name_a_layer_type_without_rotation(llama):
    config = llama(rope_theta=None, rope_parameters={"full_attention": None, "sliding_attention": {}})
    assert rotary(config) is None
    missing = llama(rope_parameters={"sliding_attention": {"rope_type": "default"}})
    with pytest.raises(SpecError, match=r"^rope_parameters.full_attention is required and missing: layer 0"):
        load_spec(missing)
    mixed = llama(rope_parameters={"full_attention": {}, "rope_theta": 5.0})
    with pytest.raises(SpecError, match=r"^rope_parameters.rope_theta is not a key that portpe knows"):
        load_spec(mixed)


def test_a_nested_partial_factor_and_theta_fall_back_to_the_top(llama):
    config = llama(head_dim=16, partial_rotary_factor=0.5, rope_parameters={"full_attention": {"rope_type": "default"}})
    assert rotary(config).width == 8
    assert rotary(config).schedule.rope_theta == 20000.0


# --- context -------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [{"type": "dynamic", "factor": 2.0}, LONG])
def test_a_context_fixes_a_length_dependent_schedule(llama, block):
    config = llama(rope_scaling=block)
    assert rotary(config).regime is None
    fixed = read(config, context=4000).spec
    assert fixed.rotary.regime.length == 4000
    assert not fixed.length_dependent
    assert read(llama(), context=4000).spec.rotary.regime is None
    assert read(fixed, context=99).spec.rotary.regime.length == 99
    for wrong in (0, -1, 2.5, True, "8"):
        with pytest.raises(SpecError, match=r"^context must be an integer > 0"):
            read(config, context=wrong)


def test_the_stated_length_is_not_the_original_one(llama):
    spec = load_spec(llama(max_position_embeddings=131072, rope_scaling=LLAMA3))
    assert spec.max_position_embeddings == 131072
    assert spec.rotary.schedule.original_max_position_embeddings == 8192


def test_gpt_oss_without_a_block_is_yarn():
    sizes = {"model_type": "gpt_oss", "rope_theta": 150000}
    for config in (sizes, sizes | {"rope_scaling": None}):
        law = rotary(config).schedule
        assert (law.kind, law.factor, law.truncate, law.original_max_position_embeddings) == ("yarn", 32.0, False, 4096)
    assert "rope_scaling is null" in warnings(sizes | {"rope_scaling": None})
    assert "rope_scaling is null" not in warnings(sizes)
    assert rotary(sizes | {"rope_parameters": {}}).schedule == DefaultSchedule(rope_theta=150000.0)


@pytest.mark.parametrize(("model_type", "theta"), [("cohere", 500000.0), ("gpt_oss", 150000.0)])
def test_an_unusual_default_base_is_said(model_type, theta):
    assert rotary({"model_type": model_type}).schedule.rope_theta == theta
    assert f"rope_theta is absent: {theta}" in warnings({"model_type": model_type})
    assert "rope_theta is absent" not in warnings({"model_type": model_type, "rope_theta": theta})


PHIMOE = {
    "type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
    "short_mscale": 1.1,
    "long_mscale": 1.3,
}


def test_phimoe_states_a_magnitude_for_each_side(llama):
    """Both go before what the factor asks for; which one applies follows the length, as the factors do."""
    found = rotary(llama(model_type="phimoe", rope_scaling=PHIMOE))
    assert (found.schedule.short_mscale, found.schedule.long_mscale, found.attention_factor) == (1.1, 1.3, 1.0)
    assert [magnitude(found, length) for length in (64, 65)] == [1.1, 1.3]
    with pytest.raises(SpecError, match=r"short_mscale and long_mscale must be given together"):
        rotary(llama(model_type="phimoe", rope_scaling={k: v for k, v in PHIMOE.items() if k != "long_mscale"}))
