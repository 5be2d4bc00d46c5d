"""Biases that are functions of the distance: KERPLE, FIRE and Sandwich, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.biases.trained import tensor
from portpe.encodings import FireEncoding, KerpleEncoding, SandwichEncoding, Sizes

Exact = NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = Mapping[str, NDArray[Any]]


def kerple(encoding: KerpleEncoding, distances: Ids, r1: Exact, r2: Exact) -> Exact:
    """(heads, ...) of distances (...), r1 and r2 (heads,)."""
    apart = np.abs(distances).astype(np.float64)
    r1, r2 = (each.reshape(-1, *[1] * apart.ndim) for each in (r1, r2))
    grown = np.log1p(r2 * apart) if encoding.form == "logarithmic" else apart**r2
    return np.asarray(-r1 * grown)


def fire_inputs(encoding: FireEncoding, queries: Ids, keys: Ids, c: float, threshold: float) -> Exact:
    """X (S, T): what the network sees of queries (S,) and keys (T,)."""
    apart = np.abs(queries[:, None] - keys).astype(np.float64)
    normal = np.log1p(abs(c) * np.maximum(queries, abs(threshold))) + encoding.epsilon
    return np.asarray(np.log1p(abs(c) * apart) / normal[:, None])


def sandwich(encoding: SandwichEncoding, num_heads: int, distances: Ids) -> Exact:
    """(heads, ...) of distances (...)."""
    from portpe import schedules  # which knows encodings of every site

    total = np.cos(distances[..., None] * schedules.sinusoidal(encoding.wave)).sum(-1)
    return np.asarray(ratios(num_heads).reshape(-1, *[1] * total.ndim) * total)


def ratios(num_heads: int) -> Exact:
    """8 h / H of head h = 1 .. H."""
    return np.asarray(np.arange(1, num_heads + 1) * (8 / num_heads), dtype=np.float64)


def kerple_numbers(encoding: KerpleEncoding, layer: Sizes, positions: Ids, weights: Weights) -> dict[str, Exact]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P)."""
    r1, r2 = (tensor(name, shape, weights) for name, shape in encoding.weight_shapes(layer).items())
    return {"bias": kerple(encoding, positions[:, None] - positions, r1, r2)}


def fire_numbers(encoding: FireEncoding, layer: Sizes, positions: Ids, weights: Weights) -> dict[str, Exact]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P)."""
    own = {name: tensor(name, shape, weights) for name, shape in encoding.weight_shapes(layer).items()}
    x = fire_inputs(encoding, positions, positions, float(own["fire_c"][0]), float(own["fire_threshold"][0]))
    hidden = np.maximum(x[..., None] * own["fire_in.weight"][:, 0] + own["fire_in.bias"], 0.0)
    return {"bias": np.moveaxis(hidden @ own["fire_out.weight"].T + own["fire_out.bias"], -1, 0)}


def sandwich_numbers(
    encoding: SandwichEncoding,
    layer: Sizes,
    positions: Ids,
    weights: Weights,  # noqa: ARG001 - every kind has one signature
) -> dict[str, Exact]:
    """What ``portpe.tabulate`` lists: ``bias`` (heads, P, P)."""
    return {"bias": sandwich(encoding, layer.num_heads, positions[:, None] - positions)}
