"""Which row of a table serves a distance, for the encodings that have one row a distance or a range of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe.encodings import DebertaEncoding, DistanceBankEncoding, ShawEncoding, Sizes
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


def distance_rows(encoding: ShawEncoding | DebertaEncoding | DistanceBankEncoding) -> DistanceRows:
    """The rows of an encoding's tables. The row past the last one, where an encoding ends, stands for 0."""
    if isinstance(encoding, DebertaEncoding):
        return _deberta_rows(encoding)
    if isinstance(encoding, DistanceBankEncoding):
        end = encoding.extent
        return DistanceRows(-end, 1, np.array([*range(end, -1, -1), end]))
    count = encoding.left + encoding.right + 1
    rows = np.arange(count)[:: -1 if encoding.descending else 1]
    if encoding.beyond == "nearest":
        return DistanceRows(-encoding.left, encoding.right, rows.copy())
    return DistanceRows(-encoding.left - 1, encoding.right + 1, np.array([count, *rows, count]))


def _deberta_rows(encoding: DebertaEncoding) -> DistanceRows:
    span = encoding.span
    if encoding.max_distance is None:  # i - j from -span to span - 1
        return DistanceRows(1 - span, span, np.arange(2 * span)[::-1].copy())
    ahead = [min(bucket, span) for bucket in log_buckets(span, encoding.max_distance)]
    behind = [min(bucket, span - 1) for bucket in ahead[1:]]  # of the 2 span rows one more is for keys ahead
    last = len(ahead) - 1
    buckets = [*reversed(behind), *(-bucket for bucket in ahead)]
    return DistanceRows(-last, last, np.array(buckets) + span)


def log_buckets(span: int, max_distance: int) -> list[int]:
    """DeBERTa v2's bucket of each distance, from 0 to the first whose bucket is ``span`` or more.

    One bucket a distance up to mid = span // 2; then mid + the least n with ((M - 1) / mid) ** n >= (d / mid) **
    (mid - 1), M = ``max_distance``, which is ceil of the ratio of logarithms, decided between whole numbers.
    """
    mid = span // 2
    buckets, n = list(range(mid + 1)), 0
    while buckets[-1] < span:
        while not _reaches(len(buckets), n, mid, max_distance - 1):
            n += 1
        buckets.append(mid + n)
    return buckets


def _reaches(distance: int, n: int, mid: int, longest: int) -> bool:
    """Whether (longest / mid) ** n >= (distance / mid) ** (mid - 1)."""
    spare = mid - 1 - n
    left, right = longest**n, distance ** (mid - 1)
    if spare >= 0:
        return bool(left * mid**spare >= right)
    return bool(left >= right * mid**-spare)


def numbers(
    encoding: ShawEncoding | DebertaEncoding | DistanceBankEncoding,
    layer: Sizes,  # noqa: ARG001 - every kind has one signature
    positions: Ids,
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``buckets`` (P, P), the row of each query (axis 0) and key (axis 1).

    There is no ``bias``: what is added depends on the queries, the keys or the hidden states themselves.
    """
    return {"buckets": distance_rows(encoding).of(positions, positions).astype(np.float64)}
