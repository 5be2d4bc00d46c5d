"""Biases over a grid: which row of a table serves a pair of cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.biases.trained import tensor
from portpe.encodings import GridNetworkEncoding, GridTableEncoding, GridVectorsEncoding, Sizes
from portpe.positions import check_range

Ids = NDArray[np.int64]
TABLE = "relative_position_bias_table"


def rows(encoding: GridTableEncoding, queries: Ids, keys: Ids, query_slots: Ids) -> Ids:
    """The row of each pair, int64 (S, T).

    Args:
        encoding: the grid.
        queries: (2, S), row and column of each.
        keys: (2, T), those of the whole sequence.
        query_slots: (S,), the place of each query in the sequence: by it the first token is known.

    Raises:
        SpecError: a position lies outside the grid.
    """
    for axis, end in enumerate(encoding.position_ends):
        check_range(queries[axis], end)
        check_range(keys[axis], end)
    apart = queries[:, :, None] - keys[:, None, :]
    if encoding.offsets == "absolute":
        return np.asarray(np.abs(apart[0]) * encoding.width + np.abs(apart[1]))
    found = (apart[0] + encoding.height - 1) * (2 * encoding.width - 1) + apart[1] + encoding.width - 1
    return _with_prefix(encoding, found, query_slots)


def _with_prefix(encoding: GridTableEncoding, found: Ids, query_slots: Ids) -> Ids:
    query = (query_slots < encoding.prefix_tokens)[:, None]
    key = (np.arange(found.shape[1]) < encoding.prefix_tokens)[None]
    found = np.where(query, encoding.cells, np.where(key, encoding.cells + 1, found))
    return np.where(query & key, encoding.cells + 2, found)


def numbers(
    encoding: GridTableEncoding, layer: Sizes, positions: Ids, weights: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P) and ``buckets`` (P, P), the rows of the table; the first
    of the positions is the prefix token's, where there is one.
    """
    found = rows(encoding, positions, positions, np.arange(positions.shape[1]))
    table = tensor(TABLE, encoding.weight_shapes(layer)[TABLE], weights)
    return {"bias": np.moveaxis(table[found], -1, 0), "buckets": found.astype(np.float64)}


def network_inputs(encoding: GridNetworkEncoding) -> NDArray[np.float64]:
    """X of every offset, in the order of a table's rows: float64 ((2 height - 1) (2 width - 1), 2)."""
    axes = []
    for side, extent in zip(encoding.position_ends, encoding.extent or encoding.position_ends, strict=True):
        y = 8 * np.arange(1 - side, side) / max(extent - 1, 1)
        axes.append(np.sign(y) * np.log2(1 + np.abs(y)) / 3)
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def network_numbers(
    encoding: GridNetworkEncoding, layer: Sizes, positions: Ids, weights: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P) and ``buckets`` (P, P), the offsets in row-major order."""
    own = {name: tensor(name, shape, weights) for name, shape in encoding.weight_shapes(layer).items()}
    hidden = np.maximum(network_inputs(encoding) @ own["grid_in.weight"].T + own["grid_in.bias"], 0.0)
    table = 16 / (1 + np.exp(-hidden @ own["grid_out.weight"].T))
    found = rows(encoding.offsets, positions, positions, np.arange(positions.shape[1]))
    return {"bias": np.moveaxis(table[found], -1, 0), "buckets": found.astype(np.float64)}


def vector_rows(encoding: GridVectorsEncoding, queries: Ids, keys: Ids) -> Ids:
    """The row of each pair in the table of heights and in that of widths, int64 (2, S, T), of (2, S) and (2, T).

    Raises SpecError: a position lies outside the grid.
    """
    ends = np.array(encoding.position_ends)
    for axis, end in enumerate(ends):
        check_range(queries[axis], int(end))
        check_range(keys[axis], int(end))
    return np.asarray(queries[:, :, None] - keys[:, None, :] + ends[:, None, None] - 1)


def resampling(encoding: GridVectorsEncoding) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """What each table is multiplied with to be that of the grid, (2 side - 1, its rows); None where it is already.

    Row i of n reads the place (i + 1/2) m / n - 1/2 of m, between two rows by the fraction and not past the ends.
    """
    if encoding.trained_on in (None, encoding.position_ends):
        return None
    height, width = (
        _linear(2 * side - 1, rows) for side, rows in zip(encoding.position_ends, encoding.table_rows, strict=True)
    )
    return height, width


def _linear(count: int, rows: int) -> NDArray[np.float64]:
    twice = np.clip((2 * np.arange(count) + 1) * rows - count, 0, 2 * count * (rows - 1))  # the place times 2 count
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(twice[:, None] - 2 * count * np.arange(rows)) / (2 * count)))


def vector_numbers(
    encoding: GridVectorsEncoding,
    layer: Sizes,  # noqa: ARG001 - every kind has one signature
    positions: Ids,
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``buckets`` (2, P, P), the rows of both tables. There is no ``bias``: what is
    added depends on the queries themselves.
    """
    return {"buckets": vector_rows(encoding, positions, positions).astype(np.float64)}
