"""Fields of AttentionSpec that few families have: softcap, sinks, norms of values, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config.layer import Layer
from portpe.errors import SpecError
from portpe.layer_parts import Norm

ExtrasOf = Callable[[Layer], dict[str, Any]]


def softcap(key: str, default: float | None) -> ExtrasOf:
    """Scores go through a tanh of this height; null is none."""

    def extras(layer: Layer) -> dict[str, Any]:
        if layer.config.has(key):
            return {"softcap": layer.config.positive(key)}
        return {} if key in layer.config.data or default is None else {"softcap": default}

    return extras


def sinks(layer: Layer) -> dict[str, Any]:  # noqa: ARG001
    """One learned logit a head."""
    return {"sinks": True}


def value_norm(layer: Layer) -> dict[str, Any]:
    """An RMS norm without a weight over each head of the values (Gemma 3n)."""
    return {"v_norm": Norm(kind="rms", eps=layer.config.positive("rms_norm_eps", 1e-6), affine=False)}


def clip(layer: Layer) -> dict[str, Any]:
    """``clip_qkv`` clamps q, k and v; null is none."""
    value = layer.config.real("clip_qkv", 0.0)
    if value < 0:
        raise SpecError(f"clip_qkv must be > 0, got {value}")
    return {"clip_qkv": value} if value else {}
