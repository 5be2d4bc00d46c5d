"""Rows of text stacks whose attention is joined with an encoder's keys, a convolution or a mask of its own."""

from __future__ import annotations

import copy

import torch
from transformers.models.diffusion_gemma import modeling_diffusion_gemma

from tests.walk.ropes import LINEAR, LLAMA3, PROPORTIONAL, scaled
from tests.walk.rotary_check import rotary
from tests.walk.rotary_rows import LOCAL_AND_GLOBAL, nested
from tests.walk.row import Row


def turned_first(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> list[torch.Tensor]:
    """(x, cos, sin) in place of (q, k, cos, sin)."""
    return [modeling_diffusion_gemma.apply_rotary_pos_emb(x, cos, sin) for x in (q, k)]


def hybrid(block: dict, sliding: dict) -> dict:
    """ZAYA's names of its two kinds."""
    half = {"partial_rotary_factor": 0.75}
    return {"rope_parameters": {"hybrid": {**block, **half}, "hybrid_sliding": {**copy.deepcopy(sliding), **half}}}


JOINED = (
    *(Row(name, rotary("T5Gemma2RotaryEmbedding"), LOCAL_AND_GLOBAL) for name in ("t5gemma2_text", "t5gemma2_decoder")),
    Row(
        "diffusion_gemma_text",
        rotary(apply=turned_first),
        {"linear": nested(PROPORTIONAL, LINEAR), "narrow": {"global_head_dim": 128}},
    ),
    Row("unlimited_ocr_text", rotary(), scaled()),
    Row("deepseek_ocr2_encoder", rotary("DeepseekOcr2VisionRotaryEmbedding"), scaled()),
    Row(
        "zaya",
        rotary(),
        {"both": {"layer_types": ["hybrid", "hybrid_sliding"] * 20, "sliding_window": 7, **hybrid(LLAMA3, LINEAR)}},
    ),
    Row("dory", rotary(), LOCAL_AND_GLOBAL),
    Row(
        "nemotron3_5_transcribe_word_timestamp",
        rotary("Nemotron3_5TranscribeRotaryEmbedding"),
        scaled(partial_rotary_factor=0.25),
    ),
)
