"""Vision families with a trained number for each offset between cells of a grid: one row a model_type."""

from __future__ import annotations

import dataclasses
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.layer import NO_LENGTH, Family, Layer, Size, Sizes, has, never, no_norm
from portpe.config.section import Section, shown
from portpe.config.stages import Stages, integers
from portpe.encodings import GridNetworkEncoding, GridTableEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm

_HARMLESS = frozenset({"image_size", "patch_size", "use_mean_pooling", "layer_scale_init_value", "pool_scales"})
_AUXILIARY = frozenset({"auxiliary_loss_weight", "auxiliary_channels", "use_auxiliary_head"})


def _pair(config: Section, key: str, default: int) -> tuple[int, int]:
    """Height and width, where one number stands for both."""
    value = config.get(key)
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise SpecError(f"{config.name(key)} must be a number or two, got {shown(value)}")
        height, width = integers(config, key, ())
        return height, width
    return (config.integer(key, default),) * 2


def _no_table_of_positions(config: Section, key: str) -> None:
    if config.flag(key, False):
        raise SpecError(f"{config.name(key)} must be false, got true; a table of positions beside it is not supported")


# --- windows: Swin ---------------------------------------------------------------------------------

_SWIN = Stages((2, 2, 6, 2))
_SWIN_HARMLESS = _HARMLESS | {"hidden_size", "num_layers"}  # of the last stage, and of stages


def _swin_hidden(config: Section, index: int) -> int:
    return config.integer("embed_dim", 96) << _SWIN.place(config, index)[0]


def _swin_heads(config: Section, index: int, _kind: str) -> int:
    return _SWIN.value(config, "num_heads", (3, 6, 12, 24), index)


def _window(layer: Layer, stages: Stages = _SWIN, default: int = 7) -> GridTableEncoding:
    """A token sees the cells of its window alone; every second block moves the windows by half of one."""
    _no_table_of_positions(layer.config, "use_absolute_embeddings")
    side = layer.config.integer("window_size", default)
    if stages.place(layer.config, layer.index)[1] % 2:
        layer.warn("windows of this block are moved: the mask between parts that were not neighbours is the caller's")
    return GridTableEncoding(height=side, width=side)


def _swin_window(layer: Layer) -> dict[str, Any]:
    return {"bias": (_window(layer),)}


_SWIN_SIZES = Sizes(
    hidden=_swin_hidden,
    heads=_swin_heads,
    layers=_SWIN.count,
    head_dim=None,
    length=NO_LENGTH,
)


def _swin(model_type: str) -> Family:
    return Family(
        model_type,
        _SWIN_SIZES,
        _swin_window,
        projection_biases.with_output(projection_biases.switched("qkv_bias", True, "qkv")),
        causal=never,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
        harmless=_SWIN_HARMLESS,
        fixed={"path_norm": (True,)},  # of the patches; so published
    )


def _swinv2_window(layer: Layer) -> dict[str, Any]:
    """A network of the offset, normalised by the windows that it was trained on: 0 stands for its own."""
    config, stages, encoding = layer.config, _SWIN.depths(layer.config), _window(layer)
    trained = config.get("pretrained_window_sizes")
    trained = [0] * len(stages) if trained is None else trained
    if not isinstance(trained, list | tuple) or len(trained) != len(stages):
        raise SpecError(f"pretrained_window_sizes must have an entry for each of {len(stages)} depths, got {trained}")
    side = trained[_SWIN.place(config, layer.index)[0]]
    if isinstance(side, bool) or not isinstance(side, int) or side < 0:
        raise SpecError(f"pretrained_window_sizes must hold integers >= 0, got {shown(trained)}")
    extent = (side, side) if side else None
    return {"bias": (GridNetworkEncoding(height=encoding.height, width=encoding.width, extent=extent),)}


def _cosines(layer: Layer) -> tuple[Norm, Norm]:
    """Queries and keys of length 1, at least 1e-12 before, and queries times a trained number a head: as RMS norms,
    each sqrt(head_dim) too long, which ``_swinv2_scale`` undoes.
    """
    norm = {"kind": "rms", "eps": 1e-24 / layer.head_dim}
    return Norm(**norm, per_head_weight=True), Norm(**norm, affine=False)


def _swinv2_scale(layer: Layer) -> float:
    return 1 / layer.head_dim


_SWINV2 = dataclasses.replace(
    _swin("swinv2"),
    site=_swinv2_window,
    biases=projection_biases.with_output(projection_biases.switched("qkv_bias", True, "qv")),
    input_norm=no_norm,
    qk_norms=_cosines,
    scale=_swinv2_scale,
    harmless=_SWIN_HARMLESS | {"layer_norm_eps"},
)


# Swin2SR: Swin v2's attention in stages of one width, whose windows are never those of another model.
_RESTORING = Stages((6, 6, 6, 6, 6, 6))


def _swin2sr_heads(config: Section, index: int, _kind: str) -> int:
    return _RESTORING.value(config, "num_heads", (6, 6, 6, 6, 6, 6), index)


def _swin2sr_window(layer: Layer) -> dict[str, Any]:
    encoding = _window(layer, _RESTORING, 8)
    return {"bias": (GridNetworkEncoding(height=encoding.height, width=encoding.width),)}


_SWIN2SR = dataclasses.replace(
    _SWINV2,
    model_type="swin2sr",
    sizes=dataclasses.replace(
        _SWIN_SIZES,
        hidden=Size(("embed_dim", "hidden_size"), 180),
        heads=_swin2sr_heads,
        layers=_RESTORING.count,
    ),
    site=_swin2sr_window,
    harmless=_SWINV2.harmless | {"upscale", "upsampler"},
)


# CLAP: Swin over a spectrogram that is folded into a square.


def _clap_hidden(config: Section, index: int) -> int:
    return config.integer("patch_embeds_hidden_size", 96) << _SWIN.place(config, index)[0]


def _clap_heads(config: Section, index: int, _kind: str) -> int:
    return _SWIN.value(config, "num_attention_heads", (4, 8, 16, 32), index)


_CLAP = dataclasses.replace(
    _swin("clap_audio_model"),
    sizes=dataclasses.replace(_SWIN_SIZES, hidden=_clap_hidden, heads=_clap_heads),
    site=lambda layer: {"bias": (_window(layer, default=8),)},
    harmless=_SWIN_HARMLESS | {"num_hidden_layers", "patch_stride", "flatten_patch_embeds", "enable_patch_layer_norm"},
)


# --- whole pictures: BEiT, LeViT --------------------------------------------------------------------


def _beit_table(layer: Layer) -> dict[str, Any]:
    """One table for all layers or one each; the first token is cls."""
    config = layer.config
    _no_table_of_positions(config, "use_absolute_position_embeddings")
    own, shared = (config.flag(f"use_{name}relative_position_bias", False) for name in ("", "shared_"))
    if own and shared:
        raise SpecError("use_shared_relative_position_bias must be false where each layer has its own table, got true")
    if not own and not shared:
        return {}
    (height, width), (rows, columns) = _pair(config, "image_size", 224), _pair(config, "patch_size", 16)
    return {"bias": (GridTableEncoding(height=height // rows, width=width // columns, prefix_tokens=1),)}


def _beit(model_type: str) -> Family:
    return Family(
        model_type,
        Sizes(
            hidden=Size(("hidden_size",), 768),
            heads=Size(("num_attention_heads",), 12),
            layers=Size(("num_hidden_layers",), 12),
            head_dim=None,
            length=NO_LENGTH,
        ),
        _beit_table,
        projection_biases.fixed("qvo"),
        causal=never,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-12),
        harmless=_HARMLESS | _AUXILIARY,
    )


_LEVIT = Stages((4, 4, 4))


def _levit_table(layer: Layer) -> dict[str, Any]:
    """Offsets without signs, over a picture whose side is halved from stage to stage."""
    config, stage = layer.config, _LEVIT.place(layer.config, layer.index)[0]
    (height, width), (rows, columns) = _pair(config, "image_size", 224), _pair(config, "patch_size", 16)
    if height != width or rows != columns:
        raise SpecError(f"image_size must be a square for this model_type, got {shown(config.get('image_size'))}")
    side = height // rows
    for _ in range(stage):
        side = (side - 1) // 2 + 1
    return {"bias": (GridTableEncoding(height=side, width=side, offsets="absolute"),)}


def _levit_widths(layer: Layer) -> dict[str, Any]:
    """Keys of ``key_dim`` channels, values of ``attention_ratio`` times as many."""
    config, index = layer.config, layer.index
    width = _LEVIT.value(config, "key_dim", (16, 16, 16), index)
    ratio = _LEVIT.value(config, "attention_ratio", (2, 2, 2), index)
    return {"head_dim": width, "v_head_dim": width * ratio, "scale": float(width**-0.5)}


_LEVIT_FAMILY = Family(
    "levit",
    Sizes(
        hidden=lambda config, index: _LEVIT.value(config, "hidden_sizes", (128, 256, 384), index),
        heads=lambda config, index, _kind: _LEVIT.value(config, "num_attention_heads", (4, 8, 12), index),
        layers=_LEVIT.count,
        head_dim=lambda config, _kind: integers(config, "key_dim", (16, 16, 16))[0],
        length=NO_LENGTH,
    ),
    _levit_table,
    projection_biases.fixed(""),
    causal=never,
    extras=_levit_widths,
    beyond=has("batch norms behind its projections and an activation before the last"),
    harmless=_HARMLESS,
)

GRID_FAMILIES = (
    _swin("swin"),
    _swin("donut-swin"),
    _swin("maskformer-swin"),
    _SWINV2,
    _SWIN2SR,
    _CLAP,
    _beit("beit"),
    _beit("data2vec-vision"),
    _LEVIT_FAMILY,
)
