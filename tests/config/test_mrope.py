"""Configs of models whose tokens have several coordinates."""

import json

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING

import portpe
from portpe.axes import deal
from portpe.config import load_layers, load_spec, read, read_layers
from portpe.encodings import AxialAxes, DefaultSchedule, InterleavedAxes, RotaryEncoding, SectionedAxes
from portpe.errors import SpecError
from portpe.reference.rotary import Rotary, rotate
from portpe.tabulating import tabulate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def qwen3_vl(**block):
    return {
        "model_type": "qwen3_vl_text",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "num_hidden_layers": 2,
        "rope_theta": 30000.0,
        "rope_scaling": block,
    }


def test_type_default_with_sections_is_mrope():
    config = qwen3_vl(type="default", mrope_section=[24, 20, 20], mrope_interleaved=True)
    assert load_spec(config).rotary.axes == InterleavedAxes(sections=(24, 20, 20))


@pytest.mark.parametrize("kind", ["mrope", "default"])
def test_the_older_type_says_the_same(kind):
    config = {
        "model_type": "qwen2_vl_text",
        "hidden_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "rope_scaling": {"type": kind, "mrope_section": [16, 24, 24]},
    }
    rotary = load_spec(config).rotary
    assert (rotary.axes, rotary.schedule.kind) == (SectionedAxes(sections=(16, 24, 24)), "default")


def test_sections_are_no_key_of_a_text_model():
    """A decoder of one coordinate must not read them as plain RoPE."""
    config = {**qwen3_vl(type="default", mrope_section=[24, 20, 20]), "model_type": "qwen3"}
    with pytest.raises(SpecError, match=r"rope_scaling.mrope_section is not a key that portpe knows"):
        load_spec(config)
    config["rope_scaling"] = {"type": "mrope", "mrope_section": [24, 20, 20]}
    with pytest.raises(SpecError, match=r"rope_scaling.type must be one of default, .* got 'mrope'"):
        load_spec(config)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"mrope_section": [8, 28, 28]}, r"must fit every 3th of 64 pairs, got 28 for coordinate 1, .* be pair 82"),
        ({"mrope_section": [16, 24, 20]}, r"mrope_section must sum to 64, half the rotary width, got 60 from \[16, "),
        ({"mrope_section": [24, 40]}, r"mrope_section must be a list of 3 numbers of pairs, got \[24, 40\]"),
        ({"mrope_section": "24"}, r"mrope_section must be a list of 3 numbers of pairs, got '24'"),
        ({"mrope_section": [24, 20.5, 19.5]}, r"mrope_section\[1\] must be an integer >= 1, got 20.5"),
        ({"mrope_section": [64, 0, 0]}, r"mrope_section\[1\] must be an integer >= 1, got 0"),
        ({"mrope_interleaved": False}, r"mrope_interleaved must be true for this model_type, .* got false"),
        ({"mrope_interleaved": "no"}, r"mrope_interleaved must be true or false, got 'no'"),
        ({"mrope_layout": "x"}, r"rope_scaling.mrope_layout is not a key that portpe knows"),
    ],
)
def test_what_does_not_fit_is_refused(block, message):
    with pytest.raises(SpecError, match=message):
        load_spec(qwen3_vl(type="default", **block))


def test_a_flag_that_contradicts_can_be_ignored_by_name():
    config = qwen3_vl(type="default", mrope_interleaved=False)
    reading = read(config, ignore_keys=["rope_scaling.mrope_interleaved"])
    assert reading.spec.rotary.axes == InterleavedAxes(sections=(24, 20, 20))
    assert reading.ignored == ("rope_scaling.mrope_interleaved",)


def test_a_key_that_no_value_is_right_for():
    with pytest.raises(SpecError, match="sliding_window must be left out for model_type 'qwen3_vl_moe_text', got 4096"):
        read({"model_type": "qwen3_vl_moe_text", "sliding_window": 4096})


def test_sections_of_a_spec_leave_its_pairs_as_they_are():
    """A file's rope.dimension_sections [11, 11, 10, 0] (its fourth coordinate is not there) says which coordinate turns
    a pair, not which channels it has: pair i is (i, i + 32), turned by the coordinate of its section alone.
    """
    sections = tuple(count for count in (11, 11, 10, 0) if count)
    rotary = RotaryEncoding(width=64, schedule=DefaultSchedule(rope_theta=500.0), axes=SectionedAxes(sections=sections))
    assert rotary.pairing == "half"
    module = Rotary(rotary, None, torch.float64)
    places = torch.tensor([[[5]], [[700]], [[31]]])
    for pair in range(32):
        one = torch.zeros(1, 1, 1, 80, dtype=torch.float64)
        one[..., pair] = 1.0
        turned = rotate(one, module(places))[0, 0, 0].numpy()
        angle = (5, 700, 31)[0 if pair < 11 else 1 if pair < 22 else 2] * 500.0 ** (-2 * pair / 64)
        expected = np.zeros(80)
        expected[[pair, pair + 32]] = np.cos(angle), np.sin(angle)
        np.testing.assert_allclose(turned, expected, rtol=0, atol=1e-13)


def test_sections_say_nothing_of_pairs():
    """Half pairing stays half: sections count pairs, whichever channels these are."""
    rotary = load_spec(
        {
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 4,
            "rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
        },
        layer=3,
    ).rotary
    assert (rotary.pairing, rotary.width) == ("half", 64)


def test_a_partial_factor_holds_with_sections():
    """A quarter of 16 channels is two pairs, too few for three coordinates: said, not stretched over the head. In a
    head of 32 the sections [2, 1, 1] lie over a quarter, and in one of 16 over half.
    """
    config = {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 4,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]},
    }
    with pytest.raises(SpecError, match=r"mrope_section must sum to 2, half the rotary width, got 4"):
        load_spec(config, layer=3)
    quarter = load_spec(config | {"head_dim": 32}, layer=3)
    assert (quarter.rotary.width, quarter.rotary.channels, quarter.head_dim) == (8, "first", 32)
    np.testing.assert_array_equal(deal(quarter.rotary).axes, [0, 1, 2, 0])
    config["rope_parameters"] |= {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    spec = load_spec(config, layer=3)
    assert (spec.rotary.width, spec.rotary.channels, spec.head_dim) == (8, "first", 16)
    np.testing.assert_array_equal(deal(spec.rotary).axes, [0, 1, 2, 0])
    assert tabulate(spec, [[5], [7], [3]])["cos"].shape == (1, 4)


FLAT = {
    "model_type": "qwen2_vl",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "rope_theta": 20000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "image_token_id": 7,
    "vision_config": {"depth": 5, "embed_dim": 96, "num_heads": 4, "hidden_size": 512, "model_type": "qwen2_vl"},
}


def test_a_part_has_to_be_chosen():
    with pytest.raises(SpecError, match="part must be 'text' or 'vision' for model_type 'qwen2_vl', got None"):
        load_spec(FLAT)


def test_keys_of_the_text_model_at_the_top_of_an_older_config():
    layers = load_layers(FLAT, part="text")
    assert len(layers) == 3
    assert (layers[0].hidden_size, layers[0].rotary.schedule.rope_theta) == (512, 20000.0)
    assert layers[0].rotary.axes == SectionedAxes(sections=(16, 24, 24))
    top = ("model_type", "vision_config", "image_token_id")
    nested = {key: FLAT[key] for key in top} | {"text_config": {k: v for k, v in FLAT.items() if k not in top}}
    assert load_layers(nested, part="text") == layers


def test_an_older_tower_repeats_the_name_of_the_whole():
    spec = read(FLAT, part="vision").spec
    assert (spec.hidden_size, spec.num_heads, spec.head_dim, spec.causal) == (96, 4, 24, False)
    assert spec.rotary.axes == AxialAxes(order=(0, 1))
    assert len(load_layers(FLAT, part="vision")) == 5


def test_a_grid_has_no_scaling():
    tower = {"model_type": "qwen3_vl_vision", "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(
        SpecError, match=r"rope_parameters.rope_type must be 'axial', got 'yarn'; grids have no scaling"
    ):
        load_spec(tower)
    tower["rope_parameters"] = {"rope_type": "axial", "factor": 4.0}
    with pytest.raises(SpecError, match=r"rope_parameters.factor is not a key that portpe knows"):
        load_spec(tower)


@pytest.mark.parametrize("model_type", ["qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder", "exaone4_5_vision"])
def test_a_block_that_sees_windows_alone_has_positions_and_no_block(model_type):
    """The blocks of fullatt_block_indexes see the whole image; transformers' default are four of 32."""
    config = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    assert config["fullatt_block_indexes"] == [7, 15, 23, 31]
    for given in (config, {"model_type": model_type}):
        whole = [reading.layer for reading in read_layers(given) if reading.beyond is None]
        assert whole == [7, 15, 23, 31]
    windowed, chosen = read({**config, "fullatt_block_indexes": [1, 2]}, layer=0), read(config, layer=7)
    assert windowed.spec.rotary == chosen.spec.rotary
    assert "windows of the image" in windowed.warnings[0]
    with pytest.raises(
        SpecError, match="attention within windows of the image, each for itself, which no block carries"
    ):
        portpe.export(windowed.spec, "nowhere")
    with pytest.raises(SpecError, match="fullatt_block_indexes must be a list of integers, got 7"):
        read({**config, "fullatt_block_indexes": 7})


@pytest.mark.parametrize("model_type", ["muse_spark_vision", "muse_glimmer_vision"])
def test_muse_names_its_windowed_blocks(model_type):
    config = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    expected = [index for index, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    for given in (config, {"model_type": model_type}):
        assert [reading.layer for reading in read_layers(given) if reading.beyond is None] == expected
    with pytest.raises(SpecError, match=r"layer_types\[0\] must be full_attention or window_attention, got 'linear'"):
        read({**config, "layer_types": ["linear"] * len(config["layer_types"])})
