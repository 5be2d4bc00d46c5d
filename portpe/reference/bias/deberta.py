"""Layer: reference. DeBERTa: projected vectors of the distance meet queries and keys."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DebertaEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.by_distance import RowOfDistance, pick
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class Deberta(Bias):
    """(q_i . K[r] + k_j . Q[r]) * scale, r the row of the distance (He 2021, section 3.1)."""

    def __init__(
        self,
        encoding: DebertaEncoding,
        spec: AttentionSpec,
        tables: Tables | None,  # noqa: ARG002 - a site's signature
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.encoding, self.spec, self.dtype = encoding, spec, dtype
        self.accumulate = accumulation_dtype(dtype)
        self.row_of = RowOfDistance(distance_rows(encoding))

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        rows = self.row_of(inputs.query_positions, inputs.key_positions)
        total = torch.zeros((), dtype=self.accumulate, device=inputs.q.device)
        if self.encoding.content_to_position:
            products = inputs.q.to(self.accumulate) @ self._projected(inputs, "key").transpose(-1, -2)
            total = total + pick(products, rows)
        if self.encoding.position_to_content:
            group = self.spec.num_heads // self.spec.num_kv_heads
            k = inputs.k.to(self.accumulate).repeat_interleave(group, dim=1)
            products = k @ self._projected(inputs, "query").transpose(-1, -2)
            total = total + pick(products, rows.transpose(1, 2)).transpose(-1, -2)
        return total * self.spec.scale

    def _projected(self, inputs: ScoreInputs, part: str) -> Float[Tensor, "heads rows head_dim"]:
        """The table's rows as keys or queries, by head."""
        weights, encoding = inputs.weights, self.encoding
        table = weights["relative_embedding.weight"].to(self.accumulate)
        if encoding.norm_eps is not None:
            weight, bias = (weights[f"relative_norm.{name}"].to(self.accumulate) for name in ("weight", "bias"))
            table = F.layer_norm(table, table.shape[-1:], weight, bias, encoding.norm_eps).to(self.dtype)
        if encoding.share_projections:
            rows = inputs.project(f"{part[0]}_proj", table.to(self.dtype)).to(self.accumulate)
        else:
            name = f"position_{part}_proj"
            rows = table.to(self.accumulate) @ weights[f"{name}.weight"].to(self.accumulate).T
            if f"{name}.bias" in weights:
                rows = rows + weights[f"{name}.bias"].to(self.accumulate)
        return rows.reshape(len(rows), self.spec.num_heads, -1).transpose(0, 1)
