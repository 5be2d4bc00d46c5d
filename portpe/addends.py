"""What an embedding encoding adds to the hidden states, by kind: float64 rows at given positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe import grids, schedules, tables
from portpe.encodings import (
    EmbeddingEncoding,
    LearnedAxesEncoding,
    LearnedEncoding,
    LearnedGridEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
)
from portpe.errors import SpecError

TABLE = "position_embedding.weight"

Exact = NDArray[np.float64]
Positions = NDArray[np.int64]
Weights = Mapping[str, NDArray[Any]]


def addend(encoding: EmbeddingEncoding, positions: Positions, weights: Weights) -> Exact:
    """The rows (..., P, width) of positions (..., P), or (axes, ..., P) where they have several axes.

    Raises:
        SpecError: a trained table is missing or has another shape.
    """
    return ADDENDS[encoding.kind](encoding, positions, weights)


def sinusoidal(encoding: SinusoidalEncoding, positions: Positions, weights: Weights) -> Exact:  # noqa: ARG001
    """Sines and cosines of the positions."""
    return tables.sinusoid(encoding, positions)


def learned(encoding: LearnedEncoding, positions: Positions, weights: Weights) -> Exact:
    """Rows of a trained table."""
    rows: Exact = _table(encoding, weights)[positions + encoding.offset].astype(np.float64)
    return rows


def learned_axes(encoding: LearnedAxesEncoding, positions: Positions, weights: Weights) -> Exact:
    """The sum of a row of every axis' table."""
    tables = (_checked(name, (rows, encoding.width), weights) for name, rows in _axis_tables(encoding).items())
    return np.asarray(
        sum(table[places + encoding.offset].astype(np.float64) for table, places in zip(tables, positions, strict=True))
    )


def _axis_tables(encoding: LearnedAxesEncoding) -> dict[str, int]:
    return {f"position_embedding.axis_{axis}.weight": rows for axis, rows in enumerate(encoding.rows)}


def learned_grid(encoding: LearnedGridEncoding, positions: Positions, weights: Weights) -> Exact:
    """Rows of a trained table over a grid, resampled to the grid that the positions span."""
    rows: Exact = grids.table_weights(encoding, positions) @ _table(encoding, weights).astype(np.float64)
    return rows


def sinusoidal_grid(encoding: SinusoidalGridEncoding, positions: Positions, weights: Weights) -> Exact:  # noqa: ARG001
    """Sines and cosines of both coordinates."""
    half = encoding.half
    angles = grids.turns(encoding, positions)[..., None] * schedules.sinusoidal(half)
    rows, columns = tables.arrange(half, np.cos(angles), np.sin(angles))
    both = np.concatenate([rows, columns] if encoding.first == "row" else [columns, rows], axis=-1)
    return np.asarray(both * (np.arange(both.shape[-2]) >= encoding.plain_tokens)[:, None])


def _table(encoding: LearnedEncoding | LearnedGridEncoding, weights: Weights) -> NDArray[Any]:
    return _checked(TABLE, encoding.table_shape, weights)


def _checked(name: str, shape: tuple[int, int], weights: Weights) -> NDArray[Any]:
    if name not in weights:
        raise SpecError(f"weights must hold the learned table {name}, got {sorted(weights)}")
    table = np.asarray(weights[name])
    if table.shape != shape:
        raise SpecError(f"{name} must have shape {shape}, got {table.shape}")
    return table


ADDENDS: dict[str, Callable[[Any, Positions, Weights], Exact]] = {
    "sinusoidal": sinusoidal,
    "learned": learned,
    "learned_axes": learned_axes,
    "learned_grid": learned_grid,
    "sinusoidal_grid": sinusoidal_grid,
}
