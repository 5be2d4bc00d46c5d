"""Layer: runtimes (MLX). Shaw: a trained vector a distance, for keys and for values."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases.by_distance import distance_rows
from portpe.encodings import ShawEncoding
from portpe.runtimes.mlx.bias.by_distance import RowOfDistance, pick, share
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class Shaw(nn.Module):
    """(q . K[row of the distance]) * scale, and sum_j p_ij V[row] (Shaw 2018, section 3.2), in float32."""

    def __init__(self, row_of: RowOfDistance, scale: float, behind: int) -> None:
        super().__init__()
        self.row_of, self.scale, self.behind = row_of, scale, behind  # zeros behind the table's rows

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        table = inputs.weights["relative_key.weight"].astype(mx.float32)
        products = inputs.q.astype(mx.float32) @ table.T * self.scale
        products = mx.pad(products, [(0, 0), (0, 0), (0, 0), (0, self.behind)])
        return pick(products, self.row_of(inputs.query_positions, inputs.key_positions))

    def value_term(self, probs: mx.array, inputs: ScoreInputs) -> mx.array:
        """What is added to the context (B, heads, S, v_head_dim)."""
        table = inputs.weights["relative_value.weight"].astype(mx.float32)
        rows = self.row_of(inputs.query_positions, inputs.key_positions)
        return share(probs, rows, len(table) + self.behind)[..., : len(table)] @ table


def shaw(encoding: ShawEncoding, spec: AttentionSpec, tables: Tables) -> Shaw:  # noqa: ARG001 - a site's signature
    """Shaw 2018; the tables are weights."""
    behind = 1 if encoding.beyond == "nothing" else 0
    return Shaw(RowOfDistance(distance_rows(encoding)), spec.scale, behind)
