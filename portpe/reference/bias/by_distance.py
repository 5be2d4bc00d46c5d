"""Layer: reference. Rows of tables by distance, and products with every row read at the rows that distances choose."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from portpe.biases.by_distance import DistanceRows
from portpe.reference.arrays import to_torch


class RowOfDistance(nn.Module):
    """The row of each query and key."""

    rows: Tensor

    def __init__(self, rows: DistanceRows) -> None:
        super().__init__()
        self.first, self.last = rows.first, rows.last
        self.register_buffer("rows", to_torch(rows.rows), persistent=False)

    def forward(
        self, query_positions: Int[Tensor, "batch seq"], key_positions: Int[Tensor, "batch total"]
    ) -> Int[Tensor, "batch seq total"]:
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return self.rows[distance.clamp(self.first, self.last) - self.first]


def pick(
    products: Float[Tensor, "batch heads seq rows"], rows: Int[Tensor, "batch seq total"]
) -> Float[Tensor, "batch heads seq total"]:
    """For each query and key the product with the row that is theirs."""
    return products.gather(-1, rows[:, None].expand(-1, products.shape[1], -1, -1))
