"""One tower of a model with several: text beside images, sound before a decoder. One row a tower's own model_type."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from portpe.config import extras, norms, projection_biases
from portpe.config.bert_families import bert, roberta, usual_sizes
from portpe.config.embedding_sites import Site, learned, on_layer_0, sinusoids
from portpe.config.layer import FULL, Family, Layer, NormOf, Size, Sizes, has, never
from portpe.config.section import Section
from portpe.encodings import LearnedGridEncoding
from portpe.errors import NoAttentionError

_LENGTH = "max_position_embeddings"
_ALL = projection_biases.fixed("qkvo")


def _clip_text(model_type: str, hidden: int = 512, heads: int = 8, length: int = 77, **more: Any) -> Family:
    """CLIP's text tower: causal, a trained table, a norm before attention."""
    sizes = usual_sizes(hidden, heads, 12, length)
    more = {
        "input_norm": norms.layer_norm("layer_norm_eps", 1e-5),
        "biases": _ALL,
        "site": learned(_LENGTH, length),
    } | more
    return Family(model_type, sizes, **more)


def _siglip_text(model_type: str) -> Family:
    """SigLIP's text tower: as CLIP's, and two-way."""
    norm = norms.layer_norm("layer_norm_eps", 1e-6)
    return _clip_text(model_type, 768, 12, 64, causal=never, input_norm=norm)


def _scaled(layer: Layer) -> dict[str, Any]:
    scaled = layer.config.flag("scale_sqrt_depth", True) and layer.index == 0
    return {"embed_scale": math.sqrt(layer.hidden_size)} if scaled else {}


def _whisper_encoder(model_type: str, hidden: Size, heads: Size, layers: Size) -> Family:
    """Whisper's encoder inside another model: the table of sinusoids stands in the checkpoint. k has no bias."""
    return Family(
        model_type,
        Sizes(hidden=hidden, heads=heads, layers=layers, head_dim=None, length=Size(("max_source_positions",), 1500)),
        learned("max_source_positions", 1500),
        projection_biases.fixed("qvo"),
        causal=never,
        input_norm=norms.layer_norm(None, 1e-5),
        fixed={"scale_embedding": (False,)},
    )


def _d_model_encoder(model_type: str) -> Family:
    return _whisper_encoder(
        model_type,
        Size(("d_model", "hidden_size"), 1280),
        Size(("encoder_attention_heads", "num_attention_heads"), 20),
        Size(("encoder_layers", "num_hidden_layers"), 32),
    )


def _computed_encoder(model_type: str, biases: str) -> Family:
    """Qwen-Omni's: the sinusoids are computed, and each chunk of sound counts from 0."""
    return replace(
        _d_model_encoder(model_type),
        site=sinusoids("sin_cos", rows=("max_source_positions", 1500)),
        biases=projection_biases.fixed(biases),
        harmless=frozenset({"n_window", "n_window_infer"}),
    )


def _usual_encoder(model_type: str) -> Family:
    return _whisper_encoder(
        model_type,
        Size(("hidden_size", "d_model"), 1280),
        Size(("num_attention_heads", "encoder_attention_heads"), 20),
        Size(("num_hidden_layers", "encoder_layers"), 32),
    )


def _speech_decoder(model_type: str, site: Site, **more: Any) -> Family:
    """A decoder after NeMo's: a norm behind the embeddings and one before each attention."""
    norm = norms.layer_norm(None, 1e-5)
    return Family(
        model_type,
        usual_sizes(1024, 8, 8, 1024, kv_heads=Size(("num_key_value_heads",), 0), head_dim=0),
        site,
        projection_biases.switched("attention_bias", True, "qkvo"),
        embedding_norm=norms.embedding_layer_norm(None, 1e-5),
        input_norm=norm,
        **more,
    )


def _canary(layer: Layer) -> dict[str, Any]:
    """NeMo's sinusoids: timescales up to 10000 ** ((d - 2) / d), over sqrt(d)."""
    width = layer.hidden_size
    settings = {"base": 10000 ** ((width - 2) / width), "scale": width**-0.5}
    return sinusoids("sin_cos", rows=(_LENGTH, 1024), settings=settings)(layer)


_FLAVA: NormOf = norms.layer_norm("layer_norm_eps", 1e-12)


def _videoprism(layer: Layer) -> dict[str, Any]:
    settings = {"contract": "ctrl"}
    return sinusoids("sin_cos", "half", rows=(_LENGTH, 64), settings=settings)(layer)


def _softcapped(layer: Layer) -> dict[str, Any]:
    return extras.softcap("attn_logit_softcapping", 50.0)(layer) | (
        {"embed_scale": math.sqrt(layer.hidden_size)} if layer.index == 0 else {}
    )


def _resized_row(layer: Layer) -> dict[str, Any]:
    """MobileCLIP's text tower: a table that is stretched to the length of each text; a position is (row, 0)."""
    rows = layer.config.integer(_LENGTH, 77)
    encoding = LearnedGridEncoding(grid=(rows, 1), width=layer.hidden_size, resize="bilinear")
    return on_layer_0(layer, encoding)


def _mobileclip_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """With ``use_repmixer_blocks`` the first and the last layer are convolutions."""
    if config.flag("use_repmixer_blocks", True) and index in (0, num_layers - 1):
        raise NoAttentionError(f"layer {index} has no attention: use_repmixer_blocks makes it a convolution")
    return FULL, None


TOWER_FAMILIES = (
    _clip_text("clip_text_model"),
    _clip_text("clipseg_text_model"),
    _clip_text("metaclip_2_text_model"),
    _clip_text("xclip_text_model"),
    _clip_text("groupvit_text_model", 256, 4),
    _clip_text("owlvit_text_model", length=16),
    _clip_text("owlv2_text_model", length=16),
    _clip_text(
        "aimv2_text_model",
        768,
        6,
        biases=projection_biases.switched("qkv_bias", False, "qkvo"),
        input_norm=norms.rms("rms_norm_eps", 1e-5),
    ),
    _siglip_text("siglip_text_model"),
    _siglip_text("siglip2_text_model"),
    _clip_text(
        "tipsv2_text_model",
        768,
        12,
        64,
        site=sinusoids("sin_cos", rows=(_LENGTH, 64)),
        causal=never,
        extras=_scaled,
    ),
    _clip_text(
        "videoprism_text_model",
        768,
        12,
        64,
        site=_videoprism,
        biases=projection_biases.with_output(projection_biases.switched("qkv_bias", True, "qkv")),
        input_norm=norms.layer_norm("layer_norm_eps", 1e-6, weight_offset=1.0),
        extras=_softcapped,
        beyond=has("a class token at its end, which has no position"),
        harmless=frozenset({"apply_l2norm"}),
    ),
    _clip_text(
        "sam3_lite_text_text_model",
        site=_resized_row,
        causal=never,
        window=_mobileclip_window,
        trained_length=lambda _layer: None,
        harmless=frozenset({"layer_scale_init_value"}),
    ),
    bert("chinese_clip_text_model", decodes=False),
    bert("align_text_model", decodes=False),
    bert(
        "flava_text_model",
        decodes=False,
        biases=projection_biases.with_output(projection_biases.switched("qkv_bias", True, "qkv")),
        input_norm=_FLAVA,
        embedding_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12),
    ),
    roberta("altclip_text_model", usual_sizes(1024, 16, 24, 514), eps=1e-5, decodes=False),
    roberta("clap_text_model", usual_sizes(768, 12, 12, 514), decodes=False),
    roberta("bridgetower_text_model", usual_sizes(768, 12, 12, 514), eps=1e-5),
    _d_model_encoder("qwen2_audio_encoder"),
    _computed_encoder("qwen2_5_omni_audio_encoder", "qvo"),
    _computed_encoder("qwen3_omni_moe_audio_encoder", "qkvo"),
    _usual_encoder("voxtral_encoder"),
    _usual_encoder("audioflamingo3_encoder"),
    _speech_decoder("cohere_asr", learned(_LENGTH, 1024)),
    _speech_decoder("canary_decoder", _canary),
)
