"""Encoder-decoders in fairseq's layout, BART and what followed: one row a model_type and stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from portpe.config import attention_patterns, norms, projection_biases
from portpe.config.embedding_sites import Site, after_padding, embed_scale, learned, padded, padded_offset, sinusoids
from portpe.config.layer import Family, Layer, NormOf, Size, Sizes, never, no_norm
from portpe.config.section import Section

_LENGTH = "max_position_embeddings"
_BEFORE = norms.layer_norm(None, 1e-5)  # before the attention of every layer
_CLOSING = norms.embedding_layer_norm(None, 1e-5)  # behind the embeddings, where layers norm after their attention
_ALL = projection_biases.fixed("qkvo")
# What converters wrote into configs and transformers has one way of alone: other values contradict the class.
_CONVERTED = frozenset({"add_final_layer_norm", "extra_layer_norm", "layernorm_variant", "do_blenderbot_90_layernorm"})


def _written(*, before: bool, closing: bool, static: bool = False) -> Mapping[str, tuple[Any, ...]]:
    """Keys of fairseq that say where norms stand and whether positions are sinusoids."""
    return {
        "normalize_before": (before,),
        "normalize_embedding": (closing,),
        "static_position_embeddings": (static,),
    }


def stack(
    model_type: str,
    part: str,
    sizes: tuple[int, int, int],
    length: Size,
    site: Site,
    *,
    hidden: tuple[str, ...] = ("d_model", "hidden_size"),
    input_norm: NormOf = _BEFORE,
    harmless: frozenset[str] = frozenset(),
    **more: Any,
) -> Family:
    """One stack: the encoder two-way, the decoder causal. ``sizes``: hidden, layers, heads."""
    other = "decoder" if part == "encoder" else "encoder"
    more = ({"causal": never} if part == "encoder" else {}) | {"biases": _ALL} | more
    return Family(
        model_type,
        Sizes(
            hidden=Size(hidden, sizes[0]),
            heads=Size((f"{part}_attention_heads",), sizes[2]),
            layers=Size((f"{part}_layers",), sizes[1]),
            head_dim=None,
            length=length,
        ),
        site,
        part=part,
        input_norm=input_norm,
        harmless=frozenset({f"{other}_attention_heads"}) | _CONVERTED | harmless,
        **more,
    )


def _pair(
    model_type: str,
    hidden: int,
    encoder: tuple[int, int],
    decoder: tuple[int, int],
    length: Size,
    site: Site,
    **more: Any,
) -> tuple[Family, Family]:
    """Both stacks, alike but for their layers and heads."""
    encoders = stack(model_type, "encoder", (hidden, *encoder), length, site, **more)
    return encoders, stack(model_type, "decoder", (hidden, *decoder), length, site, **more)


def _bart(
    model_type: str, hidden: int = 1024, each: tuple[int, int] = (12, 16), *, scaled: bool = False, length: int = 1024
) -> tuple[Family, Family]:
    """A table with two rows before position 0, a norm that closes the embeddings."""
    return _pair(
        model_type,
        hidden,
        each,
        each,
        Size((_LENGTH,), length),
        learned(_LENGTH, length, extra_rows=2),
        input_norm=_CLOSING,
        extras=embed_scale("scale_embedding", scaled),
        fixed={**_written(before=False, closing=True), "extra_pos_embeddings": (2,)},
    )


def _prompts(layer: Layer) -> str | None:
    """MVP: trained keys and values stand before those of the tokens."""
    return "trained prompts before its keys" if layer.config.flag("use_prompt", False) else None


def _whisper(part: str) -> Family:
    """Sines, then cosines, n = d/2 - 1, in the encoder; a trained table in the decoder. k has no bias."""
    length = Size(("max_source_positions",), 1500) if part == "encoder" else Size(("max_target_positions",), 448)
    key, default = length.keys[0], length.default
    return stack(
        "whisper",
        part,
        (384, 4, 6),
        length,
        sinusoids("sin_cos", rows=(key, default)) if part == "encoder" else learned(key, default),
        biases=projection_biases.fixed("qvo"),
        harmless=frozenset({"max_source_positions", "max_target_positions"}),
        fixed={"scale_embedding": (False,)},
    )


def _fairseq(
    model_type: str,
    hidden: int,
    encoder: tuple[int, int],
    decoder: tuple[int, int],
    length: Size,
    **more: Any,
) -> tuple[Family, Family]:
    """Sinusoids that begin behind padding_idx, in a table that grows; scaled embeddings."""
    site = sinusoids("sin_cos", offset=after_padding)
    scale = embed_scale("scale_embedding", True)
    return _pair(model_type, hidden, encoder, decoder, length, site, extras=scale, **more)


def _marian(model_type: str, *, before: bool) -> tuple[Family, Family]:
    """Sinusoids by halves, n = d/2, in a table that ends; nothing norms the embeddings."""
    return _pair(
        model_type,
        1024,
        (12, 16),
        (12, 16),
        Size((_LENGTH,), 1024),
        sinusoids("sin_cos", "half", rows=(_LENGTH, 1024)),
        input_norm=_BEFORE if before else no_norm,
        extras=embed_scale("scale_embedding", False),
        harmless=frozenset({"extra_pos_embeddings"}),
        fixed=_written(before=before, closing=False, static=True),
    )


def _speech_to_text(part: str) -> Family:
    key = "max_source_positions" if part == "encoder" else "max_target_positions"
    return stack(
        "speech_to_text",
        part,
        (256, 12, 4) if part == "encoder" else (256, 6, 4),
        Size((key,), 6000 if part == "encoder" else 1024),
        sinusoids("sin_cos", offset=after_padding),
        extras=embed_scale("scale_embedding", True),
        harmless=frozenset({"max_source_positions", "max_target_positions"}),
    )


def _led(part: str) -> Family:
    key, length = f"max_{part}_position_embeddings", 16384 if part == "encoder" else 1024
    return stack(
        "led",
        part,
        (1024, 12, 16),
        Size((key,), length),
        learned(key, length),
        input_norm=_CLOSING,
        harmless=frozenset({"attention_window", "max_encoder_position_embeddings", "max_decoder_position_embeddings"}),
        extras=attention_patterns.local if part == "encoder" else attention_patterns.together(),
    )


def _blenderbot_small(part: str) -> Family:
    """Its decoder norms token embeddings before positions are added: hidden_states are those normed ones."""
    encodes = part == "encoder"
    return stack(
        "blenderbot-small",
        part,
        (512, 8, 16),
        Size((_LENGTH,), 512),
        learned(_LENGTH, 512),
        input_norm=_CLOSING if encodes else no_norm,
        extras=embed_scale("scale_embedding", False) if encodes else (lambda _layer: {}),
        harmless=frozenset({"extra_pos_embeddings", "scale_embedding"}),
        fixed=_written(before=False, closing=True),
    )


def _bigbird_pegasus(part: str) -> Family:
    scale = embed_scale("scale_embedding", True)
    dense = attention_patterns.dense("block_sparse", "original_full")
    return stack(
        "bigbird_pegasus",
        part,
        (1024, 16, 16),
        Size((_LENGTH,), 4096),
        learned(_LENGTH, 4096),
        biases=projection_biases.switched("use_bias", False, "qkvo"),
        extras=attention_patterns.together(scale, dense) if part == "encoder" else scale,
        harmless=frozenset({"attention_type"}),
    )


def context_length(config: Section) -> int:
    """How much of a series the encoder sees; the decoder's first position follows it."""
    return config.integer("context_length" if config.has("context_length") else "prediction_length")


def _series(model_type: str, part: str, **more: Any) -> Family:
    """Marian's sinusoids over what was seen and what is to come."""

    def site(layer: Layer) -> dict[str, Any]:
        offset = 0 if part == "encoder" else context_length(layer.config)
        return sinusoids("sin_cos", "half", offset=offset, rows=series_length)(layer)

    return stack(
        model_type,
        part,
        (64, 2, 2),
        Size(("context_length",), 0),
        site,
        input_norm=_CLOSING,
        trained_length=lambda layer: (
            series_length(layer.config) - (0 if part == "encoder" else context_length(layer.config))
        ),
        harmless=frozenset({"scaling"}),
        **more,
    )


def series_length(config: Section) -> int:
    """The rows of a table over what was seen and what is to come."""
    return context_length(config) + config.integer("prediction_length")


def _prophetnet_length(layer: Layer) -> int | None:
    rows = layer.max_position_embeddings
    return None if rows is None else rows - padded_offset(layer.config, 512, 0)


_PROPHETNET = Family(  # its decoder's n-gram attention is another kind
    "prophetnet",
    Sizes(
        hidden=Size(("hidden_size",), 1024),
        heads=Size(("num_encoder_attention_heads", "num_attention_heads"), 16),
        layers=Size(("num_encoder_layers", "num_hidden_layers"), 12),
        head_dim=None,
        length=Size((_LENGTH,), 512),
    ),
    padded(512, 0),
    _ALL,
    part="encoder",
    causal=never,
    trained_length=_prophetnet_length,
    input_norm=_CLOSING,
    harmless=frozenset({"num_decoder_attention_heads"}),
)
_DENSE_SERIES = attention_patterns.dense("prob", "full")

STACK_FAMILIES = (
    *_bart("bart"),
    *(dataclasses.replace(row, beyond=_prompts) for row in _bart("mvp")),
    *_bart("plbart", 768, (6, 12), scaled=True),
    *_pair(
        "mbart",
        1024,
        (12, 16),
        (12, 16),
        Size((_LENGTH,), 1024),
        learned(_LENGTH, 1024, extra_rows=2),
        embedding_norm=_CLOSING,
        extras=embed_scale("scale_embedding", False),
        fixed={**_written(before=True, closing=True), "extra_pos_embeddings": (2,)},
    ),
    dataclasses.replace(
        stack(
            "pp_formulanet_text",
            "decoder",
            (512, 8, 16),
            Size((_LENGTH,), 2560),
            learned(_LENGTH, 2560, extra_rows=2),
            embedding_norm=_CLOSING,
            extras=embed_scale("scale_embedding", True),
        ),
        part=None,
    ),
    *_pair(
        "blenderbot",
        2560,
        (2, 32),
        (24, 32),
        Size((_LENGTH,), 128),
        learned(_LENGTH, 128),
        extras=embed_scale("scale_embedding", False),
        fixed={**_written(before=True, closing=False), "extra_pos_embeddings": (0,)},
    ),
    _blenderbot_small("encoder"),
    _blenderbot_small("decoder"),
    _bigbird_pegasus("encoder"),
    _bigbird_pegasus("decoder"),
    _led("encoder"),
    _led("decoder"),
    *_marian("marian", before=False),
    *_marian("pegasus", before=True),
    stack(  # the encoder's global tokens are another kind of attention
        "pegasus_x",
        "decoder",
        (1024, 16, 16),
        Size((_LENGTH,), 16384),
        sinusoids("sin_cos"),
        biases=projection_biases.fixed(""),
        extras=embed_scale("scale_embedding", True),
    ),
    *_fairseq("m2m_100", 1024, (12, 16), (12, 16), Size((_LENGTH,), 1024)),
    *_fairseq(
        "nllb-moe",
        1024,
        (12, 16),
        (12, 16),
        Size((_LENGTH,), 1024),
        harmless=frozenset({"normalize_router_prob_before_dropping"}),
    ),
    *_fairseq("fsmt", 1024, (12, 16), (12, 16), Size((_LENGTH,), 1024), input_norm=no_norm),
    _speech_to_text("encoder"),
    _speech_to_text("decoder"),
    _PROPHETNET,
    _series("informer", "encoder", extras=_DENSE_SERIES),
    _series("informer", "decoder", extras=_DENSE_SERIES),
    _series("time_series_transformer", "encoder"),
    _series("time_series_transformer", "decoder"),
    _whisper("encoder"),
    _whisper("decoder"),
)
