"""Layer: runtimes (MLX). Query temperature: what multiplies a query by its own position."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe import temperatures
from portpe.encodings.temperature import Temperature
from portpe.runtimes.mlx.position_table import Tables
from portpe.runtimes.mlx.positions import Positions, Run


class QueryScale(nn.Module):
    """Multiplies queries by a row of a small table. Rows are found on the host: positions are known there."""

    def __init__(self, temperature: Temperature, tables: Tables) -> None:
        super().__init__()
        self.temperature, self._rows = temperature, _OnHost(np.asarray(tables["query_scale"]))

    def __call__(self, q: mx.array, positions: Positions) -> mx.array:
        """Queries (B, heads, S, head_dim) at checked positions (1 | B, S), multiplied in float32, in their own type."""
        places = positions.array()[None] if isinstance(positions, Run) else positions
        factor = mx.array(self._rows.values[temperatures.row_of(self.temperature, places)])
        return (q.astype(mx.float32) * factor[:, None, :, None]).astype(q.dtype)


class _OnHost:
    """A table for numpy, out of the sight of mlx's parameter trees."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
