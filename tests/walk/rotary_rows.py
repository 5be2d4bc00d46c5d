"""Decoders with a rotary module: one row a model_type."""

from __future__ import annotations

import copy

import torch
from transformers.models.gemma3n import modeling_gemma3n

from tests.walk.ropes import DYNAMIC, LINEAR, LLAMA3, PROPORTIONAL, YARN, longrope, scaled
from tests.walk.rotary_check import POSITIONS, assert_same_numbers, assert_same_rotation, rotary
from tests.walk.row import Case, Row
from tests.walk.site_checks import no_encoding


def gptj_table(case: Case) -> None:
    """GPT-J keeps one table, sines then cosines, each half the rotary width."""
    ((_, reading),) = case.layers()
    encoding = reading.spec.rotary
    assert encoding is not None
    positions = POSITIONS % 5001  # a table of a million rows takes seconds
    table = case.modeling.create_sinusoidal_positions(5001, case.config.rotary_dim)
    sin, cos = table[torch.from_numpy(positions)].chunk(2, dim=-1)
    assert_same_numbers(encoding, cos, sin, positions)

    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> list[torch.Tensor]:
        turned = (case.modeling.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos) for x in (q, k))
        return [x.transpose(1, 2) for x in turned]

    assert_same_rotation(encoding, apply, cos, sin, positions)


def granite_swa_settings(case: Case, layer: int) -> object:
    """The config with the base of one layer, as the model itself makes it."""
    config = copy.deepcopy(case.config)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": config.layer_rope_theta[layer]}
    return config


def turned_first(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> list[torch.Tensor]:
    """(x, cos, sin) in place of (q, k, cos, sin)."""
    return [modeling_gemma3n.apply_rotary_pos_emb(x, cos, sin) for x in (q, k)]


def molmo2(case: Case) -> None:
    """Two modules, one for the layers that are scaled."""
    for index, reading in case.layers():
        module = case.modeling.Molmo2RotaryEmbedding(case.config, scaled=index in case.config.rope_scaling_layers)
        cos, sin = module(torch.zeros(1), torch.from_numpy(POSITIONS))
        assert reading.spec.rotary is not None
        assert_same_numbers(reading.spec.rotary, cos, sin)
        assert_same_rotation(reading.spec.rotary, case.modeling.apply_rotary_pos_emb, cos, sin)


def phimoe(case: Case) -> None:
    """Each set of factors with the magnitude that is stated for it. Past the original length the module keeps the
    short factors (see ``wrong``); there its own law is asked for the long ones, and the stated magnitude multiplies.
    """
    parameters = case.config.rope_parameters
    if parameters["rope_type"] != "longrope":
        rotary()(case)
        return
    ((_, reading),) = case.layers()
    encoding, original = reading.spec.rotary, parameters["original_max_position_embeddings"]
    assert encoding is not None
    module = case.modeling.PhimoeRotaryEmbedding(case.config)
    for positions, side in ((POSITIONS % original, "short"), (POSITIONS, "long")):
        cos, sin = module(torch.zeros(1), torch.from_numpy(positions))
        if side == "long":
            frequencies, _ = module.rope_init_fn(case.config, seq_len=original + 1)
            angles = torch.from_numpy(positions)[..., None].float() * frequencies
            magnitude = parameters["long_mscale"]
            kept, (cos, sin) = cos, (torch.cos(angles) * magnitude, torch.sin(angles) * magnitude)
            assert (kept[..., : cos.shape[-1]] - cos).abs().max() > 0.5
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        assert_same_numbers(encoding, cos, sin, positions)
        assert_same_rotation(encoding, case.modeling.apply_rotary_pos_emb, cos, sin, positions)


SCALED = scaled()
SMALL = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4}
ZAMBA = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 6}
# Every layer alike, the whole head turned.
PLAIN = [
    "afmoe",
    "apertus",
    "apertus1p5_text",
    "arcee",
    "aria_text",
    "bitnet",
    "blt_global_transformer",
    "blt_local_decoder",
    "blt_local_encoder",
    "blt_patcher",
    "cohere",
    "cohere2",
    "csm",
    "csm_depth_decoder_model",
    "cwm",
    "dbrx",
    "deepseek_ocr2_text",
    "dia_decoder",
    "dia_encoder",
    "diffllama",
    "doge",
    "dots1",
    "emu3_text_model",
    "ernie4_5",
    "ernie4_5_moe",
    "esmc",
    "eurobert",
    "exaone4",
    "exaone_moe",
    "falcon_h1",
    "flex_olmo",
    "flint",
    "gemma",
    "gemma2",
    "gpt_oss",
    "granite",
    "granite4_vision_text",
    "granite_docling_text",
    "granitemoe",
    "granitemoeshared",
    "gte",
    "helium",
    "higgs_audio_v2",
    "hrm_text",
    "hy_v3",
    "hyperclovax",
    "jais2",
    "jetmoe",
    "jina_embeddings_v3",
    "kolibri1",
    "lara_mini",
    "lasr_encoder",
    "lfm2",
    "lfm2_moe",
    "llama",
    "mimi",
    "mimi_decoder",
    "mimi_encoder",
    "mistral",
    "mllama_text_model",
    "moshi",
    "pocket_tts",
    "gradium_phonon_tts",
    "nanochat",
    "nomic_bert",
    "olmo",
    "olmo2",
    "olmo_hybrid",
    "olmoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "solar_open",
    "starcoder2",
    "t5_gemma_module",
    "vaultgemma",
    "voxtral_realtime_encoder",
    "voxtral_realtime_text",
]
NAMES = {
    "csm_depth_decoder_model": "CsmRotaryEmbedding",
    "t5_gemma_module": "T5GemmaRotaryEmbedding",
    "blt_global_transformer": "BltRotaryEmbedding",
    "blt_local_encoder": "BltRotaryEmbedding",
    "blt_local_decoder": "BltRotaryEmbedding",
    "blt_patcher": "BltRotaryEmbedding",
    "mimi_encoder": "MimiRotaryEmbedding",
    "mimi_decoder": "MimiRotaryEmbedding",
    "dia_encoder": "DiaRotaryEmbedding",
    "dia_decoder": "DiaRotaryEmbedding",
    "voxtral_realtime_encoder": "VoxtralRealtimeRotaryEmbedding",
    "mllama_text_model": "MllamaRotaryEmbedding",
}
# transformers' yarn takes a head_dim of null for a number.
NULL_HEAD_DIM = ("mixtral", "ministral", "minimax")
# As those, but a part of the head is turned.
PARTIAL = ("phi", "glm", "glm4", "stablelm", "persimmon", "nemotron", "minimax_m2", "qwen3_next")
LLAMA_CLASSES = ("internlm3", "iquestcoder", "exaone")


def nested(full: dict, sliding: dict | None = None) -> dict:
    """rope_parameters by layer type."""
    default = {"rope_type": "default", "rope_theta": 20000.0}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding or default}}


LOCAL_AND_GLOBAL = {"linear": nested(LINEAR), "yarn": nested(YARN), "both": nested(LLAMA3, LINEAR)}

DECODERS = (
    *(Row(name, rotary(NAMES.get(name)), SCALED) for name in PLAIN),
    *(Row(name, rotary(), {k: {**v, "head_dim": 128} for k, v in SCALED.items()}) for name in NULL_HEAD_DIM),
    *(Row(name, rotary("LlamaRotaryEmbedding", modeling="llama"), SCALED) for name in LLAMA_CLASSES),
    *(Row(name, rotary(), scaled(partial_rotary_factor=0.75)) for name in PARTIAL),
    *(Row(name, rotary(), LOCAL_AND_GLOBAL) for name in ("gemma3_text", "olmo3", "mellum", "ultrabert")),
    Row("modernbert", rotary(), LOCAL_AND_GLOBAL),
    Row("modernbert-decoder", rotary(), LOCAL_AND_GLOBAL),
    Row("gemma3n_text", rotary(apply=turned_first), LOCAL_AND_GLOBAL),
    *(
        Row(name, rotary(apply=turned_first), {"linear": nested(PROPORTIONAL, LINEAR)})
        for name in ("gemma4_text", "gemma4_unified_text")
    ),
    Row(
        "mimo_v2_flash",
        rotary(),
        {
            "yarn": nested(
                {**YARN, "partial_rotary_factor": 0.5},
                {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.25},
            )
        },
    ),
    *(
        Row(
            name,
            rotary(settings=granite_swa_settings),
            {"by layer": {"layer_rope_theta": [0.0, 10000.0, 5e5] + [10000.0] * (layers - 3)}},
        )
        for name, layers in (("granite_swa", 24), ("granitemoe_swa", 32))
    ),
    Row(
        "llama", rotary(), {"dynamic": {"rope_parameters": DYNAMIC}, "proportional": {"rope_parameters": PROPORTIONAL}}
    ),
    Row(
        "phi3",
        rotary(),
        {
            "longrope": {
                "rope_parameters": longrope(36) | {"partial_rotary_factor": 0.75},
                "original_max_position_embeddings": 3000,
            }
        },
    ),
    Row("gpt_neox", rotary(), scaled(partial_rotary_factor=0.5)),
    Row("gpt_neox_japanese", rotary(), scaled(partial_rotary_factor=0.5)),
    Row("moonshine", rotary(), scaled(partial_rotary_factor=0.5), part="encoder"),
    Row("moonshine", rotary(), scaled(partial_rotary_factor=0.5), part="decoder"),
    Row("sarvam_moe", rotary("Glm4MoeRotaryEmbedding", modeling="glm4_moe"), scaled(partial_rotary_factor=0.5)),
    *(
        Row(name, rotary(), {"yarn": nested({**YARN, "partial_rotary_factor": 0.5}, LINEAR)})
        for name in ("laguna", "embedding_gemma2_text")
    ),
    Row("lfm3", rotary(), {"both": nested(PROPORTIONAL, LINEAR)}),
    Row(
        "step3p5",
        rotary("Step3p7RotaryEmbedding", modeling="step3p7"),
        {
            "lists": {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 15,
                "rope_theta": [5e6, 1e4, 1e4] * 15,
                "partial_rotary_factors": [0.5, 1.0, 1.0] * 15,
                "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"},
                "sliding_window": 512,
            },
        },
    ),
    Row("openai_privacy_filter", rotary("OpenAIPrivacyFilterRotaryEmbedding"), SCALED),
    Row("cohere2_moe", rotary(), {**SCALED, "dense first": {"first_k_dense_replace": 2}}),
    Row("molmo2_text", molmo2, {"some layers": {"rope_scaling_layers": [1, 5], "rope_parameters": YARN}}),
    Row("codegen", gptj_table, {"whole head": {"rotary_dim": 256}}),
    Row("gptj", gptj_table, {"whole head": {"rotary_dim": 256}}),
    Row("falcon", rotary(), {"linear": {"rope_parameters": LINEAR}}),
    Row(
        "glm4_moe",
        rotary(),
        scaled(partial_rotary_factor=0.25),
        default={"head_dim": 128},
        because="4096 channels over 96 heads leave an odd rotary width; released models state head_dim",
    ),
    Row(
        "phimoe",
        phimoe,
        {
            "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}},
            "longrope": {"rope_parameters": longrope(64) | {"short_mscale": 1.243, "long_mscale": 1.271}},
        },
        wrong="tests/test_hf_tables.py::test_transformers_phimoe_keeps_the_short_factors",
    ),
    Row(
        "bamba",
        rotary(),
        {"base": {"rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}}},
        default={"attn_layer_indices": [2, 5]},
        because="no layer of it is attention",
    ),
    Row(
        "granitemoehybrid",
        rotary(),
        SCALED,
        default={"layer_types": ["linear_attention", "full_attention"] * 16, "position_embedding_type": "rope"},
        because="no layer of it is attention",
    ),
    Row(
        "recurrent_gemma",
        rotary(),
        {"base": {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.25}}},
    ),
    Row("zamba2", rotary(), SCALED, default={"use_mem_rope": True}),
    Row(
        "zamba2",
        no_encoding("Zamba2Attention", ZAMBA, layer_idx=0),
        {"fewer": {"layers_block_type": ["hybrid"] * 2, "num_hidden_layers": 2}},
    ),
    Row("jamba", no_encoding("JambaAttention", SMALL), {"offset": {"attn_layer_offset": 2}}),
    Row(
        "nemotron_h",
        no_encoding("NemotronHAttention", SMALL),
        {"pattern": {"layers_block_type": ["full_attention", "linear_attention"]}},
    ),
    Row(
        "esm",
        rotary(),
        {"base": {"rope_theta": 3e4}},
        default={"position_embedding_type": "rotary"},
        because="without a pad_token_id its default has no first position",
    ),
)
