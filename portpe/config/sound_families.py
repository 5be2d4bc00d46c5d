"""Encoders of sound, and text beside it, with positions in their embeddings: one row a model_type."""

from __future__ import annotations

import math
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.embedding_sites import learned, on_layer_0, sinusoids
from portpe.config.layer import Family, Layer, Size, Sizes, has, never
from portpe.config.section import Section
from portpe.encodings import DefaultSchedule, LearnedEncoding, RotaryEncoding
from portpe.errors import SpecError

_LENGTH = "max_position_embeddings"
_ALL = projection_biases.fixed("qkvo")
_QKV = projection_biases.switched("qkv_bias", True, "qkv")


def _spectrogram(layer: Layer) -> dict[str, Any]:
    """AST: a row for each of two class tokens, then for each patch, bands of frequencies first; patches overlap."""
    config = layer.config
    patch = config.integer("patch_size", 16)
    counts = []
    for size_key, size, stride_key in (("num_mel_bins", 128, "frequency_stride"), ("max_length", 1024, "time_stride")):
        extent = config.integer(size_key, size)
        if extent < patch:
            raise SpecError(f"{size_key} must be >= patch_size = {patch}, got {extent}")
        counts.append((extent - patch) // config.integer(stride_key, 10) + 1)
    encoding = LearnedEncoding(rows=2 + math.prod(counts), width=layer.hidden_size)
    return on_layer_0(layer, encoding)


def _nano_input(config: Section, index: int) -> int:
    """Fun-ASR-Nano: the first layer takes stacked frames as they are."""
    if index:
        return config.integer("hidden_size", 512)
    return config.integer("num_mel_bins", 80) * config.integer("num_stacked_frames", 7)


def _nano_head(config: Section, _kind: str) -> int:
    hidden, heads = config.integer("hidden_size", 512), config.integer("num_attention_heads", 4)
    if hidden % heads:
        raise SpecError(f"hidden_size must be a multiple of num_attention_heads = {heads}, got {hidden}")
    return hidden // heads


def _nano_scale(layer: Layer) -> dict[str, Any]:
    hidden = layer.config.integer("hidden_size", 512)
    return {"embed_scale": math.sqrt(hidden)} if layer.index == 0 else {}


def _clvp_rotary(layer: Layer) -> dict[str, Any]:
    """CLVP: the first channels of a head, half of projection_dim over heads but 32 at least."""
    if not layer.config.flag("use_rotary_embedding", True):
        return {}
    width = max(layer.config.integer("projection_dim", 768) // (layer.num_heads * 2), 32)
    return {"rotary": RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=10000.0))}


def _turned_values(layer: Layer) -> str | None:
    turned = layer.config.flag("use_rotary_embedding", True)
    return "values that are turned as the keys are" if turned else None


SOUND_FAMILIES = (
    Family(
        "audio-spectrogram-transformer",
        usual_sizes(length=0),
        _spectrogram,
        projection_biases.with_output(_QKV),
        causal=never,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-12),
    ),
    Family(
        "qwen3_asr_encoder",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 1024),
            heads=Size(("encoder_attention_heads", "num_attention_heads"), 16),
            layers=Size(("encoder_layers", "num_hidden_layers"), 24),
            head_dim=None,
            length=Size((_LENGTH,), 13),
        ),
        sinusoids("sin_cos", rows=(_LENGTH, 13)),
        _ALL,
        causal=never,
        input_norm=norms.layer_norm(None, 1e-5),
        beyond=has("windows of chunks, each chunk with positions from 0"),
        harmless=frozenset({"n_window", "n_window_infer"}),
        fixed={"scale_embedding": (False,)},
    ),
    Family(
        "fun_asr_nano_encoder",
        Sizes(
            hidden=_nano_input,
            heads=Size(("num_attention_heads",), 4),
            layers=Size(("num_hidden_layers",), 70),
            head_dim=_nano_head,
            length=Size((_LENGTH,), 2049),
        ),
        sinusoids("sin_cos", offset=1, rows=(_LENGTH, 2049)),
        _ALL,
        causal=never,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
        extras=_nano_scale,
        beyond=has("a memory of neighbouring values beside its heads"),
    ),
    Family(
        "moss_transcribe_diarize_audio",
        Sizes(
            hidden=Size(("hidden_size", "d_model"), 1024),
            heads=Size(("num_attention_heads", "encoder_attention_heads"), 16),
            layers=Size(("num_hidden_layers", "encoder_layers"), 24),
            head_dim=None,
            length=Size(("max_source_positions",), 1500),
        ),
        learned("max_source_positions", 1500),
        projection_biases.fixed("qvo"),
        causal=never,
        input_norm=norms.layer_norm(None, 1e-5),
    ),
    Family(
        "clvp_encoder",
        usual_sizes(768, 12, 20, 0),
        _clvp_rotary,
        projection_biases.with_output(projection_biases.switched("use_attention_bias", False, "qkv")),
        causal=never,
        input_norm=norms.rms("layer_norm_eps", 1e-5),
        beyond=_turned_values,
    ),
    Family(
        "clvp_decoder",
        usual_sizes(1024, 16, 30, 608),
        learned(_LENGTH, 608),
        projection_biases.with_output(projection_biases.switched("use_attention_bias", True, "qkv")),
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5),
        harmless=frozenset({"num_mel_attn_blocks"}),
    ),
)
