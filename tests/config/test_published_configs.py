"""Configs as published with well-known checkpoints: each is read as it stands, with what its model card or paper says.

``published/*.json`` holds of each config the keys that matter, with their real values; ``{"$times": [n, list]}`` is a
list that repeats. The facts are worked by hand from model cards, papers and the numbers that the configs state.
"""

import json
import math
import warnings
from pathlib import Path

import pytest
import transformers

from portpe import schedules
from portpe.config import load_layers, read, read_layers
from portpe.errors import SpecError
from tests.config.published_cards import CARDS

transformers.utils.logging.set_verbosity_error()


def _list_of(pairs):
    return pairs["$times"][1] * pairs["$times"][0] if "$times" in pairs else pairs


CONFIGS = {
    name: config
    for file in sorted(Path(__file__).with_name("published").glob("*.json"))
    for name, config in json.loads(file.read_text(encoding="utf-8"), object_hook=_list_of).items()
}


def _found(spec):
    if spec.rotary is not None:
        rotary = spec.rotary
        theta = getattr(rotary.schedule, "rope_theta", None)
        return (rotary.pairing, rotary.width, theta, rotary.schedule.kind, rotary.attention_factor)
    return spec.bias[0].kind if spec.bias else None


def _of(name):
    """The config of a card, and the part that it is of."""
    return (CONFIGS[name], None) if name in CONFIGS else (CONFIGS[name.rsplit(" ", 1)[0]], name.rsplit(" ", 1)[1])


@pytest.mark.parametrize("name", CARDS)
def test_every_layer_is_what_the_card_says(name):
    expected, (config, part) = CARDS[name], _of(name)
    readings = read_layers(config, part)
    assert [reading.layer for reading in readings] == list(expected.numbers)
    for reading in readings:
        spec, n = reading.spec, reading.layer
        assert (spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (
            *(expected.hidden, expected.heads, expected.kv_heads),
        )
        assert spec.head_dim == expected.head_dim
        assert spec.scale == pytest.approx(expected.scale or expected.head_dim**-0.5, rel=1e-14)
        site = expected.sites[n % len(expected.sites)]
        assert _found(spec) == (_near(site) if isinstance(site, tuple) else site)
        assert (spec.embedding and spec.embedding.kind) == (expected.table if n == 0 else None)
        assert spec.window == expected.windows[n % len(expected.windows)]
        for key, value in expected.more.items():
            assert getattr(spec, key) == (value[n % len(value)] if isinstance(value, tuple) else value), key


def _near(site):
    pairing, width, theta, law, magnitude = site
    return pairing, width, pytest.approx(theta, rel=1e-14), law, pytest.approx(magnitude, rel=1e-14)


STAGES = {  # the depths, the width and heads of the first stage, the side of a window
    "microsoft/swin-tiny-patch4-window7-224": ((2, 2, 6, 2), 96, 3, 7, "grid_table"),
    "microsoft/swinv2-tiny-patch4-window8-256": ((2, 2, 6, 2), 96, 3, 8, "grid_network"),
    "naver-clova-ix/donut-base": ((2, 2, 14, 2), 128, 4, 10, "grid_table"),
}


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_is_twice_as_wide_as_the_one_before(name):
    depths, width, heads, side, kind = STAGES[name]
    stages = [stage for stage, depth in enumerate(depths) for _ in range(depth)]
    with warnings.catch_warnings(action="ignore"):
        specs = load_layers(CONFIGS[name])
    assert [(spec.hidden_size, spec.num_heads) for spec in specs] == [
        (width * 2**stage, heads * 2**stage) for stage in stages
    ]
    assert {(spec.bias[0].kind, spec.bias[0].height, spec.bias[0].width) for spec in specs} == {(kind, side, side)}


def test_every_config_has_a_card():
    named = {name if name in CONFIGS else name.rsplit(" ", 1)[0] for name in CARDS}
    assert named | set(STAGES) == set(CONFIGS)
    assert len(CONFIGS) >= 120


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_it_too(name):
    config = json.loads(json.dumps(CONFIGS[name]))
    model_type = {"kimi_k2": "deepseek_v3"}.get(config.pop("model_type"), CONFIGS[name]["model_type"])
    found = transformers.CONFIG_MAPPING[model_type](**config)
    kinds = getattr(found, "layer_types", None)
    if kinds and "sliding_attention" in kinds and not found.to_dict().get("use_bidirectional_attention"):
        ours = [
            "sliding_attention" if one.window or one.window_radius else "full_attention"
            for one in load_layers(CONFIGS[name])
        ]
        assert ours == kinds


def _bottom(name):
    """The config that holds a text model's keys."""
    config = json.loads(json.dumps(CONFIGS[name]))
    return config, config.get("text_config", config)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_that_nobody_knows_is_refused_in_each(name):
    """No rule for what is published lets a stranger pass."""
    config, inner = _bottom(name)
    inner["use_attention_of_a_new_kind"] = True
    part = next((one.rsplit(" ", 1)[1] for one in CARDS if one.startswith(f"{name} ")), None)
    numbers = (0,) if name in STAGES else CARDS[f"{name} {part}" if part else name].numbers
    with pytest.raises(SpecError, match="use_attention_of_a_new_kind is not a key that portpe knows"):
        read(config, numbers[0], part)


# (checkpoint, what contradicts the rest, how the refusal begins)
TWINS = [
    (
        "google/gemma-2-9b-it",
        {"sliding_window_size": 2048},
        "sliding_window_size must agree with sliding_window = 4096, ",
    ),
    ("LGAI-EXAONE/EXAONE-4.0-32B", {"sliding_window_pattern": "LLGL"}, "sliding_window_pattern must agree with layer_"),
    ("LGAI-EXAONE/EXAONE-4.0-32B", {"sliding_window_pattern": 3}, "sliding_window_pattern must agree with layer_types"),
    (
        "LGAI-EXAONE/EXAONE-4.0-32B",
        {"sliding_window_pattern": "LLLX"},
        "sliding_window_pattern must be a number of lay",
    ),
    ("LGAI-EXAONE/EXAONE-4.0-32B", {"sliding_window_pattern": ""}, "sliding_window_pattern must be a number of layers"),
    (
        "CohereLabs/tiny-aya-earth",
        {"sliding_window_pattern": "LLLG"},
        "sliding_window_pattern must be an integer >= 1,",
    ),
    ("CohereLabs/tiny-aya-earth", {"layer_switch": 3}, "layer_switch must agree with layer_types, by which layer 2 is"),
    (
        "CohereLabs/c4ai-command-r7b-12-2024",
        {"layer_switch": 2},
        "layer_switch must agree with sliding_window_pattern,",
    ),
    ("CohereLabs/c4ai-command-r7b-12-2024", {"rotary_pct": 0.5}, "rotary_pct must be 1.0 for model_type 'cohere2'"),
    ("CohereLabs/c4ai-command-r7b-12-2024", {"rotary_pct": True}, "rotary_pct must be 1.0 for model_type 'cohere2'"),
    (
        "CohereLabs/c4ai-command-r7b-12-2024",
        {"order_of_interleaved_layers": "global_attn_first"},
        "order_of_interleaved_layers must be 'local_attn_first'",
    ),
    (
        "CohereLabs/c4ai-command-r7b-12-2024",
        {"position_embedding_type": "rope_neox"},
        "position_embedding_type must be 'rope_gptj'",
    ),
    ("CohereLabs/aya-expanse-8b", {"position_embedding_type": "alibi"}, "position_embedding_type must be 'rope_gptj'"),
    ("CohereLabs/tiny-aya-earth", {"use_qk_norm": True}, "use_qk_norm is not a key that portpe knows"),
    (
        "Qwen/Qwen3-Next-80B-A3B-Thinking",
        {"use_sliding_window": True},
        "use_sliding_window is not a key that portpe kn",
    ),
    ("rednote-hilab/dots.llm1.inst", {"sliding_window": 9, "max_window_layers": 0}, "use_sliding_window is not a key "),
    ("facebook/cwm", {"attention_bias": True}, "attention_bias is not a key that portpe knows"),
    ("microsoft/phi-2", {"attention_bias": False}, "attention_bias is not a key that portpe knows"),
    (
        "bigcode/starcoder2-7b",
        {"layer_norm_epsilon": 1e-6},
        "layer_norm_epsilon must agree with norm_epsilon = 1e-05, ",
    ),
    ("bigcode/starcoder2-7b", {"norm_type": "rms_norm"}, "norm_type must be 'layer_norm'"),
    ("bigcode/starcoder2-7b", {"scale_attn_weights": False}, "scale_attn_weights must be True"),
    ("Salesforce/codegen-350M-mono", {"scale_attn_weights": False}, "scale_attn_weights must be True"),
    ("stabilityai/stablelm-zephyr-3b", {"rope_pct": 0.5}, "rope_pct must agree with partial_rotary_factor = 0.25, got"),
    ("stabilityai/stablelm-zephyr-3b", {"norm_eps": 1e-6}, "norm_eps must agree with layer_norm_eps = 1e-05"),
    ("stabilityai/stablelm-zephyr-3b", {"rotary_scaling_factor": 2.0}, "rotary_scaling_factor must be 1.0"),
    ("MiniMaxAI/MiniMax-M2", {"attn_type_list": [1] * 61 + [0]}, "attn_type_list must agree with the layers of this "),
    ("MiniMaxAI/MiniMax-M2", {"attn_type_list": [1] * 61}, "attn_type_list must agree with the layers of this model"),
    ("MiniMaxAI/MiniMax-M2", {"qk_norm_type": "per_head"}, "qk_norm_type must be 'per_layer'"),
    ("MiniMaxAI/MiniMax-M2", {"use_qk_norm": False}, "use_qk_norm must be True"),
    ("MiniMaxAI/MiniMax-M2", {"layernorm_full_attention_beta": 2.0}, "layernorm_full_attention_beta must be 1.0"),
    ("tencent/HunyuanImage-2.1", {"use_cla": True}, "use_cla must be False"),
    (
        "tencent/HunyuanImage-2.1",
        {"attention_head_dim": 64},
        "attention_head_dim must agree with head_dim = 128, got 64",
    ),
    ("tencent/HunyuanImage-2.1", {"norm_type": "layer"}, "norm_type must be 'rms'"),
    ("LiquidAI/LFM2-350M", {"num_heads": 8}, "num_heads must agree with num_attention_heads = 16, got 8"),
    ("LiquidAI/LFM2-350M", {"block_norm_eps": 1e-6}, "block_norm_eps must agree with norm_eps = 1e-05"),
    ("LiquidAI/LFM2-350M", {"use_pos_enc": False}, "use_pos_enc must be True"),
    ("ibm-granite/granite-4.0-h-tiny", {"normalization_function": "layernorm"}, "normalization_function must be 'rmsn"),
    ("Zyphra/Zamba2-7B", {"use_shared_attention_lora": True}, "use_shared_attention_lora must be False"),
    ("answerdotai/ModernBERT-base", {"layer_norm_eps": 1e-12}, "layer_norm_eps must agree with norm_eps = 1e-05"),
    (
        "answerdotai/ModernBERT-base",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type must be 'abs",
    ),
    (
        "ibm-ai-platform/Bamba-9B",
        {"attn_rotary_emb": 32},
        "attn_rotary_emb must agree with the rotary width = 64, got 32",
    ),
    ("swiss-ai/Apertus-8B-2509", {"qk_norm": False}, "qk_norm must be True"),
    ("allenai/longformer-base-4096", {"attention_mode": "n2"}, "attention_mode must be 'longformer'"),
    ("allenai/longformer-base-4096", {"ignore_attention_mask": True}, "ignore_attention_mask must be False"),
    ("microsoft/swin-tiny-patch4-window7-224", {"path_norm": False}, "path_norm must be True"),
    ("nomic-ai/nomic-embed-text-v1.5", {"n_head": 16}, "n_head must agree with num_attention_heads = 12, got 16"),
    ("nomic-ai/nomic-embed-text-v1.5", {"n_embd": 1024}, "n_embd must agree with hidden_size = 768, got 1024"),
    ("nomic-ai/nomic-embed-text-v1.5", {"num_attention_heads": None}, "num_attention_heads is required beside n_head"),
    ("nomic-ai/nomic-embed-text-v1.5", {"rotary_emb_base": 10000}, "rotary_emb_base must agree with rope_theta = 1000"),
    ("nomic-ai/nomic-embed-text-v1.5", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction must be 1.0"),
    ("nomic-ai/nomic-embed-text-v1.5", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved must be False"),
    ("nomic-ai/nomic-embed-text-v1.5", {"rotary_scaling_factor": 2.0}, "rotary_scaling_factor must be left out"),
    ("nomic-ai/nomic-embed-text-v1.5", {"causal": True}, "causal must be False"),
    ("nomic-ai/nomic-embed-text-v1.5", {"prenorm": True}, "prenorm must be False"),
    ("meta-llama/Llama-4-Scout-17B-16E", {"no_rope_layers": [1, 0]}, "no_rope_layers must list one for each of the 48"),
]


@pytest.mark.parametrize(("name", "changes", "message"), TWINS)
def test_a_twin_that_contradicts_itself_is_refused(name, changes, message):
    config, inner = _bottom(name)
    inner.update(changes)
    with pytest.raises(SpecError) as error, warnings.catch_warnings(action="ignore"):
        read_layers(config, "text" if inner is not config else None)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


UNREAD = [
    (name, changes)
    for name, changes, message in TWINS
    if "must agree with " in message and not {"sliding_window_pattern", "layer_switch"} & set(changes)
]


@pytest.mark.parametrize(("name", "changes"), UNREAD)
def test_a_contradiction_of_what_nothing_reads_can_be_let_pass(name, changes):
    config = dict(CONFIGS[name])
    (key,) = changes
    before = [reading.spec for reading in read_layers(config)]
    config.update(changes)
    assert [reading.spec for reading in read_layers(config, ignore_keys=[key])] == before


def test_the_last_layer_of_a_pattern_sees_all():
    """As EXAONE 4 documents it: LLLG over six layers."""
    config = CONFIGS["LGAI-EXAONE/EXAONE-4.0-32B"] | {"num_hidden_layers": 6, "layer_types": None}
    assert [spec.window for spec in load_layers(config)] == [4096, 4096, 4096, None, 4096, None]
    assert [spec.rotary is None for spec in load_layers(config)] == [False, False, False, True, False, True]


def test_hunyuan_and_llama_4_scale_their_frequencies():
    """alpha: a base of 10000 * alpha^(128 / 126). Llama 4 Scout: both ends of llama3's ramp meet at 8192 positions."""
    hunyuan = read(CONFIGS["tencent/HunyuanImage-2.1"]).spec.rotary
    base = 1e4 * 1000 ** (128 / 126)
    assert schedules.inv_freq(hunyuan) == pytest.approx([base ** (-i / 64) for i in range(64)], rel=1e-12)
    scout = read(CONFIGS["meta-llama/Llama-4-Scout-17B-16E"], 0, "text").spec.rotary
    plain = [500000.0 ** (-i / 64) for i in range(64)]
    by_hand = [theta / 16 if 2 * math.pi / theta > 8192 else theta for theta in plain]
    assert 0 < sum(one != other for one, other in zip(plain, by_hand, strict=True)) < 64
    assert schedules.inv_freq(scout) == pytest.approx(by_hand, rel=1e-12)
