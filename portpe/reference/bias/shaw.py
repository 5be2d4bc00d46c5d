"""Layer: reference. Shaw: a trained vector a distance, for keys and for values."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from portpe.biases.by_distance import distance_rows
from portpe.encodings import ShawEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.by_distance import RowOfDistance, pick
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class Shaw(Bias):
    """(q . K[row of the distance]) * scale, and sum_j p_ij V[row] (Shaw 2018, section 3.2).

    Queries are multiplied with every row of the table once, and probabilities of one row are added up before they
    weigh it: no vector is repeated for each pair of query and key.
    """

    def __init__(
        self,
        encoding: ShawEncoding,
        spec: AttentionSpec,
        tables: Tables | None,  # noqa: ARG002 - a site's signature
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.scale, self.accumulate = spec.scale, accumulation_dtype(dtype)
        self.row_of = RowOfDistance(distance_rows(encoding))
        self.behind = 1 if encoding.beyond == "nothing" else 0  # zeros behind the table's rows

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        table = inputs.weights["relative_key.weight"].to(self.accumulate)
        products = inputs.q.to(self.accumulate) @ table.T * self.scale
        return pick(F.pad(products, (0, self.behind)), self.row_of(inputs.query_positions, inputs.key_positions))

    def value_term(
        self, probs: Float[Tensor, "batch heads seq total"], inputs: ScoreInputs
    ) -> Float[Tensor, "batch heads seq v_head_dim"]:
        table = inputs.weights["relative_value.weight"].to(probs.dtype)
        rows = self.row_of(inputs.query_positions, inputs.key_positions)[:, None].expand_as(probs)
        shares = probs.new_zeros((*probs.shape[:3], len(table) + self.behind)).scatter_add(-1, rows, probs)
        return shares[..., : len(table)] @ table
