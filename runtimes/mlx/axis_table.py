"""Layer: runtimes (MLX). cos and sin of positions with several coordinates: each column is looked up by its own."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe.axes import Dealt
from portpe.runtimes.mlx.position_table import Angles, PositionTable
from portpe.runtimes.mlx.positions import Positions, Run


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


class _OnHost:
    """What belongs to no parameter tree."""

    def __init__(self, dealt: Dealt) -> None:
        self.dealt = dealt
