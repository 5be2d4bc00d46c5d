"""Layer: runtimes (MLX). The embedding site: an addend for the hidden states, by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe.encodings import (
    LearnedAxesEncoding,
    LearnedEncoding,
    LearnedGridEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
)
from portpe.runtimes.mlx.grid import LearnedGrid, SinusoidalGrid
from portpe.runtimes.mlx.position_table import PositionTable, Tables
from portpe.runtimes.mlx.positions import Positions, Run


class SinusoidTable(nn.Module):
    """Sines and cosines in the encoding's order; any offset is folded into the table."""

    def __init__(self, table: PositionTable, encoding: SinusoidalEncoding) -> None:
        super().__init__()
        self.table, self.order, self.width = table, encoding.order, encoding.width

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (1 | B, S, width) float32 of positions (1 | B, S)."""
        cos, sin = (mx.array(part) if isinstance(part, np.ndarray) else part for part in self.table.look_up(positions))
        if self.order == "interleaved":
            return mx.flatten(mx.stack([sin, cos], axis=-1), -2)[..., : self.width]
        first, second = (sin, cos) if self.order == "sin_cos" else (cos, sin)
        rows = mx.concatenate([first, second[..., : self.width - first.shape[-1]]], axis=-1)
        missing = self.width - rows.shape[-1]  # of an odd width, whose last channel is 0
        return mx.pad(rows, [(0, 0), (0, 0), (0, missing)]) if missing else rows


class FullTable(nn.Module):
    """One row of a fixed float32 table a position."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self._rows = mx.array(rows)

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (1 | B, S, width) float32 of positions (1 | B, S)."""
        return _rows(self._rows, positions, 0)


class LearnedTable(nn.Embedding):
    """A trained table: token position p reads row p + offset."""

    def __init__(self, rows: int, width: int, offset: int) -> None:
        super().__init__(rows, width)
        self.offset = offset

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (1 | B, S, width) of positions (1 | B, S), in the table's type."""
        return _rows(self.weight, positions, self.offset)

    def to_quantized(self, *_: Any, **__: Any) -> nn.Module:
        """The table itself: rounding positions to a few bits would undo what they are for."""
        return self


class LearnedAxes(nn.Module):
    """A trained table for every axis, whose rows are added up in float32."""

    def __init__(self, encoding: LearnedAxesEncoding) -> None:
        super().__init__()
        for axis, rows in enumerate(encoding.rows):
            self[f"axis_{axis}"] = LearnedTable(rows, encoding.width, encoding.offset)

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (1 | B, S, width) of positions (axes, 1 | B, S), or of a run on every axis."""
        places = [positions] * len(self) if isinstance(positions, Run) else positions
        terms = [self[f"axis_{axis}"](each).astype(mx.float32) for axis, each in enumerate(places)]
        total: mx.array = sum(terms[1:], start=terms[0])
        return total


def _rows(table: mx.array, positions: Positions, offset: int) -> mx.array:
    """Rows position + offset of a table (rows, width): of a run a slice, which gathers nothing."""
    if isinstance(positions, Run):
        return table[positions.first + offset : positions.stop + offset][None]
    return mx.take(table, mx.array(positions + offset), axis=0)


def sinusoidal(encoding: SinusoidalEncoding, tables: Tables) -> nn.Module:
    """Vaswani 2017, section 3.5; ``precision`` hf takes transformers' own rows."""
    if encoding.precision == "hf":
        return FullTable(tables["embedding"])
    return SinusoidTable(PositionTable(tables, "embedding_"), encoding)


def learned(encoding: LearnedEncoding, tables: Tables) -> nn.Module:  # noqa: ARG001 - the signature of a site
    """A table that is a weight: ``position_embedding.weight``."""
    return LearnedTable(encoding.rows, encoding.width, encoding.offset)


def learned_axes(encoding: LearnedAxesEncoding, tables: Tables) -> nn.Module:  # noqa: ARG001
    """A table an axis, all of them weights."""
    return LearnedAxes(encoding)


def learned_grid(encoding: LearnedGridEncoding, tables: Tables) -> nn.Module:  # noqa: ARG001
    """A table over a grid that is a weight."""
    return LearnedGrid(encoding)


def sinusoidal_grid(encoding: SinusoidalGridEncoding, tables: Tables) -> nn.Module:
    """Sinusoids of both coordinates of a patch."""
    one = None if encoding.normalize else sinusoidal(encoding.half, tables)
    return SinusoidalGrid(encoding, one)


SITES: dict[str, Callable[..., nn.Module]] = {
    "sinusoidal": sinusoidal,
    "learned": learned,
    "learned_axes": learned_axes,
    "learned_grid": learned_grid,
    "sinusoidal_grid": sinusoidal_grid,
}
