"""Presets: every one loads; sizes against transformers' defaults that are a published model; numbers worked by hand."""

import math

import pytest
import transformers

from portpe.config import load_layers, load_spec, preset_names, presets, read

transformers.utils.logging.set_verbosity_error()


PARTS = {
    **dict.fromkeys(("whisper", "t5", "mt5"), ("encoder", "decoder")),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), ("text", "vision")),
}


def parts(name):
    return PARTS.get(presets.find(name)["model_type"], (None,))


def test_there_are_enough_and_they_cover_most_families():
    names = preset_names()
    assert len(names) >= 20
    assert names == sorted(set(names))
    families = {presets.find(name)["model_type"] for name in names}
    assert len(families) >= 20


@pytest.mark.parametrize("name", preset_names())
def test_first_and_last_layer_load(name):
    for part in parts(name):
        reading = read(name, part=part)
        last = read(name, layer=reading.num_layers - 1, part=part)
        assert reading.source_name == name
        assert reading.spec.num_heads * reading.spec.head_dim > 0
        assert last.layer == reading.num_layers - 1
        assert not any("is absent" in warning for warning in reading.warnings)


@pytest.mark.parametrize("name", preset_names())
def test_transformers_reads_the_same_settings(name):
    config = dict(presets.find(name))
    if name == "phi-3-vision-128k":  # transformers 5.24 no longer takes the name "su", under which it was published
        config["rope_scaling"] = config["rope_scaling"] | {"type": "longrope"}
    theirs = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    for part in parts(name):
        assert load_spec(theirs, part=part) == load_spec(name, part=part)


# transformers documents its defaults as those of a published model.
DEFAULTS = {
    "gpt-neox-20b": transformers.GPTNeoXConfig,
    "gpt-j-6b": transformers.GPTJConfig,
    "gemma-7b": transformers.GemmaConfig,
    "glm-4-9b-chat": transformers.GlmConfig,
    "gpt-oss-120b": transformers.GptOssConfig,
    "phi-1.5": transformers.PhiConfig,
    "gpt2": transformers.GPT2Config,
    "opt-125m": transformers.OPTConfig,
    "bert-base-uncased": transformers.BertConfig,
    "albert-xxlarge-v2": transformers.AlbertConfig,
    "whisper-tiny": transformers.WhisperConfig,
    "falcon-7b": transformers.FalconConfig,
    "t5-small": transformers.T5Config,
    "mt5-small": transformers.MT5Config,
    "vit-base-patch16-224": transformers.ViTConfig,
    "swin-tiny-patch4-window7-224": transformers.SwinConfig,
    "xlnet-large-cased": transformers.XLNetConfig,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_config_is_the_published_model(name):
    config = DEFAULTS[name]()
    for part in parts(name):
        if name == "gpt-neox-20b":  # the class's default counts 44 layers too
            assert read(config).num_layers == 44
        assert load_layers(config, part=part) == load_layers(name, part=part)


def test_llama_31_8b():
    spec = load_spec("llama-3.1-8b")
    assert (spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4096, 32, 8, 128)
    assert spec.scale == pytest.approx(1 / math.sqrt(128), rel=1e-15)
    assert spec.rotary.schedule.rope_theta == 500000.0
    assert spec.rotary.schedule.factor == 8.0
    assert spec.max_position_embeddings == 131072
    assert load_layers("llama-3.1-8b") == [spec] * 32


def test_numbers_worked_by_hand():
    assert load_spec("phi-2").rotary.width == 32  # 0.4 of 80
    assert load_spec("gpt-neox-20b").rotary.width == 24  # a quarter of 96
    assert load_spec("gpt-j-6b").rotary.width == 64  # of 256
    assert load_spec("glm-4-9b-chat").rotary.width == 64  # half of 128
    assert load_spec("gemma-2b").num_kv_heads == 1
    assert load_spec("falcon-7b").num_kv_heads == 1
    assert load_spec("falcon-40b").num_heads // load_spec("falcon-40b").num_kv_heads == 16
    assert load_spec("falcon-rw-1b").bias[0].scale == 0.125  # 1 / sqrt(64)
    assert load_spec("mistral-7b-v0.1", layer=31).window == 4096
    assert load_spec("mistral-7b-v0.3").window is None
    assert load_spec("opt-350m").input_norm is None
    assert load_spec("opt-125m").embedding.rows == 2050
    assert load_spec("roberta-base").max_position_embeddings == 512  # 514 rows, the first two for padding
    assert load_spec("mpt-7b-storywriter").clip_qkv == 6.0
    assert load_spec("mpt-7b-storywriter").bias[0].bias_max == 16.0
    assert load_spec("whisper-small", part="encoder").embedding.rows == 1500
    assert load_spec("albert-base-v2").input_width == 128
    assert [spec.window for spec in load_layers("gpt-oss-20b")] == [128, None] * 12
    assert load_spec("gpt-oss-20b").rotary.attention_factor == pytest.approx(0.1 * math.log(32) + 1, rel=1e-15)
    # LongRoPE of a 128k model: sqrt(1 + ln 32 / ln 4096)
    assert load_spec("phi-3-vision-128k").rotary.attention_factor == pytest.approx(math.sqrt(17 / 12), rel=1e-15)


def test_every_site_and_kind_of_deployed_models_has_a_preset():
    kinds = set()
    for name in preset_names():
        for part in parts(name):
            for spec in load_layers(name, part=part):
                kinds |= {encoding.kind for encoding in spec.encodings} | {spec.projection}
                if spec.rotary is not None:
                    kinds |= {spec.rotary.schedule.kind, "one" if spec.rotary.axes is None else spec.rotary.axes.kind}
    assert {"buckets", "deberta", "grid_table", "transformer_xl", "learned_grid", "mla", "sectioned", "axial"} <= kinds


def test_numbers_of_other_kinds_worked_by_hand():
    assert [spec.causal for part in parts("t5-small") for spec in load_layers("t5-small", part=part)] == [
        *[False] * 6,
        *[True] * 6,
    ]
    assert load_spec("flan-t5-xl", part="decoder").bias[0].bidirectional is False
    assert load_spec("t5-base", part="encoder").scale == 1.0  # T5 does not divide by sqrt(64)
    assert load_spec("mt5-small", part="encoder").head_dim * load_spec("mt5-small", part="encoder").num_heads == 384
    # DeepSeek: 1 / sqrt(128 + 64) times the square of 0.1 mscale_all_dim ln 40 + 1
    for name, mscale in (("deepseek-v3", 1.0), ("deepseek-v2-lite", 0.707)):
        spec = load_spec(name)
        assert spec.scale == pytest.approx((0.1 * mscale * math.log(40) + 1) ** 2 / math.sqrt(192), rel=1e-14)
        assert spec.rotary.attention_factor == 1.0  # both of its multipliers are equal
        assert (spec.rotary.width, spec.head_dim, spec.v_head_dim) == (64, 192, 128)
    assert load_spec("deepseek-v2-lite").mla.q_lora_rank is None
    # Gemma 3: every sixth layer sees everything, and its base is another one
    layers = load_layers("gemma-3-4b")
    assert [spec.window for spec in layers[:12]] == ([1024] * 5 + [None]) * 2
    assert (layers[0].rotary.schedule.rope_theta, layers[5].rotary.schedule.rope_theta) == (10000.0, 1000000.0)
    assert (layers[0].rotary.schedule.kind, layers[5].rotary.schedule.factor) == ("default", 8.0)
    assert load_spec("gemma-3-1b").scale == 0.0625  # 1 / sqrt(256)
    assert load_spec("qwen2-vl-7b", part="text").rotary.axes.sections == (16, 24, 24)
    assert load_spec("qwen2.5-vl-7b", part="vision").rotary.width == 80  # 1280 / 16
    dinov3 = load_spec("dinov3-vits16").rotary
    assert (dinov3.prefix_tokens, dinov3.coordinates, dinov3.schedule.rope_theta) == (5, "centred", 100.0)
    assert load_spec("vit-base-patch16-224").embedding.grid == (14, 14)  # 224 / 16
    assert [spec.num_heads for spec in load_layers("swin-tiny-patch4-window7-224")] == [3] * 2 + [6] * 2 + [12] * 6 + [
        24
    ] * 2
    assert load_spec("deberta-v3-base").bias[0].max_distance == 512
    assert load_spec("deberta-base").bias[0].span == 512
    assert load_spec("deberta-v3-base").scale == pytest.approx(1 / math.sqrt(3 * 64), rel=1e-15)
    assert load_spec("xlnet-large-cased").bias[0].clamp is None


def test_a_preset_is_not_shared_between_callers():
    presets.find("gpt2")["n_positions"] = 3
    assert load_spec("gpt2").embedding.rows == 1024
