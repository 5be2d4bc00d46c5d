"""Layer: runtimes (MLX). cos and sin by integer position, from a two-level table or a full one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from portpe.runtimes.mlx.positions import Positions, Run, rows
from portpe.tables import TABLE_STEP

Tables = Mapping[str, NDArray[Any]]
Angles = tuple[Any, Any]
"""cos and sin in float32, both on the device (mx.array) or both on the host (numpy)."""

FEW = 64
"""Up to so many positions are looked up on the host: small operations on the device cost more than the numbers do."""


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
        self.names = ("cos_hi", "sin_hi", "cos_lo", "sin_lo") if self.two_level else ("cos", "sin")
        for name in self.names:
            self[f"_{name}"] = mx.array(tables[f"{prefix}{name}"])
        self._on_host = _OnHost([np.asarray(table) for table in self.arrays])  # the same memory

    @property
    def end(self) -> int:
        """The first position without a row."""
        return len(self.arrays[0]) * (TABLE_STEP if self.two_level else 1)

    @property
    def arrays(self) -> list[mx.array]:
        """The tables on the device, in the order of ``names``."""
        return [self[f"_{name}"] for name in self.names]

    def __call__(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """The cos and sin (..., frequencies) of integer positions (...). The caller has checked the range:
        mx.take returns whatever lies in memory past the end.
        """
        if not self.two_level:
            return mx.take(self._cos, positions, axis=0), mx.take(self._sin, positions, axis=0)
        hi = positions // TABLE_STEP
        lo = positions - hi * TABLE_STEP
        levels = (mx.take(table, hi if level < 2 else lo, axis=0) for level, table in enumerate(self.arrays))
        return _join(*levels)

    def look_up(self, positions: Positions) -> Angles:
        """The cos and sin (1 | B, S, frequencies) of checked positions, where they cost least: the same numbers."""
        if isinstance(positions, Run):
            return self._look_up_run(positions)
        if positions.size > FEW:
            return self(mx.array(positions))
        hi, lo = np.divmod(positions, TABLE_STEP) if self.two_level else (positions, positions)
        return self._rows(self._on_host.tables, hi, lo)

    def _look_up_run(self, run: Run) -> Angles:
        """Rows of a run, by slice where it stays within one step of the coarse level."""
        hi, lo = divmod(run.first, TABLE_STEP) if self.two_level else (0, run.first)
        if self.two_level and lo + run.length > TABLE_STEP:
            return self(rows(run)) if run.length > FEW else self.look_up(run.array()[None])
        tables = self.arrays if run.length > FEW else self._on_host.tables
        return self._rows(tables, np.s_[None, hi : hi + 1], np.s_[None, lo : lo + run.length])

    def _rows(self, tables: list[Any], hi: Any, lo: Any) -> Angles:
        """Rows of tables that are indexed alike in numpy and mlx; of a full table, those at ``lo``."""
        if not self.two_level:
            return tables[0][lo], tables[1][lo]
        return _join(tables[0][hi], tables[1][hi], tables[2][lo], tables[3][lo])


class _OnHost:
    """Tables for numpy, out of the sight of mlx's parameter trees."""

    def __init__(self, tables: list[NDArray[np.float32]]) -> None:
        self.tables = tables


def _join(cos_hi: Any, sin_hi: Any, cos_lo: Any, sin_lo: Any) -> tuple[Any, Any]:
    """Angle addition."""
    return cos_hi * cos_lo - sin_hi * sin_lo, sin_hi * cos_lo + cos_hi * sin_lo
