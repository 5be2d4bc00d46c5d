"""Patches of an image: a table resampled to the grid that an image has, as torch's interpolate weighs its rows.

Positions are (row, column) along the first axis. Every weight is a polynomial of a distance, and every distance a
ratio of two whole numbers, so it is rounded once: nothing is lost to coordinates in float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from portpe.encodings import LearnedGridEncoding, SinusoidalGridEncoding

Exact = NDArray[np.float64]
Positions = NDArray[np.int64]

EPSILON = 1e-6  # what DETR adds to an image's size before it divides
OVERHANG = 2  # how many taps of a cubic lie past a border, where the border's own row stands for them


def sharpness(encoding: LearnedGridEncoding) -> float:
    """The cubic's parameter a: torch takes -0.75, and Pillow's -0.5 where it antialiases."""
    return -0.5 if encoding.antialias else -0.75


def overhang(encoding: LearnedGridEncoding) -> int:
    """How many taps past each border are folded onto it; antialiased taps there are left out instead."""
    return OVERHANG if encoding.resize == "bicubic" and not encoding.antialias else 0


def fold(count: int, past: int) -> Exact:
    """(count + 2 * past, count) of 0 and 1: each tap to its row, those past a border to the border's."""
    return np.eye(count)[np.clip(np.arange(-past, count + past), 0, count - 1)]


def distances(encoding: LearnedGridEncoding, places: Positions, size: Positions, count: int) -> Exact:
    """How far tap j lies from each token, in steps of the table (antialiased and shrinking: of the image).

    Args:
        encoding: how to resample.
        places: coordinates along one axis (..., S).
        size: of the image along it, (..., 1).
        count: of the table.

    Returns:
        float64 (..., S, count + 2 * overhang), never negative.
    """
    past = overhang(encoding)
    places, size = places[..., None], size[..., None]
    taps = np.arange(-past, count + past)
    if encoding.align_corners:
        step = np.maximum(size - 1, 1)
        start, each = places * (count - 1), step
    elif encoding.antialias:
        step = 2 * np.maximum(size, count)
        start, each = (2 * places + 1) * count - size, 2 * size
    elif encoding.resize == "nearest":  # of the middle of the patches that read a row: less than half a step
        step = each = 2 * size
        start = 2 * places * count + 1 - size
    else:
        step = 2 * size
        start, each = (2 * places + 1) * count - size, step
        if encoding.resize == "bilinear":
            start = np.clip(start, 0, step * (count - 1))
    ratio: Exact = np.abs(start - each * taps) / step
    return ratio


def kernel(encoding: LearnedGridEncoding, distance: Exact) -> Exact:
    """The weight of a tap at a distance (Keys 1981 for the cubic)."""
    if encoding.resize == "nearest":
        return np.where(distance < 0.5, 1.0, 0.0)
    if encoding.resize == "bilinear":
        return np.maximum(0.0, 1.0 - distance)
    a = sharpness(encoding)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (distance - 1) * (distance - 2) ** 2
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def axis_weights(encoding: LearnedGridEncoding, places: Positions, size: Positions, count: int) -> Exact:
    """(..., S, count): how much each row of the table counts for each token, along one axis; they add up to 1."""
    weights = kernel(encoding, distances(encoding, places, size, count))
    if encoding.antialias:
        return np.asarray(weights / weights.sum(-1, keepdims=True))
    return weights @ fold(count, overhang(encoding))


def sizes(positions: Positions, *, square: bool = False) -> Positions:
    """(2, ..., 1): the grid of each sequence, the largest coordinate + 1; ``square``: the larger of both, twice."""
    each = np.asarray(positions.max(axis=-1, keepdims=True) + 1)
    return np.broadcast_to(each.max(axis=0), each.shape) if square else each


def table_weights(encoding: LearnedGridEncoding, positions: Positions) -> Exact:
    """(..., S, prefix_tokens + rows * columns): how much each row of the whole table counts for each token.

    Args:
        encoding: the table's shape and how to resample it.
        positions: (2, ..., S), the tokens of a sequence in order; those of the prefix first.
    """
    by_row, by_column = (
        axis_weights(encoding, place, size, count)
        for place, size, count in zip(positions, sizes(positions, square=encoding.square), encoding.grid, strict=True)
    )
    return join(encoding, by_row[..., :, None] * by_column[..., None, :])


def turns(encoding: SinusoidalGridEncoding, positions: Positions) -> Exact:
    """The coordinates (2, ..., S) as sinusoids take them: as they are, or normalised to a whole turn of the image."""
    if not encoding.normalize:
        return positions.astype(np.float64)
    return np.asarray((positions + start(encoding)) * (2 * np.pi) / (sizes(positions) + EPSILON))


def start(encoding: SinusoidalGridEncoding) -> float:
    """What is added to a coordinate before it is normalised."""
    return 0.5 if encoding.centred else 1.0


def join(encoding: LearnedGridEncoding, on_grid: Exact) -> Exact:
    """Weights (..., S, rows, columns) of the grid behind those of the prefix, which go by the order of tokens."""
    tokens = np.arange(on_grid.shape[-3])[:, None]
    patches = tokens >= encoding.prefix_tokens + encoding.plain_tokens
    flat = on_grid.reshape(*on_grid.shape[:-2], -1) * patches
    first = np.broadcast_to(tokens == np.arange(encoding.prefix_tokens), (*flat.shape[:-1], encoding.prefix_tokens))
    return np.concatenate([first, flat], axis=-1)
