"""Towers and the stacks beside them, layer by layer: what their default configs mean, and what they refuse."""

import pytest
import transformers

from portpe.config import load_spec, read, read_layers
from portpe.encodings import AxialAxes, InterleavedAxes, LinearSchedule
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def default(model_type, **more):
    return transformers.CONFIG_MAPPING[model_type](**more).to_dict() | {"model_type": model_type}


def test_sam_3_counts_the_whole_picture_as_wide_as_a_window():
    """1008 / 14 = 72 patches a side in windows of 24: cells of layers 7, 15, 23 and 31 are a third as far apart."""
    specs = [one.spec.rotary for one in read_layers(default("sam3_vit_model"))]
    scaled = {n: one.schedule for n, one in enumerate(specs) if one.contract == "scaled_positions"}
    assert scaled == dict.fromkeys((7, 15, 23, 31), LinearSchedule(rope_theta=10000.0, factor=3.0))
    assert all(one.axes == AxialAxes(order=(1, 0)) and one.pairing == "interleaved" for one in specs)


def test_a_picture_as_wide_as_a_window_is_not_scaled():
    config = default("sam3_vit_model", image_size=336)
    assert {one.spec.rotary.contract for one in read_layers(config)} == {"cos_sin"}


def test_sapiens_2_has_fewer_key_heads_in_the_middle():
    heads = [one.spec.num_kv_heads for one in read_layers(default("sapiens2"))]
    assert heads == [16] * 8 + [8] * 8 + [16] * 8
    with pytest.raises(SpecError, match="num_key_value_heads_per_layer must list one for each of 24 layers"):
        read({**default("sapiens2"), "num_key_value_heads_per_layer": [8]})


def test_muse_turns_all_but_the_last_of_each_four_counted_from_the_end():
    layers = read_layers(default("muse_glimmer_text", num_hidden_layers=6))
    assert [one.spec.rotary is None for one in layers] == [False, True, False, False, False, True]
    assert [one.spec.window for one in layers] == [2048, None, 2048, 2048, 2048, None]
    without = {k: v for k, v in default("muse_glimmer_text").items() if k not in ("layer_rope_theta", "layer_types")}
    turned = [one.spec.rotary is not None for one in read_layers({**without, "num_hidden_layers": 6})]
    assert turned == [True, False, True, True, True, False]


def test_neomme_deals_pairs_in_turn_and_widens_every_second_window():
    config = default("neomme")
    layers = read_layers(config)
    assert layers[0].spec.rotary.axes == InterleavedAxes(sections=(16, 16))
    assert layers[5].spec.rotary.axes == InterleavedAxes(sections=(4, 4))  # a quarter of a head of 64
    reach = [256, 1024, 256, 1024, 256, None, 1024]
    assert [one.spec.window_radius for one in layers[:7]] == reach
    published = {key: value for key, value in config.items() if key not in ("per_layer_config", "layer_types")}
    assert [one.spec.window_radius for one in read_layers(published)[:7]] == reach
    with pytest.raises(SpecError, match="partial_rotary_factor must leave a multiple of 4 channels for 2 coordinates"):
        read({**config, "head_dim": 30})


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        ("hunyuan_vl_vision", {"interpolate_mode": "area"}, "interpolate_mode must be 'bilinear' or 'bicubic'"),
        ("molmo2_vision", {"num_position_embeddings": 700}, "num_position_embeddings must be the 729 patches"),
        ("sam3_vit_model", {"global_attn_indexes": 7}, "global_attn_indexes must be a list of layers, got 7"),
        (
            "glm5_next_text",
            {"qk_rope_head_dim": 64},
            r"qk_head_dim must be qk_nope_head_dim \+ qk_rope_head_dim = 320, got 256",
        ),
    ],
)
def test_bad_values_are_refused(model_type, change, message):
    with pytest.raises(SpecError, match=message):
        read({**default(model_type), **change}, layer=3)


def test_positions_are_scaled_by_a_linear_schedule_alone():
    rotary = load_spec(default("sam3_vit_model")).rotary
    fields = {name: getattr(rotary, name) for name in type(rotary).model_fields}
    with pytest.raises(SpecError, match="contract must be cos_sin for schedule default, got scaled_positions"):
        type(rotary)(**{**fields, "contract": "scaled_positions"})
