"""Layer: runtimes (MLX). The rotary site: queries and keys turned by cos and sin of their positions.

mx.fast.rope is not used: it forms its angles in float32 (off by 6e-2 at position 1,000,000), in 16-bit types
on the CPU it also rounds cos, sin and every product, and it knows neither per-token positions nor the
attention factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import mlx.core as mx
from mlx import nn

from portpe.encodings import RotaryEncoding
from portpe.runtimes.mlx.position_table import PositionTable, Tables


def turn(x: mx.array, cos: mx.array, sin: mx.array, pairing: Literal["half", "interleaved"]) -> mx.array:
    """Each pair (a, b) of x's last axis becomes (a cos - b sin, b cos + a sin), in float32, cast once to x's type.

    x (B, heads, S, R); cos and sin (1 | B, 1, S, R/2) float32. Pair i is (i, i + R/2) with ``half``,
    (2i, 2i + 1) with ``interleaved`` (Su 2021, section 3.4.2).
    """
    wide = x.astype(mx.float32)
    half = x.shape[-1] // 2
    a, b = (wide[..., :half], wide[..., half:]) if pairing == "half" else (wide[..., 0::2], wide[..., 1::2])
    first, second = a * cos - b * sin, b * cos + a * sin
    if pairing == "half":
        turned = mx.concatenate([first, second], axis=-1)
    else:
        turned = mx.stack([first, second], axis=-1).reshape(x.shape)
    return turned.astype(x.dtype)


class Rotary(nn.Module):
    """Turns ``width`` channels of each head, the first or the last; the others pass bit for bit."""

    def __init__(
        self,
        table: PositionTable,
        width: int,
        channels: Literal["first", "last"],
        pairing: Literal["half", "interleaved"],
    ) -> None:
        super().__init__()
        self.table, self.width, self.channels, self.pairing = table, width, channels, pairing

    def cos_sin(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """The cos and sin (1 | B, 1, S, width/2) float32 of positions (1 | B, S)."""
        cos, sin = self.table(positions)
        return mx.expand_dims(cos, 1), mx.expand_dims(sin, 1)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        """Turned x (B, heads, S, head_dim), in its own type."""
        rest = x.shape[-1] - self.width
        if rest == 0:
            return turn(x, cos, sin, self.pairing)
        if self.channels == "first":
            parts = [turn(x[..., : self.width], cos, sin, self.pairing), x[..., self.width :]]
        else:
            parts = [x[..., :rest], turn(x[..., rest:], cos, sin, self.pairing)]
        return mx.concatenate(parts, axis=-1)


def rotary(encoding: RotaryEncoding, tables: Tables) -> Rotary:
    """RoPE (Su 2021): the schedule, the attention factor and the sign are in the tables already."""
    return Rotary(PositionTable(tables), encoding.width, encoding.channels, encoding.pairing)


SITES: dict[str, Callable[[RotaryEncoding, Tables], Rotary]] = {"rotary": rotary}
