"""What embedding-site encodings add to the hidden states, by kind, with the error that a runtime may have in it.

A function takes the encoding, positions (B, S) or (axes, B, S), the weights as a type holds them, and the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe import addends, grids
from portpe.encodings import (
    EmbeddingEncoding,
    LearnedAxesEncoding,
    LearnedEncoding,
    LearnedGridEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
)
from portpe.interface import Array
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact

Ids = NDArray[np.int64]
Arrays = Mapping[str, Array]

TAP = 8 * 2.0**-24  # error of one weight of a resampled grid: a distance rounded once, a cubic of it

TURN = 8 * 2.0**-24 * 2 * np.pi  # of a sine whose angle, up to a turn, is formed in float32 with five roundings


def addend(encoding: EmbeddingEncoding, position_ids: Ids, weights: Arrays, tables: Arrays) -> Estimate:
    """(B, S, width)."""
    return ADDENDS[encoding.kind](encoding, position_ids, weights, tables)


def _sinusoidal(encoding: SinusoidalEncoding, position_ids: Ids, weights: Arrays, tables: Arrays) -> Estimate:
    if encoding.precision == "hf":
        return bounds.given(tables["embedding"][position_ids])
    value = addends.addend(encoding, position_ids, weights)
    error = bounds.TABLE * max(1.0, encoding.scale) if "embedding_cos_hi" in tables else 0.0
    return Estimate(value, np.full_like(value, error))


def _learned(encoding: LearnedEncoding, position_ids: Ids, weights: Arrays, tables: Arrays) -> Estimate:  # noqa: ARG001
    return bounds.given(addends.addend(encoding, position_ids, weights))


def _learned_axes(encoding: LearnedAxesEncoding, position_ids: Ids, weights: Arrays, tables: Arrays) -> Estimate:  # noqa: ARG001
    """A sum of rows, in float32 whatever the type."""
    value = addends.addend(encoding, position_ids, weights)
    size = addends.addend(encoding, position_ids, {name: np.abs(table) for name, table in weights.items()})
    return Estimate(value, bounds.stored(size, bounds.ROUNDINGS["float32"]))


def _learned_grid(encoding: LearnedGridEncoding, position_ids: Ids, weights: Arrays, tables: Arrays) -> Estimate:  # noqa: ARG001
    """A sum over the table's rows, in float32 whatever the type; each weight is off by ``TAP`` of the other axis's."""
    table = np.asarray(weights[addends.TABLE]).astype(np.float64)
    shares = grids.table_weights(encoding, position_ids)
    value = shares @ table
    rss = np.sqrt(np.square(shares) @ np.square(table))
    own = bounds.summed(value, rss, len(table), bounds.ROUNDINGS["float32"])
    return Estimate(value, bounds.quadrature(own, TAP * (_reach(encoding, position_ids) @ np.abs(table))))


# How far a kernel reaches, in steps of the table; weights of 0 and 1 are exact.
_SUPPORT = {"nearest": 0.0, "bilinear": 1.001, "bicubic": 2.001}


def _reach(encoding: LearnedGridEncoding, position_ids: Ids) -> Exact:
    """By how much, in units of ``TAP``, the table's rows may be off in their weights: only those a kernel reaches."""
    sizes, support = grids.sizes(position_ids, square=encoding.square), _SUPPORT[encoding.resize]
    near, heavy = [], []
    for place, size, count in zip(position_ids, sizes, encoding.grid, strict=True):
        distance = grids.distances(encoding, place, size, count)
        near.append((distance < support) @ grids.fold(count, grids.overhang(encoding)))
        heavy.append(np.abs(grids.axis_weights(encoding, place, size, count)))
    either = near[0][..., :, None] * heavy[1][..., None, :] + heavy[0][..., :, None] * near[1][..., None, :]
    return grids.join(encoding, either)


def _sinusoidal_grid(encoding: SinusoidalGridEncoding, position_ids: Ids, weights: Arrays, tables: Arrays) -> Estimate:
    """Normalised coordinates give angles that are formed in float32, up to a whole turn; for others tables are read."""
    value = addends.addend(encoding, position_ids, weights)
    read = bounds.TABLE if "embedding_cos_hi" in tables else 0.0
    return Estimate(value, np.full_like(value, TURN if encoding.normalize else read))


ADDENDS: dict[str, Callable[[Any, Ids, Arrays, Arrays], Estimate]] = {
    "sinusoidal": _sinusoidal,
    "learned": _learned,
    "learned_axes": _learned_axes,
    "learned_grid": _learned_grid,
    "sinusoidal_grid": _sinusoidal_grid,
}
