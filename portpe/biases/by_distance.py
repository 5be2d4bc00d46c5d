"""Which row of a table serves a distance, for the encodings that have one row a distance or a range of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe.encodings import ShawEncoding, Sizes
from portpe.positions import integer_positions

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class DistanceRows:
    """The row of every distance j - i, from ``first`` to ``last``; farther ones have that of the nearest end."""

    first: int
    last: int
    rows: Ids  # (last - first + 1,)

    def of(self, query_positions: ArrayLike, key_positions: ArrayLike) -> Ids:
        """The rows (..., S, T) of queries (..., S) and keys (..., T). Raises SpecError: a position is no integer."""
        queries, keys = integer_positions(query_positions), integer_positions(key_positions)
        distance = keys[..., None, :] - queries[..., :, None]
        found: Ids = self.rows[np.clip(distance, self.first, self.last) - self.first]
        return found


def distance_rows(encoding: ShawEncoding) -> DistanceRows:
    """The rows of an encoding's tables."""
    rows = np.arange(encoding.left + encoding.right + 1)
    return DistanceRows(-encoding.left, encoding.right, rows[-1] - rows if encoding.descending else rows)


def numbers(
    encoding: ShawEncoding,
    layer: Sizes,  # noqa: ARG001 - every kind has one signature
    positions: Ids,
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``buckets`` (P, P), the row of each query (axis 0) and key (axis 1).

    There is no ``bias``: what is added depends on the queries or the keys themselves.
    """
    return {"buckets": distance_rows(encoding).of(positions, positions).astype(np.float64)}
