"""Rows of ``test_families``: multi-head latent attention, query temperatures and HunYuan's base.

(config class, its keywords, the older layout, the spec of layer 0), worked out from transformers' modelling code.
"""

from __future__ import annotations

import math
from typing import Any

from portpe.encodings import (
    DefaultSchedule,
    LinearSchedule,
    NtkSchedule,
    RotaryEncoding,
    SteppedTemperature,
    YarnSchedule,
)
from portpe.layer_parts import MlaProjection, Norm, ProjectionBiases
from portpe.spec import AttentionSpec

SIZES = {
    "hidden_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 320,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
}
LATENT = SIZES | {"q_lora_rank": 16}
NO_MLP = {"mlp_layer_types": ["dense"] * 4}
GQA = {
    "hidden_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 40,
    "mscale": 0.8,
    "mscale_all_dim": 0.9,
}
OLD_YARN = {("type" if key == "rope_type" else key): value for key, value in YARN.items() if key != "rope_theta"}
G, G_ALL = 0.1 * 0.8 * math.log(8.0) + 1, 0.1 * 0.9 * math.log(8.0) + 1
YARN_SCHEDULE = YarnSchedule(
    rope_theta=20000.0, factor=8.0, original_max_position_embeddings=40, mscale=0.8, mscale_all_dim=0.9
)


def latent(
    schedule: Any, pairing: str = "interleaved", out: str | None = "half", rank: int | None = 16, **fields: Any
) -> AttentionSpec:
    """A head of 10 + 8 channels; with YARN scores are G_ALL ** 2 times as large."""
    scaled = isinstance(schedule, YarnSchedule)
    rotary = schedule and RotaryEncoding(
        width=8,
        channels="last",
        pairing=pairing,
        pairing_out=out,
        schedule=schedule,
        contract=fields.pop("contract", "cos_sin"),
        attention_factor=G / G_ALL if scaled else 1.0,
        softmax_scale_multiplier=G_ALL**2 if scaled else 1.0,
    )
    usual = {
        "projection": "mla",
        "mla": MlaProjection(q_lora_rank=rank, kv_lora_rank=20, qk_rope_head_dim=8),
        "scale": 18**-0.5 * G_ALL * G_ALL if scaled else 18**-0.5,
        "rotary": rotary,
        "v_head_dim": 14,
    }
    return AttentionSpec(
        hidden_size=72, num_heads=6, num_kv_heads=6, head_dim=18, max_position_embeddings=320, **(usual | fields)
    )


def grouped(schedule: Any, **fields: Any) -> AttentionSpec:
    factor = fields.pop("attention_factor", None)
    rotary = schedule and RotaryEncoding(width=12, schedule=schedule, attention_factor=factor)
    sizes = {"hidden_size": 72, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 12}
    return AttentionSpec(**{**sizes, "max_position_embeddings": 320, "scale": 12**-0.5, "rotary": rotary} | fields)


def yarn(config_class: str, base: dict[str, Any], expected: AttentionSpec, **older: Any) -> tuple[Any, ...]:
    """A row whose rope block is YARN, in both layouts."""
    return (
        config_class,
        base | {"rope_parameters": YARN},
        base | {"rope_theta": 2e4, "rope_scaling": OLD_YARN} | older,
        expected,
    )


DEFAULT = DefaultSchedule()
AFTER = Norm(kind="rms", eps=3e-6, when="after")
TEMPERED = YARN | {"llama_4_scaling_beta": 0.2, "max_position_embeddings": 320}
STEPS = SteppedTemperature(interval=40, beta=0.2)
ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0, "mscale": 1.0, "beta_fast": 32}
HUNYUAN = grouped(NtkSchedule(factor=50.0), q_norm=AFTER, k_norm=AFTER)

LATENT_ROWS: dict[str, tuple[Any, ...]] = {
    "deepseek_v2": yarn("DeepseekV2Config", LATENT, latent(YARN_SCHEDULE, out=None, contract="polar")),
    "deepseek_v2 without a query latent": (
        "DeepseekV2Config",
        SIZES | {"q_lora_rank": None, "attention_bias": True},
        SIZES | {"q_lora_rank": None, "attention_bias": True, "rope_theta": 10000.0},
        latent(
            DEFAULT,
            out=None,
            contract="polar",
            mla=MlaProjection(q_lora_rank=None, kv_lora_rank=20, qk_rope_head_dim=8, bias=True),
            biases=ProjectionBiases(o=True),
        ),
    ),
    "deepseek_v3": yarn("DeepseekV3Config", LATENT | {"num_key_value_heads": 6}, latent(YARN_SCHEDULE)),
    "deepseek_v3 in halves": (
        "DeepseekV3Config",
        LATENT | {"num_key_value_heads": 6, "rope_interleave": False},
        LATENT | {"rope_interleave": False, "rope_scaling": None},
        latent(DEFAULT, "half", None),
    ),
    "deepseek_v32": yarn(
        "DeepseekV32Config",
        LATENT | {"num_key_value_heads": 6, "index_topk": 320} | NO_MLP,
        latent(YARN_SCHEDULE),
        rope_interleave=True,
    ),
    "glm_moe_dsa": yarn(
        "GlmMoeDsaConfig", LATENT | {"num_key_value_heads": 6, "index_topk": 400} | NO_MLP, latent(YARN_SCHEDULE)
    ),
    "youtu": yarn("YoutuConfig", LATENT | {"num_key_value_heads": 6}, latent(YARN_SCHEDULE)),
    "axk1": yarn("AXK1Config", LATENT | {"num_key_value_heads": 6} | NO_MLP, latent(YARN_SCHEDULE)),
    "sarvam_mla": (
        "SarvamMLAConfig",
        SIZES | {"rope_parameters": YARN},
        SIZES | {"rope_theta": 20000.0, "rope_scaling": OLD_YARN | {"type": "deepseek_yarn"}, "head_dim": 28},
        latent(YARN_SCHEDULE, rank=None),
    ),
    "glm4_moe_lite": yarn("Glm4MoeLiteConfig", LATENT | {"num_key_value_heads": 6} | NO_MLP, latent(YARN_SCHEDULE)),
    "minicpm3": yarn("MiniCPM3Config", LATENT | {"num_key_value_heads": 6}, latent(YARN_SCHEDULE, "half", None)),
    "longcat_flash": (
        "LongcatFlashConfig",
        LATENT | {"num_hidden_layers": 4, "head_dim": 8},
        {key: value for key, value in LATENT.items() if key != "num_hidden_layers"}
        | {"num_layers": 2, "rope_theta": 10000000.0, "mla_scale_q_lora": True},
        latent(
            DefaultSchedule(rope_theta=1e7),
            mla=MlaProjection(q_lora_rank=16, kv_lora_rank=20, qk_rope_head_dim=8, q_scale=4.5**0.5, kv_scale=3.6**0.5),
        ),
    ),
    "kimi_linear": (
        "KimiLinearConfig",
        SIZES | {"num_key_value_heads": 6, "layer_types": ["full_attention"] * 4} | NO_MLP,
        {key: value for key, value in SIZES.items() if key != "max_position_embeddings"}
        | {"model_max_length": 320, "linear_attn_config": {"full_attn_layers": [1, 3], "kda_layers": [2, 4]}}
        | {"rope_theta": 10000.0, "rope_scaling": None, "mla_use_nope": True, "head_dim": 12},
        latent(None, rank=None),
    ),
    "mistral4": (
        "Mistral4Config",
        LATENT | {"num_key_value_heads": 6, "rope_parameters": dict(TEMPERED)},
        LATENT | {"rope_parameters": TEMPERED | {"partial_rotary_factor": 8 / 18}},
        latent(YARN_SCHEDULE, query_scale=STEPS),
    ),
    "ministral3": (
        "Ministral3Config",
        GQA | {"head_dim": 12, "rope_parameters": dict(TEMPERED), "sliding_window": 9},
        GQA | {"head_dim": 12, "rope_parameters": dict(TEMPERED), "sliding_window": 9, "attention_bias": False},
        grouped(YARN_SCHEDULE, attention_factor=G / G_ALL, query_scale=STEPS, window=9),
    ),
    "llama4_text": (
        "Llama4TextConfig",
        GQA
        | {"head_dim": 12, "attention_chunk_size": 400, "rms_norm_eps": 3e-6}
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
        GQA
        | {"head_dim": 12, "attention_chunk_size": 400, "rms_norm_eps": 3e-6, "attn_temperature_tuning": 4}
        | {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 3.0}, "no_rope_layers": [1, 1, 1, 0]},
        grouped(
            None,
            rotary=RotaryEncoding(
                width=12,
                pairing="interleaved",
                schedule=LinearSchedule(rope_theta=1e4, factor=3.0),
                contract="polar",
            ),
            chunk=400,
            q_norm=AFTER.model_copy(update={"affine": False}),
            k_norm=AFTER.model_copy(update={"affine": False}),
        ),
    ),
    "hunyuan_v1_dense": (
        "HunYuanDenseV1Config",
        GQA | {"rms_norm_eps": 3e-6, "head_dim": 12, "rope_parameters": ALPHA},
        GQA
        | {"rms_norm_eps": 3e-6, "use_qk_norm": True, "rope_theta": 1e4}
        | {"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
        HUNYUAN,
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1Config",
        GQA | {"rms_norm_eps": 3e-6, "head_dim": 12, "rope_parameters": ALPHA},
        GQA | {"rms_norm_eps": 3e-6, "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "alpha": 50.0}},
        HUNYUAN,
    ),
}
