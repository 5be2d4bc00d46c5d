"""Layer: runtimes (MLX). ALiBi: slope times distance."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.encodings import AlibiEncoding
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


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
