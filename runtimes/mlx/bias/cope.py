"""Layer: runtimes (MLX). CoPE: positions that count what a query finds."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.encodings import CopeEncoding
from portpe.runtimes.mlx import attention
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class Cope(nn.Module):
    """q . e at the sum of gates from each key on (Golovneva 2024, section 3), in float32."""

    def __init__(self, encoding: CopeEncoding, spec: AttentionSpec) -> None:
        super().__init__()
        self.last, self.scale = encoding.rows - 1, spec.scale if encoding.scaled_gates else 1.0

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        gates = mx.sigmoid(attention.scores(inputs.q, inputs.k, self.scale, None, None))
        if inputs.visible is not None:
            gates = mx.where(inputs.visible, gates, 0.0)
        place = mx.minimum(mx.cumsum(gates, axis=-1, reverse=True), self.last)
        below = mx.floor(place)
        table = inputs.weights["contextual_position.weight"].astype(mx.float32)
        products = inputs.q.astype(mx.float32) @ table.T
        low, high = (
            mx.take_along_axis(products, mx.minimum(row, self.last).astype(mx.int32), axis=-1)
            for row in (below, below + 1)
        )
        return low + (place - below) * (high - low)


def cope(encoding: CopeEncoding, spec: AttentionSpec, tables: Tables) -> Cope:  # noqa: ARG001 - a site's signature
    """Golovneva 2024; the table is a weight."""
    return Cope(encoding, spec)
