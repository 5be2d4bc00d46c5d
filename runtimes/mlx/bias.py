"""Layer: runtimes (MLX). The bias site: what is added to the scores, by query and key position."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

from portpe.encodings import AlibiEncoding
from portpe.runtimes.mlx.position_table import Tables


class Alibi(nn.Module):
    """-slope * (i - j), or -slope * |i - j| where symmetric, in float32 from integer distances.

    A key index times a slope loses the distance between neighbours in 16-bit types (and from 2^24 on in
    float32); the distance itself does not.
    """

    def __init__(self, slopes: mx.array, symmetric: bool) -> None:
        super().__init__()
        self._slopes, self.symmetric = slopes, symmetric

    def __call__(self, query_positions: mx.array, key_positions: mx.array) -> mx.array:
        """The bias (1 | B, heads, S, T) float32 of query positions (1 | B, S) and key positions (1 | B, T)."""
        distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
        if self.symmetric:
            distance = mx.abs(distance)
        return -self._slopes[:, None, None] * distance.astype(mx.float32)


def alibi(encoding: AlibiEncoding, tables: Tables) -> Alibi:
    """Press 2021; head count, bias_max and scale are in the slopes already."""
    return Alibi(mx.array(tables["slopes"]), encoding.symmetric)


SITES: dict[str, Callable[[AlibiEncoding, Tables], Alibi]] = {"alibi": alibi}
