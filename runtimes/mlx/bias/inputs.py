"""Layer: runtimes (MLX). What a bias-site encoding may read of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import mlx.core as mx


class ScoreInputs(NamedTuple):
    """What a bias may read. Positions are (axes, ...) where the spec's have several axes."""

    hidden: mx.array  # (B, S, hidden): what q_proj sees
    q: mx.array  # (B, heads, S, head_dim): rotated and normed, not scaled
    k: mx.array  # (B, kv_heads, T, head_dim), the cached ones too
    query_positions: mx.array  # (1 | B, S)
    key_positions: mx.array  # (1 | B, T)
    visible: mx.array | None  # bool, broadcastable to (B, heads, S, T); None hides nothing
    weights: Mapping[str, mx.array]  # the trained tensors, by canonical name
    project: Callable[[str, mx.array], mx.array]  # a projection of the block, by name (``k_proj``)
    states: Mapping[str, mx.array] = MappingProxyType({})  # (B, numbers of a token, T) in float32, of all keys
