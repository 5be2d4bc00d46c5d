"""LayoutLM's descendants with buckets of distances along the text and across the page: one row a model_type."""

from __future__ import annotations

from typing import Any

from portpe.config import projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.layer import Family, Layer, head_scale, never
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, DistanceBuckets
from portpe.errors import SpecError
from portpe.layer_parts import ProjectionBiases

# Of the embeddings and of the backbone that sees the picture.
_HARMLESS = frozenset({"max_2d_position_embeddings", "layer_norm_eps", "convert_sync_batchnorm"})


def _buckets(layer: Layer, bins: str, longest: str, defaults: tuple[int, int]) -> DistanceBuckets:
    config = layer.config
    return DistanceBuckets(
        num_buckets=config.integer(bins, defaults[0]), max_distance=config.integer(longest, defaults[1])
    )


def _biases(layer: Layer, *, along: bool, across: bool, scale: float) -> dict[str, Any]:
    """One table of places, and two of boxes: a position has as many axes."""
    if layer.index == 0:
        layer.warn("what tables of places and boxes add to the embeddings belongs to hidden_states")
    if not along:
        return {}
    places = _buckets(layer, "rel_pos_bins", "max_rel_pos", (32, 128))
    if not across:
        return {"bias": (BucketsEncoding(**places.model_dump(), scale=scale),)}
    layer.warn("a position is the place in the text, the left edge of the box and its lower edge")
    boxes = _buckets(layer, "rel_2d_pos_bins", "max_rel_2d_pos", (64, 256))
    return {"bias": (AxisBucketsEncoding(axes=(places, boxes, boxes), scale=scale),)}


def _switches(layer: Layer) -> tuple[bool, bool]:
    along, across = (layer.config.flag(f"has_{name}_attention_bias", True) for name in ("relative", "spatial"))
    return along, across


def _layoutlmv2(layer: Layer) -> dict[str, Any]:
    along, across = _switches(layer)
    if across and not along:
        raise SpecError(
            "has_relative_attention_bias must be true where has_spatial_attention_bias is, got false; buckets of boxes "
            "alone are not supported"
        )
    return _biases(layer, along=along, across=across, scale=1.0)


def _layoutlmv3(layer: Layer) -> dict[str, Any]:
    """The bias is divided by sqrt(head_dim), as the scores are, and there is none of boxes without that of places."""
    along, across = _switches(layer)
    return _biases(layer, along=along, across=along and across, scale=head_scale(layer))


def _fast_qkv(layer: Layer) -> ProjectionBiases:
    """One matrix without bias, and biases of queries and values; else three projections with theirs."""
    return projection_biases.fixed("qvo" if layer.config.flag("fast_qkv", True) else "qkvo")(layer)


def _second(model_type: str) -> Family:
    return Family(model_type, usual_sizes(), _layoutlmv2, _fast_qkv, causal=never, harmless=_HARMLESS)


LAYOUT_FAMILIES = (
    _second("layoutlmv2"),
    _second("layoutxlm"),
    Family(
        "layoutlmv3",
        usual_sizes(),
        _layoutlmv3,
        projection_biases.fixed("qkvo"),
        causal=never,
        harmless=_HARMLESS,
    ),
)
