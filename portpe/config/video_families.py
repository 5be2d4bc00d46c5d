"""Encoders of video whose tables go over frames besides patches: one row a model_type."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from portpe.config import norms
from portpe.config.bert_families import usual_sizes
from portpe.config.embedding_sites import on_layer_0
from portpe.config.extras import softcap
from portpe.config.image_families import before, pair, patches, vit_like
from portpe.config.layer import Layer
from portpe.config.section import Section, shown
from portpe.encodings import LearnedEncoding, LearnedGridEncoding
from portpe.errors import SpecError


def _tube(config: Section, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Frames, rows and columns of what makes one token of a video."""
    tube = config.get("tubelet_size")
    if tube is None:
        return default
    whole = isinstance(tube, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in tube)
    if not whole or len(tube) != 3 or min(tube) < 1:
        raise SpecError(f"tubelet_size must be three integers >= 1, got {shown(tube)}")
    return tube[0], tube[1], tube[2]


def _tubes(config: Section, image: int, frames: int, tube: tuple[int, int, int]) -> tuple[int, int, int]:
    """How many tubes a video has: along time, down and across."""
    time, down, across = _tube(config, tube)
    height, width = pair(config, "image_size", image)
    length = config.integer("num_frames", frames)
    for name, extent, each in (("num_frames", length, time), ("image_size", min(height, width), max(down, across))):
        if extent < each:
            raise SpecError(f"{name} must be >= {each}, its part of tubelet_size, got {extent}")
    return length // time, height // down, width // across


def _vivit(layer: Layer) -> dict[str, Any]:
    """ViViT: a row for the class token, then one a tube, by frames, rows and columns."""
    tubes = _tubes(layer.config, 224, 32, (2, 16, 16))
    return on_layer_0(layer, LearnedEncoding(rows=1 + math.prod(tubes), width=layer.hidden_size))


def _timesformer(layer: Layer) -> dict[str, Any]:
    """TimeSformer: a table over patches plus one over frames, as one whose row 1 + patch * frames + frame is their sum.

    With attention_type ``space_only`` frames are pictures by themselves and have no rows.
    """
    frames = layer.config.integer("num_frames", 8) if _kind(layer) != "space_only" else 1
    rows = 1 + math.prod(patches(layer.config, 224, 16)) * frames
    return on_layer_0(layer, LearnedEncoding(rows=rows, width=layer.hidden_size))


def _kind(layer: Layer) -> str:
    kinds = ("divided_space_time", "space_only", "joint_space_time")
    kind = layer.config.text("attention_type", kinds[0])
    if kind not in kinds:
        raise SpecError(f"attention_type must be one of {', '.join(kinds)}, got {shown(kind)}")
    return kind


def _divided(layer: Layer) -> str | None:
    return "attention over frames before the one over patches" if _kind(layer) == "divided_space_time" else None


def _videoprism_layers(config: Section) -> int:
    return config.integer("num_spatial_layers", 12) + config.integer("num_temporal_layers", 4)


def _videoprism(layer: Layer) -> dict[str, Any]:
    """VideoPrism: a table over patches before the first layer, one over frames before the first of the temporal ones.

    A temporal layer's position is (frame, 0).
    """
    frames, down, across = _tubes(layer.config, 288, 16, (1, 18, 18))
    resampling: dict[str, Any] = {"resize": "bilinear", "antialias": True}
    if layer.index == 0:
        return {"embedding": LearnedGridEncoding(grid=(down, across), width=layer.hidden_size, **resampling)}
    if layer.index == layer.config.integer("num_spatial_layers", 12):
        return {"embedding": LearnedGridEncoding(grid=(frames, 1), width=layer.hidden_size, **resampling)}
    return {}


VIDEO_FAMILIES = (
    vit_like("vivit", _vivit, before(1e-6)),
    vit_like("timesformer", _timesformer, before(1e-6), beyond=_divided),
    replace(
        vit_like(
            "videoprism_vision_model",
            _videoprism,
            norms.layer_norm("layer_norm_eps", 1e-6, weight_offset=1.0),
            extras=softcap("attn_logit_softcapping", 50.0),
            harmless=frozenset({"apply_l2norm"}),
        ),
        sizes=replace(usual_sizes(768, 12, 16, 0), layers=_videoprism_layers),
    ),
)
