"""Layer: runtimes (MLX). T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases import buckets as numbers
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, GatedBucketsEncoding
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


class GatedBuckets(nn.Module):
    """The same times a (b c - 1) + 2, a and b gates of the query's own hidden state (WavLM), in float32."""

    def __init__(self, row_of: RowOfDistance, heads: int) -> None:
        super().__init__()
        self.row_of, self.heads = row_of, heads

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T) in float32."""
        trained = {name: tensor.astype(mx.float32) for name, tensor in inputs.weights.items()}
        by_head = inputs.hidden.astype(mx.float32).reshape(*inputs.hidden.shape[:2], self.heads, -1)
        logits = by_head @ trained["relative_gate.weight"].T + trained["relative_gate.bias"]
        gates = mx.sigmoid(logits.reshape(*logits.shape[:-1], 2, 4).sum(-1))  # (B, S, heads, 2)
        gate = gates[..., 0] * (gates[..., 1] * trained["relative_gate_scale"] - 1.0) + 2.0
        rows = self.row_of(inputs.query_positions, inputs.key_positions)
        return trained[numbers.TABLE][rows].transpose(0, 3, 1, 2) * gate.swapaxes(1, 2)[..., None]


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


def gated_buckets(encoding: GatedBucketsEncoding, spec: AttentionSpec, tables: Tables) -> GatedBuckets:  # noqa: ARG001
    """Chen 2022 (WavLM)."""
    return GatedBuckets(RowOfDistance(numbers.distance_rows(encoding)), spec.num_heads)


def axis_buckets(encoding: AxisBucketsEncoding, spec: AttentionSpec, tables: Tables) -> AxisBuckets:  # noqa: ARG001
    """Xu 2021 (LayoutLMv2)."""
    rows = (RowOfDistance(numbers.distance_rows(axis)) for axis in encoding.axes)
    return AxisBuckets(dict(zip(encoding.weight_shapes(spec), rows, strict=True)), encoding.scale)
