"""Layer: reference. T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from portpe.biases import buckets
from portpe.encodings import BucketsEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class Buckets(Bias):
    """Rows of the trained table (num_buckets, heads), found by integer distances (Raffel 2019, section 2.1)."""

    by_distance: Tensor

    def __init__(
        self,
        encoding: BucketsEncoding,
        spec: AttentionSpec,  # noqa: ARG002 - a site's signature
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.reach = encoding.max_distance
        self.accumulate = accumulation_dtype(dtype)
        self.register_buffer("by_distance", torch.from_numpy(buckets.by_distance(encoding)), persistent=False)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        distance = inputs.key_positions[:, None, :] - inputs.query_positions[:, :, None]
        found = self.by_distance[distance.clamp(-self.reach, self.reach) + self.reach]
        return inputs.weights[buckets.TABLE][found].permute(0, 3, 1, 2).to(self.accumulate)
