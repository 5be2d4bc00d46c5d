"""Encoders of images in stages, each of fewer and wider patches than the one before it: one row a model_type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portpe.config.embedding_sites import Site, on_layer_0
from portpe.config.image_families import ALL, SWITCHED, before, pair
from portpe.config.layer import NO_LENGTH, Family, Layer, Size, Sizes, has, never, no_length
from portpe.config.section import Section, shown
from portpe.config.stages import Stages
from portpe.encodings import LearnedGridEncoding
from portpe.errors import SpecError

_FOUR = Stages((2, 2, 2, 2))
_HIERA = Stages((2, 3, 16, 3))
_HEADS = (1, 2, 5, 8)


def _in_stages(model_type: str, widths: Sequence[int], site: Site, reductions: str, **more: Any) -> Family:
    """Four stages, the keys of a layer from fewer and fewer patches less: PVT and what followed."""

    def reduced(layer: Layer) -> str | None:
        ratio = _FOUR.value(layer.config, reductions, (8, 4, 2, 1), layer.index)
        return "keys of fewer patches than queries" if ratio > 1 else None

    return Family(
        model_type,
        Sizes(
            hidden=lambda config, index: _FOUR.value(config, "hidden_sizes", widths, index),
            heads=lambda config, index, _kind: _FOUR.value(config, "num_attention_heads", _HEADS, index),
            layers=_FOUR.count,
            head_dim=None,
            length=NO_LENGTH,
        ),
        site,
        more.pop("biases", ALL),
        causal=never,
        trained_length=no_length,
        input_norm=before(1e-6),
        beyond=reduced,
        **more,
    )


def _no_positions(layer: Layer) -> dict[str, Any]:  # noqa: ARG001
    """None in attention: a convolution between its layers sees where patches lie."""
    return {}


def _pvt(layer: Layer) -> dict[str, Any]:
    """PVT: a table before each stage; the last one's has a row for a class token."""
    config = layer.config
    stage, block = _FOUR.place(config, layer.index)
    image = config.integer("image_size", 224) >> (stage + 1 if stage else 0)
    patch = _FOUR.value(config, "patch_sizes", (4, 2, 2, 2), layer.index)
    if image < patch:
        raise SpecError(f"image_size must leave a patch of {patch} to stage {stage}, got {image}")
    last = stage == len(_FOUR.depths(config)) - 1
    encoding = LearnedGridEncoding(grid=(image // patch,) * 2, width=layer.hidden_size, prefix_tokens=int(last))
    return {"embedding": encoding} if block == 0 else {}


def _mobilevit_width(config: Section, index: int) -> int:
    """MobileViT: two, four and three layers over patches, each group as wide as its convolutions."""
    widths = config.get("hidden_sizes")
    widths = (144, 192, 240) if widths is None else widths
    if not isinstance(widths, list | tuple) or len(widths) != 3 or not all(isinstance(n, int) for n in widths):
        raise SpecError(f"hidden_sizes must be three integers, got {shown(widths)}")
    return int(widths[(index >= 2) + (index >= 6)])


def _hiera_width(config: Section, index: int) -> int:
    """What a layer takes: the first of a stage widens, so it takes what the stage before it gave."""
    factor = config.positive("embed_dim_multiplier", 2.0)
    stage, block = _HIERA.place(config, index)
    return int(config.integer("embed_dim", 96) * factor ** (stage - (block == 0 and stage > 0)))


def _hiera_head(config: Section, _kind: str) -> int:
    """All heads of all stages are as wide as those of the first."""
    heads = _HIERA.value(config, "num_heads", (1, 2, 4, 8), 0)
    return config.integer("embed_dim", 96) // heads


def _hiera(layer: Layer) -> dict[str, Any]:
    """Hiera: one table over the cells of the first stage, which overlapping patches make."""
    size, stride = pair(layer.config, "image_size", 224), pair(layer.config, "patch_stride", 4)
    if size[0] < stride[0] or size[1] < stride[1]:
        raise SpecError(f"image_size must be >= patch_stride, got {shown(size)} with {shown(stride)}")
    grid_ = (size[0] // stride[0], size[1] // stride[1])
    return on_layer_0(layer, LearnedGridEncoding(grid=grid_, width=layer.hidden_size))


STAGED_FAMILIES = (
    Family(
        "hiera",
        Sizes(
            hidden=_hiera_width,
            heads=lambda config, index, _kind: _HIERA.value(config, "num_heads", (1, 2, 4, 8), index),
            layers=_HIERA.count,
            head_dim=_hiera_head,
            length=NO_LENGTH,
        ),
        _hiera,
        ALL,
        causal=never,
        trained_length=no_length,
        input_norm=before(1e-6),
        beyond=has("units of cells, and queries that are the largest of several"),
        harmless=frozenset({"masked_unit_attention", "layer_norm_init", "decoder_num_heads", "normalize_pixel_loss"}),
    ),
    _in_stages("pvt", (64, 128, 320, 512), _pvt, "sequence_reduction_ratios", biases=SWITCHED),
    _in_stages(
        "pvt_v2", (32, 64, 160, 256), _no_positions, "sr_ratios", biases=SWITCHED, fixed={"linear_attention": (False,)}
    ),
    _in_stages("segformer", (32, 64, 160, 256), _no_positions, "sr_ratios"),
    _in_stages("glpn", (32, 64, 160, 256), _no_positions, "sr_ratios", harmless=frozenset({"head_in_index"})),
    Family(
        "mobilevit",
        Sizes(
            hidden=_mobilevit_width,
            heads=Size(("num_attention_heads",), 4),
            layers=lambda _config: 9,
            head_dim=None,
            length=NO_LENGTH,
        ),
        _no_positions,
        SWITCHED,
        causal=never,
        trained_length=no_length,
        input_norm=before(1e-5),
    ),
)
