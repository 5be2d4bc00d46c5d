"""Rotary embeddings of images and video in a config: which coordinates a tower turns by."""

from __future__ import annotations

from typing import Any, Literal

from portpe.config.embedding_sites import Site
from portpe.config.layer import Layer
from portpe.config.section import Section, shown
from portpe.encodings import AxialAxes, DefaultSchedule, LinearSchedule, RotaryEncoding
from portpe.errors import SpecError


def axial(
    *,
    theta: float = 10000.0,
    order: tuple[int, int] = (0, 1),
    arrangement: Literal["blocks", "interleaved"] = "blocks",
    frequencies: Literal["each", "shared"] = "each",
    pairing: Literal["half", "interleaved"] = "half",
    **more: Any,
) -> Site:
    """Rows and columns over the whole head; ``more``: fields of ``RotaryEncoding``."""

    def site(layer: Layer) -> dict[str, Any]:
        if layer.head_dim % 4:
            raise SpecError(f"head_dim must be a multiple of 4 for rows and columns, got {layer.head_dim}")
        rotary = RotaryEncoding(
            width=layer.head_dim,
            pairing=pairing,
            schedule=DefaultSchedule(rope_theta=_theta(layer, theta)),
            axes=AxialAxes(order=order, arrangement=arrangement, frequencies=frequencies),
            **more,
        )
        return {"rotary": rotary}

    return site


def triaxial(layer: Layer) -> dict[str, Any]:
    """MiniMax M3: frames, rows and columns, as many whole pairs each as a third of the head has; the rest passes."""
    return {"rotary": _of_thirds(layer, _theta(layer, 10000.0), tiled=False)}


def vjepa2(layer: Layer) -> dict[str, Any]:
    """V-JEPA 2: frames, rows and columns, with the angles of a coordinate laid twice over adjacent pairs."""
    return {"rotary": _of_thirds(layer, 10000.0, tiled=True)}


def llama4(layer: Layer) -> dict[str, Any]:
    """Llama 4: columns, then rows, counted from 1, in adjacent pairs; the class token at the end is not turned."""
    return axial(order=(1, 0), pairing="interleaved", offset=1, suffix_tokens=1)(layer)


def dinov3(layer: Layer, queries: int = 0) -> dict[str, Any]:
    """DINOv3: centred rows and columns; the class token and the registers stand before them and are not turned.

    ``queries`` stand before those.
    """
    default = _REGISTERS[layer.config.text("model_type")]
    prefix = queries + 1 + layer.config.integer("num_register_tokens", default, minimum=0)
    for key in ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"):  # of training alone
        layer.config.get(key)
    return axial(theta=100.0, coordinates="centred", prefix_tokens=prefix)(layer)


def sam3(layer: Layer) -> dict[str, Any]:
    """SAM 3: columns, then rows, in adjacent pairs. Layers that see the whole picture count it as wide as a window."""
    config = layer.config
    window = config.integer("window_size", 24, minimum=0)
    image, patch = (side(config, key, default) for key, default in (("image_size", 1008), ("patch_size", 14)))
    everywhere = config.get("global_attn_indexes")
    everywhere = (7, 15, 23, 31) if everywhere is None else everywhere
    if not isinstance(everywhere, list | tuple):
        raise SpecError(f"global_attn_indexes must be a list of layers, got {shown(everywhere)}")
    found = axial(order=(1, 0), pairing="interleaved")(layer)
    if window == 0 or layer.index not in everywhere or image // patch == window:
        return found
    rotary = found["rotary"]
    schedule = LinearSchedule(rope_theta=rotary.schedule.rope_theta, factor=image // patch / window)
    return {"rotary": rotary.model_copy(update={"schedule": schedule, "contract": "scaled_positions"})}


def side(config: Section, key: str, default: int) -> int:
    """A size of a square, or the first of two."""
    value = config.get(key)
    if not isinstance(value, list | tuple):
        return config.integer(key, default)
    return Section({key: value[0] if value else None}).integer(key)


def joined_by_queries(layer: Layer) -> bool:
    """EoMT: whether the queries of objects stand before the tokens of a picture, as in the last ``num_blocks``."""
    return layer.index >= layer.num_layers - layer.config.integer("num_blocks", 4, minimum=0)


def eomt_dinov3(layer: Layer) -> dict[str, Any]:
    """EoMT on DINOv3."""
    queries = layer.config.integer("num_queries", 200, minimum=0)
    return dinov3(layer, queries if joined_by_queries(layer) else 0)


_REGISTERS = {"dinov3_vit": 0, "eomt_dinov3": 4, "sapiens2": 8}


def _of_thirds(layer: Layer, theta: float, *, tiled: bool) -> RotaryEncoding:
    pairs = layer.head_dim // 3 // 2
    if pairs == 0:
        raise SpecError(f"head_dim must be >= 6 for three coordinates, got {layer.head_dim}")
    return RotaryEncoding(
        width=6 * pairs,
        pairing="interleaved" if tiled else "half",
        schedule=DefaultSchedule(rope_theta=theta),
        axes=AxialAxes(order=(0, 1, 2), tiled=tiled),
    )


def _theta(layer: Layer, default: float) -> float:
    """The base, of the rope block or of the top of a config; no scaling is defined for a grid."""
    block = layer.config.section(layer.config.either("rope_parameters", "rope_scaling"))
    if block is None:
        block = Section({}, "rope_parameters")
    for key in ("rope_type", "type"):
        if block.has(key) and block.text(key) not in ("axial", "default"):
            raise SpecError(f"{block.name(key)} must be 'axial', got {shown(block.get(key))}; grids have no scaling")
    inside = block.positive("rope_theta") if block.has("rope_theta") else None
    top = layer.config.positive("rope_theta", default)
    if inside is not None and layer.config.has("rope_theta") and top != inside:
        layer.warn(f"{block.name('rope_theta')} = {inside} goes before rope_theta = {top} at the top")
    layer.unknown.refuse_unread(block)
    return top if inside is None else inside
