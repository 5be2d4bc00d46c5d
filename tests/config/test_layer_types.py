"""Layers of one model that differ: bases, scaling, windows and layers without rotary embeddings. Numbers by hand."""

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.config import load_layers, load_spec, read, read_layers
from portpe.encodings import DefaultSchedule, LinearSchedule, ProportionalSchedule
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.tabulating import tabulate

transformers.utils.logging.set_verbosity_error()

FULL, SLIDING = "full_attention", "sliding_attention"
# The text part of google/gemma-3-4b-it, as released.
GEMMA_3_4B = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_attention_heads": 8,
    "num_hidden_layers": 34,
    "num_key_value_heads": 4,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GEMMA_3 = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": GEMMA_3_4B}


@pytest.mark.parametrize("config", [GEMMA_3_4B, GEMMA_3], ids=["text", "whole model"])
def test_gemma_3_scales_its_full_layers_alone(config):
    specs = load_layers(config)
    assert [spec.window for spec in specs[:7]] == [1024] * 5 + [None, 1024]
    sliding, full = specs[4], specs[5]
    assert sliding.rotary.schedule == DefaultSchedule(rope_theta=10000.0)
    assert full.rotary.schedule == LinearSchedule(rope_theta=1e6, factor=8.0)
    numbers = tabulate(full, [8])
    assert numbers["inv_freq"][:2] == pytest.approx([0.125, 1e6 ** (-2 / 256) / 8], rel=1e-15)
    as_theirs = tabulate(full.with_precision("hf"), [8])["inv_freq"]
    assert as_theirs[:2].tolist() == [0.125, 0.11221089214086533]  # transformers' float32
    assert (numbers["cos"][0, 0], numbers["sin"][0, 0]) == pytest.approx((np.cos(1.0), np.sin(1.0)), rel=1e-15)
    local = tabulate(sliding, [8])
    assert (local["cos"][0, 0], local["sin"][0, 0]) == pytest.approx((np.cos(8.0), np.sin(8.0)), rel=1e-15)


def test_gemma_3_in_both_layouts_is_one():
    config = transformers.Gemma3TextConfig(**{k: v for k, v in GEMMA_3_4B.items() if k != "model_type"})
    assert set(config.rope_parameters) == {FULL, SLIDING}  # nested, as transformers 5 writes it
    assert load_layers(config) == load_layers(GEMMA_3_4B)


def test_gemma_3_27b_scale_is_not_that_of_its_heads():
    spec = load_spec(GEMMA_3_4B | {"query_pre_attn_scalar": 168, "head_dim": 128})
    assert spec.scale == pytest.approx(0.07715167498104596, rel=1e-15)  # 168 ** -0.5
    assert spec.scale != pytest.approx(128**-0.5, rel=0.1)


def test_gemma_3_both_ways_reaches_half_a_window_to_each_side():
    config = transformers.Gemma3TextConfig(num_hidden_layers=6, sliding_window=512, use_bidirectional_attention=True)
    sliding, full = load_spec(config), load_spec(config, layer=5)
    assert (sliding.causal, sliding.window, sliding.window_radius) == (False, None, 256)
    assert (full.causal, full.window_radius) == (False, None)
    assert config.sliding_window == 257  # |i - j| < 257 in its mask


def test_gemma_4_turns_a_quarter_of_wider_heads_on_full_layers():
    config = transformers.Gemma4TextConfig(num_hidden_layers=7, head_dim=16, global_head_dim=32)
    by_hand = {"model_type": "gemma4_text", "num_hidden_layers": 7, "head_dim": 16, "global_head_dim": 32}
    for source in (config, by_hand):
        readings = read_layers(source)
        specs = [reading.spec for reading in readings]
        assert [spec.head_dim for spec in specs] == [16] * 5 + [32, 32]  # the last is full whatever the pattern says
        assert specs[5].rotary.width == 32
        assert specs[5].rotary.schedule == ProportionalSchedule(rope_theta=1e6, partial_rotary_factor=0.25)
        assert specs[0].rotary.schedule == DefaultSchedule(rope_theta=10000.0)
        assert tabulate(specs[5], [3])["inv_freq"][4:].max() == 0.0


SMOLLM3 = {
    "model_type": "smollm3",
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "max_position_embeddings": 40,
    "rope_theta": 5000.0,
}


def test_smollm3_lists_the_layers_with_rotary_embeddings():
    """1 is a layer with them, although the key is called no_rope_layers."""
    config = SMOLLM3 | {"no_rope_layers": [1, 1, 1, 0]}
    assert [spec.rotary is not None for spec in load_layers(config)] == [True, True, True, False]
    assert load_layers(config) == load_layers(SMOLLM3)  # the default interval is 4
    assert [s.rotary is None for s in load_layers(SMOLLM3 | {"no_rope_layer_interval": 2})] == [False, True] * 2
    said = "no_rope_layers[3] = 0: 1 is a layer with rotary embeddings, 0 without"
    assert said in read(config, layer=3).warnings
    theirs = transformers.SmolLM3Config(**{k: v for k, v in config.items() if k != "model_type"})
    assert load_layers(theirs) == load_layers(config)


@pytest.mark.parametrize("value", [[1, 1, 0], [1, 1, 1, 2], "1110", [1, 1, 1, None]])
def test_a_list_of_the_wrong_length_or_kind_is_refused(value):
    with pytest.raises(SpecError, match="no_rope_layers"):
        load_layers(SMOLLM3 | {"no_rope_layers": value})


def test_a_layer_without_rotary_embeddings_gives_a_token_one_query_everywhere():
    for layer, moved in ((2, True), (3, False)):
        spec = load_spec(SMOLLM3, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(random_weights(spec, 1))
        token = torch.randn(1, 1, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        positions = torch.tensor([[3, 11]])
        stages = block.stages(token.expand(1, 2, 24), positions, torch.ones(1, 2, dtype=torch.long))
        queries = stages.get("q_rotated", stages["q"])
        assert torch.equal(queries[:, :, 0], queries[:, :, 1]) is not moved


@pytest.mark.parametrize(
    ("model_type", "rotates"),
    [
        ("cohere2", [True, True, True, False]),
        ("exaone4", [True, True, True, False]),
        ("afmoe", [True, True, True, False]),
        ("kolibri1", [True, True, True, True]),
    ],
)
def test_rotary_embeddings_on_sliding_layers_alone(model_type, rotates):
    specs = load_layers({"model_type": model_type, "num_hidden_layers": 4})
    assert [spec.rotary is not None for spec in specs] == rotates
    assert [spec.window is not None for spec in specs] == rotates


def test_exaone_4_without_a_window_rotates_everywhere():
    config = {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": None, "layer_types": [FULL] * 4}
    assert all(spec.rotary is not None and spec.window is None for spec in load_layers(config))


def test_a_base_for_each_layer():
    config = {"model_type": "granite_swa", "num_hidden_layers": 3, "layer_rope_theta": [0, 1e4, 5e5]}
    found = [None if s.rotary is None else s.rotary.schedule.rope_theta for s in load_layers(config)]
    assert found == [None, 1e4, 5e5]
    for wrong in ([1e4, 1e4], [1e4, -1.0, 1e4], 1e4):
        with pytest.raises(SpecError, match="layer_rope_theta"):
            load_layers(config | {"layer_rope_theta": wrong})


def test_olmo_3_scales_its_full_layers_alone():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024, "attention_factor": 1.2}
    config = {"model_type": "olmo3", "num_hidden_layers": 4, "rope_theta": 500000, "rope_scaling": yarn}
    specs = load_layers(config)
    assert [spec.rotary.schedule.kind for spec in specs] == ["default"] * 3 + ["yarn"]
    assert [spec.rotary.magnitude for spec in specs] == [1.0] * 3 + [1.2]
    assert {spec.rotary.schedule.rope_theta for spec in specs} == {500000.0}


HYBRIDS = {
    "jamba": ({"model_type": "jamba"}, 0, "mamba", [4, 12, 20, 28]),
    "lfm2": ({"model_type": "lfm2", "full_attn_idxs": [2, 5]}, 3, "conv", [2, 5]),
    "qwen3_next": ({"model_type": "qwen3_next", "num_hidden_layers": 8}, 1, "linear_attention", [3, 7]),
    "recurrent_gemma": ({"model_type": "recurrent_gemma", "num_hidden_layers": 7}, 1, "recurrent", [2, 5]),
    "nemotron_h": (
        {"model_type": "nemotron_h", "num_hidden_layers": 6, "hybrid_override_pattern": "M-*EM*"},
        3,
        "moe",
        [2, 5],
    ),
    "minimax": ({"model_type": "minimax", "num_hidden_layers": 4}, 1, "linear_attention", [0, 2]),
    "by layer_types": (
        {"model_type": "lfm2_moe", "num_hidden_layers": 3, "layer_types": ["conv", FULL, "conv"]},
        2,
        "conv",
        [1],
    ),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_layer_that_is_no_attention_is_named_by_its_type(name):
    config, other, kind, attention = HYBRIDS[name]
    with pytest.raises(SpecError, match=rf"layer {other} has no attention: it is of type '{kind}'; choose another"):
        load_spec(config, layer=other)
    assert [reading.layer for reading in read_layers(config)] == attention
    with pytest.raises(SpecError, match="has no attention"):
        load_layers(config)


def test_what_a_spec_does_not_hold_is_said_and_not_exported(tmp_path):
    config = {"model_type": "diffllama", "num_hidden_layers": 4}
    reading = read(config, layer=3)
    assert reading.beyond == "a difference of two softmaxes (differential attention)"
    assert any("a difference of two softmaxes" in line for line in reading.warnings)
    with pytest.raises(SpecError, match=r"attention has a difference of two softmaxes .*no block carries"):
        portpe.export(config, tmp_path / "out", layer=3)


def test_parts_of_a_whole_model():
    assert read(GEMMA_3).part == "text"
    assert load_spec(GEMMA_3, part="text") == load_spec(GEMMA_3_4B)
    with pytest.raises(SpecError, match="part must be 'text' for model_type 'gemma3', got 'vision'"):
        load_spec(GEMMA_3, part="vision")
    t5gemma = {"model_type": "t5gemma", "encoder": {"num_hidden_layers": 2}, "decoder": {"is_decoder": True}}
    with pytest.raises(SpecError, match="part must be 'encoder' or 'decoder'"):
        load_spec(t5gemma)
    assert load_spec(t5gemma, part="decoder").causal
    encoder = load_spec(t5gemma, part="encoder")
    assert (encoder.causal, encoder.window_radius) == (False, 4096)
