"""Layer: runtimes (MLX). A bank of profiles over the distance, mixed by each token for itself."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DistanceBankEncoding
from portpe.encodings.temperature import Temperature
from portpe.runtimes.mlx.bias.by_distance import RowOfDistance, pick
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class DistanceBank(nn.Module):
    """r . P[i - j] within the bank's extent, 0 elsewhere, in float32."""

    def __init__(
        self, encoding: DistanceBankEncoding, heads: int, temperature: Temperature | None, tables: Tables
    ) -> None:
        super().__init__()
        self.heads, self.clip, self.temperature = heads, encoding.clip, temperature
        self.row_of = RowOfDistance(distance_rows(encoding))
        if temperature is not None:
            self._multipliers = mx.array(tables["query_scale"])

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        products = self._states(inputs) @ inputs.weights["distance_bank"].astype(mx.float32)
        products = mx.pad(products, [(0, 0), (0, 0), (0, 0), (0, 1)])
        bias = pick(products, self.row_of(inputs.query_positions, inputs.key_positions))
        if self.temperature is None:
            return bias
        rows = (inputs.query_positions + self.temperature.offset) // self.temperature.step
        return bias * self._multipliers[rows][:, None, :, None]

    def _states(self, inputs: ScoreInputs) -> mx.array:
        """(B, heads, S, width) in float32."""
        kept = inputs.hidden.dtype
        weight = inputs.weights["relative_state_proj.weight"].astype(mx.float32)
        states = (inputs.hidden.astype(mx.float32) @ weight.T).astype(kept).astype(mx.float32)
        states = states.reshape(*states.shape[:2], self.heads, -1)
        if self.clip is not None:
            states = states * inputs.weights["relative_state_scale"].astype(mx.float32)
            length = mx.sqrt(mx.square(states).sum(-1, keepdims=True))
            states = states * mx.minimum(self.clip / (length + 1e-6), 1.0)
            states = states.astype(kept).astype(mx.float32)
        return states.swapaxes(1, 2)


def distance_bank(encoding: DistanceBankEncoding, spec: AttentionSpec, tables: Tables) -> DistanceBank:
    """Inkling, and Inkling 2 with its clip."""
    return DistanceBank(encoding, spec.num_heads, spec.query_scale if encoding.tempered else None, tables)
