"""Layer: runtimes (MLX). cos and sin by integer position, from a two-level table or a full one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx import nn
from numpy.typing import NDArray

from portpe.tables import TABLE_STEP

Tables = Mapping[str, NDArray[Any]]


class PositionTable(nn.Module):
    """cos and sin of every frequency at given positions, in float32 whatever the block's type.

    With ``<prefix>cos_hi`` among the tables, position p = TABLE_STEP * hi + lo is looked up as two rows
    that the angle-addition formulas combine; else row p of ``<prefix>cos`` and ``<prefix>sin`` is taken.
    Positions stay integers up to the look-up: a float16 or bfloat16 position is another position.
    The arrays are private, so they are no parameters: neither saved, cast nor quantised.
    """

    def __init__(self, tables: Tables, prefix: str = "") -> None:
        super().__init__()
        self.two_level = f"{prefix}cos_hi" in tables
        if self.two_level:
            self._cos_hi, self._sin_hi = mx.array(tables[f"{prefix}cos_hi"]), mx.array(tables[f"{prefix}sin_hi"])
            self._cos_lo, self._sin_lo = mx.array(tables[f"{prefix}cos_lo"]), mx.array(tables[f"{prefix}sin_lo"])
        else:
            self._cos, self._sin = mx.array(tables[f"{prefix}cos"]), mx.array(tables[f"{prefix}sin"])

    def __call__(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """The cos and sin (..., frequencies) of integer positions (...). The caller has checked the range:
        mx.take returns whatever lies in memory past the end.
        """
        if not self.two_level:
            return mx.take(self._cos, positions, axis=0), mx.take(self._sin, positions, axis=0)
        hi = positions // TABLE_STEP
        lo = positions - hi * TABLE_STEP
        cos_hi, sin_hi = mx.take(self._cos_hi, hi, axis=0), mx.take(self._sin_hi, hi, axis=0)
        cos_lo, sin_lo = mx.take(self._cos_lo, lo, axis=0), mx.take(self._sin_lo, lo, axis=0)
        return cos_hi * cos_lo - sin_hi * sin_lo, sin_hi * cos_lo + cos_hi * sin_lo
