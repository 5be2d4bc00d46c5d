"""Speech models with vectors of the distance (VITS, Seamless, Granite's encoders, SEW-D) or gated buckets (WavLM)."""

from __future__ import annotations

from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.embedding_sites import after_padding, embed_scale, sinusoids
from portpe.config.layer import Family, Layer, Size, Sizes, never
from portpe.config.relative_families import SPEECH, conformer_site, encoder, terms_of
from portpe.config.section import Section
from portpe.config.stack_families import stack
from portpe.encodings import DebertaEncoding, GatedBucketsEncoding, ShawEncoding
from portpe.layer_parts import Norm

_ALL = projection_biases.fixed("qkvo")
_LENGTH = "max_position_embeddings"


def _vits(layer: Layer) -> dict[str, Any]:
    """Keys farther than ``window_size`` get nothing, and all are seen."""
    reach = layer.config.integer("window_size", 4)
    return {"bias": (ShawEncoding(left=reach, right=reach, values=True, beyond="nothing"),)}


# --- Seamless --------------------------------------------------------------------------------


def _seamless_speech(model_type: str, default: str) -> Family:
    """The speech encoder; in version 2 a frame sees whole chunks and some behind."""
    site = conformer_site(default)

    def chunked(layer: Layer) -> dict[str, Any]:
        if default == "relative_key" and layer.config.has("speech_encoder_chunk_size"):
            size = layer.config.integer("speech_encoder_chunk_size", 20000)
            layer.warn(f"the spec is that of at most {size} frames: a longer sound is seen in chunks of as many")
        return site(layer)

    return Family(
        model_type,
        Sizes(
            hidden=Size(("hidden_size",), 1024),
            heads=Size(("speech_encoder_attention_heads",), 16),
            layers=Size(("speech_encoder_layers",), 24),
            head_dim=None,
            length=Size(("max_source_positions",), 4096),
        ),
        chunked,
        _ALL,
        part="speech",
        causal=never,
        input_norm=norms.layer_norm(None, 1e-5),
        harmless=SPEECH | _OTHER_STACKS | {"speech_encoder_chunk_size", "speech_encoder_left_chunk_num"},
    )


_OTHER_STACKS = frozenset(
    {
        *("encoder_attention_heads", "decoder_attention_heads", "speech_encoder_attention_heads", "scale_embedding"),
        *("t2u_encoder_attention_heads", "t2u_decoder_attention_heads", "t2u_max_position_embeddings"),
        *("num_conv_pos_embeddings", "num_conv_pos_embedding_groups", "position_embeddings_type", _LENGTH),
        *("speech_encoder_chunk_size", "speech_encoder_left_chunk_num"),
    }
)


def _seamless_text(model_type: str, part: str) -> Family:
    """The text encoder and decoder: fairseq's sinusoids behind padding_idx."""
    return stack(
        model_type,
        part,
        (1024, 24, 16),
        Size((_LENGTH,), 1024),
        sinusoids("sin_cos", offset=lambda config: after_padding(config, 0)),
        extras=embed_scale("scale_embedding", True),
        harmless=SPEECH | _OTHER_STACKS,
    )


def _seamless(model_type: str, default: str) -> tuple[Family, ...]:
    texts = tuple(_seamless_text(model_type, part) for part in ("encoder", "decoder"))
    return (*texts, _seamless_speech(model_type, default))


# --- Granite ---------------------------------------------------------------------------------


def _blocks(key: str, context: int) -> Any:
    """Rows go by i - j; a block is no longer than the table reaches."""

    def site(layer: Layer) -> dict[str, Any]:
        reach, size = layer.config.integer(key, 512), layer.config.integer("context_size", context)
        layer.warn(f"a sequence is a block of {size} frames, whose first is at position 0")
        return {"bias": (ShawEncoding(left=reach, right=reach, descending=True),)}

    return site


def _granite(model_type: str) -> Family:
    """One matrix gives keys and values."""
    return Family(
        model_type,
        Sizes(
            hidden=Size(("hidden_dim", "hidden_size"), 1024),
            heads=Size(("num_heads", "num_attention_heads"), 8),
            layers=Size(("num_layers", "num_hidden_layers"), 10),
            head_dim=_head_dim,
            length=Size(("context_size",), 200),
        ),
        _blocks("max_pos_emb", 200),
        projection_biases.fixed("o"),
        causal=never,
        input_norm=norms.layer_norm(None, 1e-5),
    )


def _head_dim(config: Section, _kind: str) -> int:
    width = config.integer(config.either("hidden_dim", "hidden_size"), 1024)
    heads = config.integer(config.either("num_heads", "num_attention_heads"), 8)
    return config.integer("dim_head", width // heads)


# --- SEW-D -----------------------------------------------------------------------------------


def _sewd(layer: Layer) -> dict[str, Any]:
    """DeBERTa v2's attention over frames whose positions a convolution has added before."""
    config = layer.config
    _convolved(layer)
    terms = terms_of(config, _BOTH)
    if not config.flag("relative_attention", True) or not terms:
        return {}
    longest = config.integer("max_relative_positions", -1, minimum=-1)
    longest = longest if longest > 0 else config.integer(_LENGTH, 512)
    count = config.integer("position_buckets", 256, minimum=-1)
    shared = config.flag("share_att_key", True)
    normed = "layer_norm" in [kind.strip() for kind in config.text("norm_rel_ebd", "layer_norm").lower().split("|")]
    encoding = DebertaEncoding(
        span=count if count > 0 else longest,
        max_distance=longest if count > 0 else None,
        content_to_position="c2p" in terms,
        position_to_content="p2c" in terms,
        share_projections=shared,
        key_bias=not shared and "c2p" in terms,
        norm_eps=config.positive("layer_norm_eps", 1e-7) if normed else None,
    )
    return {"bias": (encoding,)}


_BOTH = ("p2c", "c2p")


def _sewd_scale(layer: Layer) -> float:
    return float((layer.head_dim * (1 + len(terms_of(layer.config, _BOTH)))) ** -0.5)


def _convolved(layer: Layer) -> None:
    if layer.index == 0:
        layer.warn("what a convolution over the frames adds to them belongs to hidden_states")


# --- WavLM -----------------------------------------------------------------------------------


def _wavlm(layer: Layer) -> dict[str, Any]:
    """A gate in every layer, and layer 0's table in all of them."""
    _convolved(layer)
    buckets, longest = layer.config.integer("num_buckets", 320), layer.config.integer("max_bucket_distance", 800)
    return {"bias": (GatedBucketsEncoding(num_buckets=buckets, max_distance=longest),)}


def _wavlm_norm(layer: Layer) -> Norm | None:
    """The larger models have a norm before attention, the others behind it."""
    stable = layer.config.flag("do_stable_layer_norm", False)
    return norms.layer_norm("layer_norm_eps", 1e-5)(layer) if stable else None


SPEECH_RELATIVE_FAMILIES = (
    encoder(
        "vits",
        (192, 6, 2),
        _vits,
        length=Size((_LENGTH,), 0),
        biases=projection_biases.switched("use_bias", True, "qkvo"),
        harmless=frozenset({"layer_norm_eps", "noise_scale", "noise_scale_duration", "leaky_relu_slope"}),
    ),
    *_seamless("seamless_m4t", "relative"),
    *_seamless("seamless_m4t_v2", "relative_key"),
    _granite("granite_speech_encoder"),
    _granite("granite_speech_plus_encoder"),
    encoder(
        "granite_speech5_encoder",
        (1024, 16, 8),
        _blocks(_LENGTH, 128),
        length=Size(("context_size",), 128),
        head_dim=0,
        biases=projection_biases.fixed("o"),
        input_norm=norms.layer_norm(None, 1e-5),
        harmless=frozenset({"attention_bias"}),  # of the layers behind it
    ),
    encoder(
        "sew-d",
        (768, 12, 12),
        _sewd,
        length=Size((_LENGTH,), 512),
        scale=_sewd_scale,
        harmless=SPEECH
        | {"position_buckets", "share_att_key", "norm_rel_ebd", "max_relative_positions", "feature_layer_norm_eps"},
    ),
    encoder(
        "wavlm",
        (768, 12, 12),
        _wavlm,
        length=Size((_LENGTH,), 0),
        input_norm=_wavlm_norm,
        harmless=SPEECH | {"do_stable_layer_norm"},
    ),
)
