"""Layer: runtimes (MLX). cos and sin of positions with several coordinates: each column takes its own."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe.axes import Dealt, deal
from portpe.encodings import RotaryEncoding
from portpe.runtimes.mlx.position_table import Angles, PositionTable
from portpe.runtimes.mlx.positions import Positions, Run, rows
from portpe.schedules import inv_freq


class AxisTable(nn.Module):
    """A position table whose columns read coordinates of their own, as ``Dealt`` says.

    Positions are (axes, 1 | B, S). A run, or (1 | B, S), is the same on every axis, as text is: then a row is the
    table's own.
    """

    def __init__(self, table: PositionTable, dealt: Dealt) -> None:
        super().__init__()
        self.table, self._dealt = table, _OnHost(dealt)
        self._one_hot = mx.array(dealt.one_hot)[:, None, None]

    @property
    def two_level(self) -> bool:
        """Whether the table has two levels."""
        return self.table.two_level

    @property
    def end(self) -> int:
        """The first position without a row."""
        return self.table.end

    @property
    def arrays(self) -> list[mx.array]:
        """The tables on the device."""
        return self.table.arrays

    def __call__(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """The cos and sin (1 | B, S, columns) of integer positions, on the device; the range has been checked."""
        cos, sin = self.table(positions)
        return (cos, sin) if positions.ndim < 3 else (self._select(cos), self._select(sin))

    def look_up(self, positions: Positions) -> Angles:
        """The cos and sin (1 | B, S, columns) of checked positions, where they cost least."""
        cos, sin = self.table.look_up(positions)
        if isinstance(positions, Run) or positions.ndim < 3:
            return cos, sin
        if isinstance(cos, np.ndarray):
            return self._dealt.dealt.select(cos), self._dealt.dealt.select(sin)
        return self._select(cos), self._select(sin)

    def _select(self, part: mx.array) -> mx.array:
        """One term of each sum is the column's own, the others are 0."""
        return mx.sum(part * self._one_hot, axis=0)


class CentredAngles(nn.Module):
    """cos and sin of 2 pi f (2p + 1 - n) / n, for cell p of the n that a call's positions have on each axis.

    No table: an angle is at most 2 pi f, and formed in float32 it is off by a few last places. It has the interface of
    a table.
    """

    two_level = False
    end = None

    def __init__(self, encoding: RotaryEncoding) -> None:
        super().__init__()
        turns = (2 * np.pi * inv_freq(encoding)).astype(np.float32)
        several = encoding.axes is not None
        self._turns = mx.array(deal(encoding).one_hot * turns)[:, None, None] if several else mx.array(turns)
        self.several, self.magnitude, self.sign = several, encoding.magnitude, encoding.sign

    @property
    def arrays(self) -> list[mx.array]:
        """There is no table."""
        return []

    def __call__(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """The cos and sin (1 | B, S, columns) of integer positions (1 | B, S), or (axes, 1 | B, S)."""
        cells = mx.max(positions, axis=-1, keepdims=True) + 1
        centres = (2 * positions + 1 - cells).astype(mx.float32) / cells.astype(mx.float32)
        angles = centres[..., None] * self._turns
        if self.several:
            angles = mx.sum(angles, axis=0)
        return mx.cos(angles) * self.magnitude, mx.sin(angles) * (self.magnitude * self.sign)

    def look_up(self, positions: Positions) -> Angles:
        """The same of positions known on the host."""
        return self(rows(positions))


class _OnHost:
    """What belongs to no parameter tree."""

    def __init__(self, dealt: Dealt) -> None:
        self.dealt = dealt
