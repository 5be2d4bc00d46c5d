"""Layer: reference. A bank of profiles over the distance, mixed by each token for itself."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DistanceBankEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.by_distance import RowOfDistance, pick
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.reference.temperature import QueryScale
from portpe.spec import AttentionSpec


class DistanceBank(Bias):
    """r . P[i - j] within the bank's extent, 0 elsewhere (Inkling); r and what follows from it rounded once each."""

    def __init__(
        self, encoding: DistanceBankEncoding, spec: AttentionSpec, tables: Tables | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.heads, self.clip, self.dtype = spec.num_heads, encoding.clip, dtype
        self.accumulate = accumulation_dtype(dtype)
        self.row_of = RowOfDistance(distance_rows(encoding))
        if encoding.tempered:
            assert spec.query_scale is not None
            self.temperature = QueryScale(spec.query_scale, tables)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        bank = inputs.weights["distance_bank"].to(self.accumulate)
        products = F.pad(self._states(inputs) @ bank, (0, 1))
        bias = pick(products, self.row_of(inputs.query_positions, inputs.key_positions))
        return self.temperature(bias, inputs.query_positions) if hasattr(self, "temperature") else bias

    def _states(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq width"]:
        weight = inputs.weights["relative_state_proj.weight"].to(self.accumulate)
        states = (inputs.hidden.to(self.accumulate) @ weight.T).to(self.dtype).to(self.accumulate)
        states = states.reshape(*states.shape[:-1], self.heads, -1)
        if self.clip is not None:
            states = states * inputs.weights["relative_state_scale"].to(self.accumulate)
            length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
            states = (states * (self.clip / (length + 1e-6)).clamp(max=1.0)).to(self.dtype).to(self.accumulate)
        return states.transpose(1, 2)
