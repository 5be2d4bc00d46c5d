"""Layer: reference. T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from portpe.biases import buckets
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, GatedBucketsEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.by_distance import RowOfDistance
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class Buckets(Bias):
    """Rows of the trained table (num_buckets, heads), found by integer distances (Raffel 2019, section 2.1)."""

    def __init__(
        self,
        encoding: BucketsEncoding,
        spec: AttentionSpec,  # noqa: ARG002 - a site's signature
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.scale, self.accumulate = encoding.scale, accumulation_dtype(dtype)
        self.row_of = RowOfDistance(buckets.distance_rows(encoding))

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        rows = self.row_of(inputs.query_positions, inputs.key_positions)
        return inputs.weights[buckets.TABLE][rows].permute(0, 3, 1, 2).to(self.accumulate) * self.scale


class GatedBuckets(Bias):
    """The same times a (b c - 1) + 2, a and b gates of the query's own hidden state (WavLM)."""

    def __init__(
        self,
        encoding: GatedBucketsEncoding,
        spec: AttentionSpec,
        tables: Tables | None,  # noqa: ARG002 - a site's signature
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.heads, self.accumulate = spec.num_heads, accumulation_dtype(dtype)
        self.row_of = RowOfDistance(buckets.distance_rows(encoding))

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        trained = {name: tensor.to(self.accumulate) for name, tensor in inputs.weights.items()}
        by_head = inputs.hidden.to(self.accumulate).reshape(*inputs.hidden.shape[:2], self.heads, -1)
        logits = F.linear(by_head, trained["relative_gate.weight"], trained["relative_gate.bias"])
        a, b = torch.sigmoid(logits.reshape(*logits.shape[:-1], 2, 4).sum(-1)).unbind(-1)  # (batch, seq, heads)
        gate = a * (b * trained["relative_gate_scale"] - 1.0) + 2.0
        rows = self.row_of(inputs.query_positions, inputs.key_positions)
        return trained[buckets.TABLE][rows].permute(0, 3, 1, 2) * gate.transpose(1, 2)[..., None]


class AxisBuckets(Bias):
    """The sum over the axes of a row of each axis' own table (Xu 2021, section 2.2)."""

    def __init__(
        self,
        encoding: AxisBucketsEncoding,
        spec: AttentionSpec,
        tables: Tables | None,  # noqa: ARG002 - a site's signature
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.scale, self.accumulate = encoding.scale, accumulation_dtype(dtype)
        self.names = tuple(encoding.weight_shapes(spec))
        self.row_of = nn.ModuleList(RowOfDistance(buckets.distance_rows(axis)) for axis in encoding.axes)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        total = torch.zeros((), dtype=self.accumulate, device=inputs.query_positions.device)
        axes = zip(self.names, self.row_of, inputs.query_positions, inputs.key_positions, strict=True)
        for name, row_of, queries, keys in axes:
            total = total + inputs.weights[name].to(self.accumulate)[row_of(queries, keys)]
        return total.permute(0, 3, 1, 2) * self.scale
