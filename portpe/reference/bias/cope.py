"""Layer: reference. CoPE: positions that count what a query finds."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from portpe.encodings import CopeEncoding
from portpe.reference import dot_product
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class Cope(Bias):
    """q . e at the sum of gates from each key on, between two rows by the fraction (Golovneva 2024, section 3)."""

    def __init__(
        self,
        encoding: CopeEncoding,
        spec: AttentionSpec,
        tables: Tables | None,  # noqa: ARG002 - a site's signature
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.scale, self.accumulate = spec.scale if encoding.scaled_gates else 1.0, accumulation_dtype(dtype)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        table = inputs.weights["contextual_position.weight"].to(self.accumulate)
        gates = torch.sigmoid(dot_product.scores(inputs.q, inputs.k, self.scale)).masked_fill(~inputs.visible, 0.0)
        place = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(table) - 1)
        below = place.floor()
        products = inputs.q.to(self.accumulate) @ table.T
        low, high = (products.gather(-1, row.long().clamp(max=len(table) - 1)) for row in (below, below + 1))
        return low + (place - below) * (high - low)
