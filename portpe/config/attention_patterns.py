"""Which tokens a family's attention sees where that is no causal window: all of them, or those near on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config.layer import Layer
from portpe.config.section import shown
from portpe.errors import SpecError

Extras = Callable[[Layer], dict[str, Any]]


def dense(default: str, allowed: str) -> Extras:
    """Refuses every ``attention_type`` but one: patterns that leave keys out by another rule are not supported."""

    def extras(layer: Layer) -> dict[str, Any]:
        kind = layer.config.text("attention_type", default)
        if kind != allowed:
            raise SpecError(f"attention_type must be {allowed!r}, got {shown(kind)}; no other attention is supported")
        return {}

    return extras


def local(layer: Layer) -> dict[str, Any]:
    """Longformer, LED: ``attention_window`` (512) counts the keys on both sides of a token; global ones are apart."""
    window = layer.config.get("attention_window")
    if isinstance(window, list | tuple):
        if len(window) != layer.num_layers:
            raise SpecError(
                f"attention_window must have an entry for each of {layer.num_layers} layers, got {len(window)}"
            )
        window = window[layer.index]
    window = 512 if window is None else window
    if isinstance(window, bool) or not isinstance(window, int) or window < 2 or window % 2:
        raise SpecError(f"attention_window must be an even integer >= 2, got {shown(window)}")
    layer.warn("global attention has projections of its own: the spec is that of a token without it")
    return {"window_radius": window // 2}


def together(*rules: Extras) -> Extras:
    """The fields of several rules."""

    def extras(layer: Layer) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for rule in rules:
            fields |= rule(layer)
        return fields

    return extras
