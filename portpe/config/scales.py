"""What multiplies q.k, where it is not 1 / sqrt(head_dim)."""

from __future__ import annotations

from collections.abc import Callable

from portpe.config.layer import Layer

ScaleOf = Callable[[Layer], float]


def fixed(scale: float) -> ScaleOf:
    """One number: T5 and Gemma 3n have 1."""
    return lambda _layer: scale


def of_key(key: str, default: float) -> ScaleOf:
    """The number itself that a key holds (Granite's attention_multiplier)."""
    return lambda layer: layer.config.positive(key, default)


def inverse_root(key: str, default: float) -> ScaleOf:
    """1 / sqrt of a key (Gemma's query_pre_attn_scalar)."""
    return lambda layer: float(layer.config.positive(key, default) ** -0.5)


def multiplied_keys(key: str) -> ScaleOf:
    """1 / sqrt(head_dim) times a factor of the keys (Falcon-H1's key_multiplier)."""
    return lambda layer: float(layer.head_dim**-0.5) * layer.config.positive(key, 1.0)


def of_half_head(layer: Layer) -> float:
    """Zamba: heads are twice as wide as hidden_size / heads, which it takes the root of."""
    return float((layer.head_dim / 2) ** -0.5)
