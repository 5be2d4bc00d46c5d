"""T5's buckets: which one a distance falls into, and the bias that a trained table makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.biases.by_distance import DistanceRows
from portpe.biases.trained import tensor
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, DistanceBuckets, GatedBucketsEncoding, Sizes

TABLE = "relative_attention_bias.weight"


def thresholds(num_buckets: int, max_distance: int) -> NDArray[np.int64]:
    """The least distance of each bucket but the first, int64 (num_buckets - 1,), decided between integers.

    Distances below e = num_buckets // 2 are buckets themselves. From there on bucket e + j begins where
    log(d / e) / log(max_distance / e) * (num_buckets - e) reaches j (Raffel 2019, released code; ``num_buckets`` are
    those of one direction), so at the least d with d^(n-e) >= max_distance^j * e^(n-e-j): no logarithm that is rounded
    decides on which side of a boundary a distance lies.
    """
    exact = num_buckets // 2
    large = num_buckets - exact
    found = list(range(1, exact + 1))
    for j in range(1, large):
        bound = max_distance**j * exact ** (large - j)
        low, high = exact, max_distance  # low is short of the bound, high reaches it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if middle**large >= bound else (middle, high)
        found.append(high)
    return np.array(found, dtype=np.int64)


def distance_rows(encoding: DistanceBuckets) -> DistanceRows:
    """The bucket of every key minus query, from -max_distance to max_distance; farther keys have that of their end."""
    distance = np.arange(-encoding.max_distance, encoding.max_distance + 1)
    behind = np.abs(distance) if encoding.bidirectional else np.maximum(-distance, 0)
    steps = thresholds(encoding.per_direction, encoding.max_distance)
    found = np.searchsorted(steps, behind, side="right")
    rows = found + encoding.per_direction * (distance > 0) * encoding.bidirectional
    return DistanceRows(-encoding.max_distance, encoding.max_distance, rows.astype(np.int64))


def numbers(
    encoding: BucketsEncoding, layer: Sizes, positions: NDArray[np.int64], weights: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P) and ``buckets`` (P, P)."""
    found = distance_rows(encoding).of(positions, positions)
    table = tensor(TABLE, encoding.weight_shapes(layer)[TABLE], weights)
    return {"bias": np.moveaxis(table[found], -1, 0) * encoding.scale, "buckets": found.astype(np.float64)}


def gated_numbers(
    encoding: GatedBucketsEncoding,
    layer: Sizes,  # noqa: ARG001 - every kind has one signature
    positions: NDArray[np.int64],
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``buckets`` (P, P); what they add depends on the hidden states."""
    return {"buckets": distance_rows(encoding).of(positions, positions).astype(np.float64)}


def axis_numbers(
    encoding: AxisBucketsEncoding, layer: Sizes, positions: NDArray[np.int64], weights: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P) and ``buckets`` (axes, P, P)."""
    found = np.stack(
        [distance_rows(axis).of(places, places) for axis, places in zip(encoding.axes, positions, strict=True)]
    )
    tables = [tensor(name, shape, weights) for name, shape in encoding.weight_shapes(layer).items()]
    total = np.sum([table[rows] for table, rows in zip(tables, found, strict=True)], axis=0)
    return {"bias": np.moveaxis(total, -1, 0) * encoding.scale, "buckets": found.astype(np.float64)}
