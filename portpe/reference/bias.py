"""Layer: reference. Bias site: what is added to the scores, by query and key position.

A member is a module that is called with query positions (B, S) and key positions (B, T) and gives the
addend (B, heads, S, T) in the accumulation type. ``BIASES`` finds it by the encoding's kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from portpe.biases import slopes
from portpe.encodings import AlibiEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.lookup import Tables, table


class Alibi(nn.Module):
    """Minus slope times distance (Press 2021, section 3).

    Formed from distances, never from key indices: slope * j grows with the position, and in half precision the
    neighbours of a far query would share one value. Formed in float64 and rounded once.
    """

    slopes: Tensor

    def __init__(self, encoding: AlibiEncoding, num_heads: int, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.symmetric = encoding.symmetric
        self.accumulate = accumulation_dtype(dtype)
        numbers = slopes(encoding, num_heads) if tables is None else table(tables, "slopes")
        self.register_buffer("slopes", to_torch(numbers).double(), persistent=False)

    def forward(
        self, query_positions: Int[Tensor, "batch seq"], key_positions: Int[Tensor, "batch total"]
    ) -> Float[Tensor, "batch heads seq total"]:
        distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
        distance = distance.abs() if self.symmetric else distance
        return (-self.slopes[:, None, None] * distance.double()).to(self.accumulate)


BIASES: dict[str, Callable[..., nn.Module]] = {"alibi": Alibi}
