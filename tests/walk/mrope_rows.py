"""Decoders whose tokens have several coordinates: one row a model_type."""

from __future__ import annotations

from typing import Any

from tests.walk.ropes import LINEAR, YARN
from tests.walk.rotary_check import rotary
from tests.walk.row import Row

_NO_DEFAULT = "its own sections do not add up to half of its rotary width, so that transformers' module raises"


def _sections(sections: list[int], theta: float = 30000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "mrope_section": sections, **more}}


def _varied(sections: list[int], **more: Any) -> dict[str, dict[str, Any]]:
    """Other sections, and two scalings."""
    scaled = {name: {"rope_parameters": {**block, **more}} for name, block in (("linear", LINEAR), ("yarn", YARN))}
    return {"sections": _sections(sections, **more), **scaled}


MROPE = (
    Row("qwen2_vl_text", rotary("Qwen2VLRotaryEmbedding"), _varied([20, 20, 24])),
    Row("qwen2_5_vl_text", rotary("Qwen2_5_VLRotaryEmbedding"), _varied([10, 30, 24])),
    Row("qwen2_5_omni_text", rotary("Qwen2_5OmniRotaryEmbedding"), _varied([12, 26, 26])),
    Row("qwen2_5_omni_talker", rotary("Qwen2_5OmniRotaryEmbedding"), _varied([12, 26, 26])),
    Row("qwen3_vl_text", rotary("Qwen3VLTextRotaryEmbedding"), _varied([22, 21, 21])),
    Row("qwen3_vl_moe_text", rotary("Qwen3VLMoeTextRotaryEmbedding"), _varied([23, 21, 20])),
    Row(
        "qwen3_omni_moe_text",
        rotary("Qwen3OmniMoeThinkerTextRotaryEmbedding"),
        _varied([30, 17, 17]),
        default={"head_dim": 128},
        because="hidden_size is no multiple of its heads",
    ),
    Row("qwen3_5_text", rotary("Qwen3_5TextRotaryEmbedding"), _varied([12, 10, 10], partial_rotary_factor=0.25)),
    Row("qwen3_5_moe_text", rotary("Qwen3_5MoeTextRotaryEmbedding"), _varied([12, 10, 10], partial_rotary_factor=0.25)),
    Row(
        "qwen3_omni_moe_talker_text",
        rotary("Qwen3OmniMoeTalkerRotaryEmbedding"),
        _varied([30, 17, 17]),
        default={"head_dim": 128},
        because=_NO_DEFAULT,
    ),
    Row(
        "qwen4_exp_text",
        rotary("Qwen4ExpTextRotaryEmbedding"),
        _varied([12, 10, 10], partial_rotary_factor=0.25),
        default=_sections([11, 11, 10], partial_rotary_factor=0.25),
        because="its own sections are for a quarter of a head, and by default the whole head is turned",
    ),
    Row(
        "cohere_compass_text",
        rotary("CohereCompassRotaryEmbedding"),
        {
            "sections": {"rope_parameters": {"full_attention": _sections([22, 21, 21])["rope_parameters"]}},
            "two bases": {
                "layer_types": ["sliding_attention", "full_attention"] * 20,
                "rope_parameters": {
                    "full_attention": {**YARN, "mrope_section": [22, 21, 21]},
                    "sliding_attention": {**LINEAR, "mrope_section": [24, 20, 20]},
                },
            },
        },
        default={"rope_parameters": {"full_attention": _sections([24, 20, 20], 10000.0)["rope_parameters"]}},
        because="it has no rope block, without which transformers' module raises",
    ),
    Row(
        "hy_v4_vl_text",
        rotary("HYV4VLRotaryEmbedding"),
        _varied([12, 11, 9]),
    ),
    Row(
        "neomme",
        rotary("NeoMMERotaryEmbedding"),
        {
            "linear": {"rope_parameters": {"full_attention": {**LINEAR, "partial_rotary_factor": 0.5}}},
            "heads": {"head_dim": 32},
        },
    ),
    Row(
        "cosmos3_edge_text",
        rotary("Cosmos3EdgeTextRotaryEmbedding"),
        {"sections": _sections([22, 21, 21]), "base": _sections([24, 20, 20], 3e4)},
    ),
    Row(
        "glm4v_text",
        rotary("Glm4vTextRotaryEmbedding"),
        _varied([12, 10, 10], partial_rotary_factor=0.5),
        default=_sections([8, 12, 12], partial_rotary_factor=0.5),
        because=_NO_DEFAULT,
    ),
    Row("glm_ocr_text", rotary("GlmOcrTextRotaryEmbedding"), _varied([12, 10, 10])),
    Row(
        "glm4v_moe_text",
        rotary("Glm4vMoeTextRotaryEmbedding"),
        _varied([12, 10, 10], partial_rotary_factor=0.5),
        default=_sections([8, 12, 12], partial_rotary_factor=0.5) | {"head_dim": 128},
        because=_NO_DEFAULT,
    ),
    Row(
        "glm_image_text",
        rotary("GlmImageTextRotaryEmbedding"),
        _varied([12, 10, 10], partial_rotary_factor=0.5),
        default=_sections([8, 12, 12], partial_rotary_factor=0.5),
        because=_NO_DEFAULT,
    ),
    Row(
        "ernie4_5_vl_moe_text",
        rotary("Ernie4_5_VLMoeTextRotaryEmbedding"),
        {"sections": _sections([16, 16, 32]), "base": _sections([22, 22, 20], 3e4)},
    ),
    Row("paddleocr_vl_text", rotary("PaddleOCRRotaryEmbedding"), _varied([20, 20, 24])),
    Row(
        "hunyuan_vl_text",
        rotary("HunYuanVLRotaryEmbedding"),
        {
            "four": _sections([16, 16, 16, 16]),
            "alpha": {
                "rope_parameters": {"rope_type": "xdrope", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
                | {"xdrope_section": [16, 16, 16, 16]}
            },
        },
        default=_sections([24, 20, 20]) | {"head_dim": 128},
        because="it has no sections, without which transformers' module raises",
    ),
)
