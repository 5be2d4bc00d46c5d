"""Layer: runtimes (MLX). DeBERTa: projected vectors of the distance meet queries and keys."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DebertaEncoding
from portpe.runtimes.mlx.bias.by_distance import RowOfDistance, pick
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class Deberta(nn.Module):
    """(q_i . K[r] + k_j . Q[r]) * scale, r the row of the distance (He 2021, section 3.1), in float32."""

    def __init__(self, encoding: DebertaEncoding, spec: AttentionSpec) -> None:
        super().__init__()
        self.encoding, self.heads, self.scale = encoding, spec.num_heads, spec.scale
        self.row_of = RowOfDistance(distance_rows(encoding))

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        rows = self.row_of(inputs.query_positions, inputs.key_positions)
        terms = []
        if self.encoding.content_to_position:
            products = inputs.q.astype(mx.float32) @ self._projected(inputs, "key").swapaxes(-1, -2)
            terms.append(pick(products, rows))
        if self.encoding.position_to_content:
            k = mx.repeat(inputs.k.astype(mx.float32), self.heads // inputs.k.shape[1], axis=1)
            products = k @ self._projected(inputs, "query").swapaxes(-1, -2)
            terms.append(pick(products, rows.swapaxes(1, 2)).swapaxes(-1, -2))
        return sum(terms[1:], start=terms[0]) * self.scale

    def _projected(self, inputs: ScoreInputs, part: str) -> mx.array:
        """The table's rows as keys or queries: (heads, rows, head_dim) in float32."""
        weights, encoding = inputs.weights, self.encoding
        table = weights["relative_embedding.weight"]
        if encoding.norm_eps is not None:
            weight, bias = (weights[f"relative_norm.{name}"].astype(mx.float32) for name in ("weight", "bias"))
            normed = mx.fast.layer_norm(table.astype(mx.float32), weight, bias, encoding.norm_eps)
            table = normed.astype(table.dtype)
        if encoding.share_projections:
            rows = inputs.project(f"{part[0]}_proj", table)
        else:
            name = f"position_{part}_proj"
            rows = table.astype(mx.float32) @ weights[f"{name}.weight"].astype(mx.float32).T
            if f"{name}.bias" in weights:
                rows = rows + weights[f"{name}.bias"]
        return rows.astype(mx.float32).reshape(len(table), self.heads, -1).transpose(1, 0, 2)


def deberta(encoding: DebertaEncoding, spec: AttentionSpec, tables: Tables) -> Deberta:  # noqa: ARG001 - a site's signature
    """He 2021; v2's log buckets are rows of the table."""
    return Deberta(encoding, spec)
