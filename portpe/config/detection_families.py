"""Encoders of detectors: 2-D sinusoids in queries and keys of every layer, not in its values. One row a model_type."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from portpe.config import projection_biases
from portpe.config.layer import NO_LENGTH, Family, Layer, Size, Sizes, has, never, no_length
from portpe.config.section import Section, shown
from portpe.encodings import SinusoidalGridEncoding
from portpe.errors import SpecError

_ALL = projection_biases.fixed("qkvo")
# Of decoders, losses and backbones.
_DETECTION = frozenset(
    {
        *("num_attention_heads", "decoder_attention_heads", "disable_custom_kernels", "backbone_config"),
        *("layer_norm_eps", "batch_norm_eps", "freeze_backbone_batch_norms", "box_noise_scale", "layer_scale"),
        *("reg_scale", "decoder_offset_scale", "share_bbox_head", "global_pointer_head_size", "normalize_before"),
        *("anchor_image_size", "encode_proj_layers", "reading_order_config", "layer_types", "head_dim"),
    }
)


def _in_queries_and_keys(layer: Layer, **settings: Any) -> dict[str, Any]:
    encoding = SinusoidalGridEncoding(width=layer.hidden_size, **settings)
    return {"embedding": encoding, "embedding_to": "query_key"}


def _detr(layer: Layer) -> dict[str, Any]:
    """DETR: coordinates counted from 1, as parts of a whole turn of the picture; trained tables are refused."""
    kind = layer.config.text("position_embedding_type", "sine")
    if kind != "sine":
        raise SpecError(f"position_embedding_type must be 'sine', got {shown(kind)}; no other is supported")
    return _in_queries_and_keys(layer, normalize=True)


def _dab(layer: Layer) -> dict[str, Any]:
    """DAB-DETR: a base for rows and columns of its own."""
    config = layer.config
    base = config.positive("temperature_height", 20.0)
    if (across := config.positive("temperature_width", 20.0)) != base:
        raise SpecError(f"temperature_width must equal temperature_height = {base}, got {across}")
    if (turn := config.positive("sine_position_embedding_scale", 2 * math.pi)) != 2 * math.pi:
        raise SpecError(f"sine_position_embedding_scale must be a whole turn, 2 pi, got {turn}")
    return _in_queries_and_keys(layer, normalize=True, base=base)


def _hybrid(layer: Layer) -> dict[str, Any]:
    """RT-DETR: sines then cosines of the rows, then of the columns, of one level of features."""
    if layer.config.has("eval_size"):
        raise SpecError(
            f"eval_size must be null, got {shown(layer.config.get('eval_size'))}; with it transformers adds no "
            "positions to what it infers"
        )
    base = layer.config.positive("positional_encoding_temperature", 10000.0)
    return _in_queries_and_keys(layer, order="sin_cos", base=base)


def _head(config: Section, _kind: str) -> int:
    """RT-DETR's kind: ``head_dim`` in a config is the decoder's."""
    width, heads = config.integer("encoder_hidden_dim", 256), config.integer("encoder_attention_heads", 8)
    if width % heads:
        raise SpecError(f"encoder_hidden_dim must be a multiple of encoder_attention_heads = {heads}, got {width}")
    return width // heads


def _family(model_type: str, width: tuple[str, ...], layers: int, site: Any, **more: Any) -> Family:
    """hidden_states are what v_proj sees: where a norm stands before attention, behind it."""
    return Family(
        model_type,
        Sizes(
            hidden=Size(width, 256),
            heads=Size(("encoder_attention_heads", "num_attention_heads"), 8),
            layers=Size(("encoder_layers", "num_hidden_layers"), layers),
            head_dim=_head if "encoder_hidden_dim" in width else None,
            length=NO_LENGTH,
        ),
        site,
        _ALL,
        part="encoder",
        causal=never,
        trained_length=no_length,
        harmless=_DETECTION,
        **more,
    )


def _sam3(model_type: str) -> Family:
    """SAM 3: a stack with a model_type of its own."""
    sizes = Sizes(
        hidden=Size(("hidden_size",), 256),
        heads=Size(("num_attention_heads",), 8),
        layers=Size(("num_layers", "num_hidden_layers"), 6),
        head_dim=None,
        length=NO_LENGTH,
    )
    return replace(_family(model_type, ("hidden_size",), 6, _detr), sizes=sizes, part=None)


DETECTION_FAMILIES = (
    _sam3("sam3_detr_encoder"),
    _sam3("sam3_lite_text_detr_encoder"),
    *(
        _family(model_type, ("d_model", "hidden_size"), 6, _detr)
        for model_type in ("detr", "conditional_detr", "table-transformer")
    ),
    _family(
        "dab-detr",
        ("hidden_size",),
        6,
        _dab,
        beyond=has("a network of each token that scales its positions"),
    ),
    *(
        _family(model_type, ("encoder_hidden_dim",), 1, _hybrid)
        for model_type in (
            *("rt_detr", "rt_detr_v2", "d_fine", "deimv2"),
            *("pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4"),
        )
    ),
)
