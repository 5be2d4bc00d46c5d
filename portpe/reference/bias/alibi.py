"""Layer: reference. ALiBi: slope times distance."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from portpe.biases import slopes
from portpe.encodings import AlibiEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables, table
from portpe.spec import AttentionSpec


class Alibi(Bias):
    """Minus slope times distance (Press 2021, section 3).

    Formed from distances, never from key indices: slope * j grows with the position, and in half precision the
    neighbours of a far query would share one value. Formed in float64 and rounded once.
    """

    slopes: Tensor

    def __init__(self, encoding: AlibiEncoding, spec: AttentionSpec, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.symmetric = encoding.symmetric
        self.accumulate = accumulation_dtype(dtype)
        numbers = slopes(encoding, spec.num_heads) if tables is None else table(tables, "slopes")
        self.register_buffer("slopes", to_torch(numbers).double(), persistent=False)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        distance = inputs.query_positions[:, None, :, None] - inputs.key_positions[:, None, None, :]
        distance = distance.abs() if self.symmetric else distance
        return (-self.slopes[:, None, None] * distance.double()).to(self.accumulate)
