"""Layer: runtimes (MLX). The bias site: what is added to the scores, and to what the probabilities weigh.

A member is a module that is called with ``ScoreInputs`` and gives the addend (1 | B, heads, S, T) in float32. One
with a value term has ``value_term(probs, inputs)`` besides, (B, heads, S, v_head_dim) in float32. Trained tensors stand
in the block, under their canonical names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import mlx.core as mx
from mlx import nn

from portpe.encodings import AlibiEncoding
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class ScoreInputs(NamedTuple):
    """What a bias may read. Positions are (axes, ...) where the spec's have several axes."""

    hidden: mx.array  # (B, S, hidden): what q_proj sees
    q: mx.array  # (B, heads, S, head_dim): rotated and normed, not scaled
    k: mx.array  # (B, kv_heads, T, head_dim), the cached ones too
    query_positions: mx.array  # (1 | B, S)
    key_positions: mx.array  # (1 | B, T)
    visible: mx.array | None  # bool, broadcastable to (B, heads, S, T); None hides nothing
    weights: Mapping[str, mx.array]  # the trained tensors, by canonical name


class Alibi(nn.Module):
    """-slope * (i - j), or -slope * |i - j| where symmetric, in float32 from integer distances.

    A key index times a slope loses the distance between neighbours in 16-bit types (and from 2^24 on in
    float32); the distance itself does not.
    """

    def __init__(self, slopes: mx.array, symmetric: bool) -> None:
        super().__init__()
        self._slopes, self.symmetric = slopes, symmetric

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T) in float32."""
        distance = inputs.query_positions[:, None, :, None] - inputs.key_positions[:, None, None, :]
        if self.symmetric:
            distance = mx.abs(distance)
        return -self._slopes[:, None, None] * distance.astype(mx.float32)


def alibi(encoding: AlibiEncoding, spec: AttentionSpec, tables: Tables) -> Alibi:  # noqa: ARG001 - a site's signature
    """Press 2021; head count, bias_max and scale are in the slopes already."""
    return Alibi(mx.array(tables["slopes"]), encoding.symmetric)


SITES: dict[str, Callable[..., nn.Module]] = {"alibi": alibi}
