"""Layer: runtimes (MLX). T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases import buckets as numbers
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding
from portpe.runtimes.mlx.bias.by_distance import RowOfDistance
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class Buckets(nn.Module):
    """Rows of the trained table (num_buckets, heads), found by integer distances."""

    def __init__(self, row_of: RowOfDistance, scale: float) -> None:
        super().__init__()
        self.row_of, self.scale = row_of, scale

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T) in float32."""
        table = inputs.weights[numbers.TABLE].astype(mx.float32)
        return table[self.row_of(inputs.query_positions, inputs.key_positions)].transpose(0, 3, 1, 2) * self.scale


class AxisBuckets(nn.Module):
    """The sum over the axes of a row of each axis' own table."""

    def __init__(self, row_of: dict[str, RowOfDistance], scale: float) -> None:
        super().__init__()
        self.row_of, self.scale = row_of, scale

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T) in float32."""
        axes = zip(self.row_of.items(), inputs.query_positions, inputs.key_positions, strict=True)
        terms = [inputs.weights[name].astype(mx.float32)[row_of(q, k)] for (name, row_of), q, k in axes]
        return sum(terms[1:], start=terms[0]).transpose(0, 3, 1, 2) * self.scale


def buckets(encoding: BucketsEncoding, spec: AttentionSpec, tables: Tables) -> Buckets:  # noqa: ARG001 - a site's signature
    """Raffel 2019; the buckets are formed once, from integers."""
    return Buckets(RowOfDistance(numbers.distance_rows(encoding)), encoding.scale)


def axis_buckets(encoding: AxisBucketsEncoding, spec: AttentionSpec, tables: Tables) -> AxisBuckets:  # noqa: ARG001
    """Xu 2021 (LayoutLMv2)."""
    rows = (RowOfDistance(numbers.distance_rows(axis)) for axis in encoding.axes)
    return AxisBuckets(dict(zip(encoding.weight_shapes(spec), rows, strict=True)), encoding.scale)
