"""Layer: runtimes (MLX). T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases import buckets as numbers
from portpe.encodings import BucketsEncoding
from portpe.runtimes.mlx.bias.by_distance import RowOfDistance
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class Buckets(nn.Module):
    """Rows of the trained table (num_buckets, heads), found by integer distances."""

    def __init__(self, row_of: RowOfDistance) -> None:
        super().__init__()
        self.row_of = row_of

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T) in float32."""
        table = inputs.weights[numbers.TABLE].astype(mx.float32)
        return table[self.row_of(inputs.query_positions, inputs.key_positions)].transpose(0, 3, 1, 2)


def buckets(encoding: BucketsEncoding, spec: AttentionSpec, tables: Tables) -> Buckets:  # noqa: ARG001 - a site's signature
    """Raffel 2019; the buckets are formed once, from integers."""
    return Buckets(RowOfDistance(numbers.distance_rows(encoding)))
