"""Layer: runtimes (MLX). Rows of tables by distance, and products with every row read at the rows that these choose."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases.by_distance import DistanceRows


class RowOfDistance(nn.Module):
    """The row (1 | B, S, T) of each query and key."""

    def __init__(self, rows: DistanceRows) -> None:
        super().__init__()
        self.first, self.last = rows.first, rows.last
        self._rows = mx.array(rows.rows)

    def __call__(self, query_positions: mx.array, key_positions: mx.array) -> mx.array:
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return mx.take(self._rows, mx.clip(distance, self.first, self.last) - self.first)


def pick(products: mx.array, rows: mx.array) -> mx.array:
    """(B, heads, S, T) from products (B, heads, S, rows): for each query and key that with the row that is theirs."""
    return mx.take_along_axis(products, _over_heads(rows, products), axis=-1)


def share(probs: mx.array, rows: mx.array, count: int) -> mx.array:
    """(B, heads, S, count) from probs (B, heads, S, T): what the keys of each row have together."""
    zeros = mx.zeros((*probs.shape[:3], count), probs.dtype)
    b, h, s = (
        mx.arange(size).reshape([-1 if at == axis else 1 for at in range(4)])
        for axis, size in enumerate(probs.shape[:3])
    )
    return zeros.at[b, h, s, _over_heads(rows, probs)].add(probs)


def _over_heads(rows: mx.array, like: mx.array) -> mx.array:
    return mx.broadcast_to(rows[:, None], (*like.shape[:3], rows.shape[-1]))
