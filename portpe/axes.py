"""Pairs dealt to coordinates: for every column of cos and sin, the coordinate it reads and the frequency it has.

A rotation of one coordinate has a column a pair, in order. With ``Dealt`` everything else stays as it is: tables hold
a row a position with each column's own frequency, and a row of several coordinates takes each column from its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.encodings import AlternatingAxes, AxialAxes, InterleavedAxes, RotaryEncoding, SectionedAxes

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Dealt:
    """What the columns of cos and sin read.

    ``axes`` and ``frequencies`` (columns,): the coordinate of a position, and the index of the frequency among those
    of the schedule. Columns are the pairs in order or, where the members of a pair have angles of their own, the
    first members of all pairs and then the second ones.
    """

    axes: Ids
    frequencies: Ids

    def positions(self, positions: NDArray[Any]) -> NDArray[Any]:
        """Of positions (axes, ...), what each column reads: (..., columns)."""
        own: NDArray[Any] = np.moveaxis(positions[self.axes], 0, -1)
        return own

    def select(self, values: NDArray[Any]) -> NDArray[Any]:
        """Of values (axes, ..., columns) at every coordinate, each column at its own: (..., columns)."""
        own: NDArray[Any] = np.moveaxis(values[self.axes, ..., np.arange(len(self.axes))], 0, -1)
        return own

    @property
    def one_hot(self) -> NDArray[np.float32]:
        """(axes, columns): 1 where the column reads the coordinate."""
        chosen = np.arange(self.axes.max() + 1)[:, None] == self.axes
        return np.asarray(chosen, dtype=np.float32)


def deal(rotary: RotaryEncoding) -> Dealt:
    """The columns of a rotation; one coordinate takes them all where the encoding has no ``axes``."""
    pairs = rotary.width // 2
    if rotary.axes is None:
        return Dealt(np.zeros(pairs, np.int64), np.arange(pairs))
    return _DEALS[rotary.axes.kind](rotary.axes, pairs)


def _sectioned(layout: SectionedAxes, pairs: int) -> Dealt:
    """Qwen2-VL (Wang 2024, section 2.1); over channels as in HunYuan-VL."""
    if layout.over == "pairs":
        return Dealt(np.repeat(np.arange(layout.count), layout.sections), np.arange(pairs))
    doubled = np.repeat(np.arange(layout.count), 2 * np.array(layout.sections))
    return Dealt(doubled, np.tile(np.arange(pairs), 2))


def _interleaved(layout: InterleavedAxes, pairs: int) -> Dealt:
    """Qwen3-VL: every third pair but for those past a section's end, which coordinate 0 keeps."""
    axes = np.zeros(pairs, np.int64)
    for axis, section in enumerate(layout.sections[1:], start=1):
        axes[axis : axis + layout.count * section : layout.count] = axis
    return Dealt(axes, np.arange(pairs))


def _alternating(layout: AlternatingAxes, pairs: int) -> Dealt:
    """ERNIE 4.5 VL: rows and columns share the higher frequencies, time has the lowest."""
    *turns, last = layout.order
    return Dealt(np.array([*turns * layout.sections[0], *[last] * layout.sections[-1]]), np.arange(pairs))


def _axial(layout: AxialAxes, pairs: int) -> Dealt:
    """Vision towers: (place in the order, index within the coordinate), then as the arrangement has them."""
    count, each = layout.count, pairs // layout.count
    place, index = np.divmod(np.arange(pairs), each)
    frequencies = index if layout.frequencies == "each" else count * index + place
    axes = np.array(layout.order)[place]
    if layout.tiled:
        within = np.arange(2 * each) % each  # the angle of a channel
        by_channel = np.repeat(layout.order, 2 * each), np.tile(within, count)
        return Dealt(*(np.concatenate([part[0::2], part[1::2]]) for part in by_channel))
    if layout.arrangement == "interleaved":
        turned = np.arange(pairs).reshape(count, each).T.reshape(-1)
        return Dealt(axes[turned], frequencies[turned])
    return Dealt(axes, frequencies)


def on_every_axis(rotary: RotaryEncoding, positions: Ids) -> Ids:
    """Positions (...) of text, which has the same coordinate on every axis: (axes, ...) where there are several."""
    return positions if rotary.axes is None else np.broadcast_to(positions, (rotary.axes.count, *positions.shape))


def by_column(rotary: RotaryEncoding, positions: NDArray[Any]) -> NDArray[Any]:
    """Positions (...), or (axes, ...), as angles multiply them with frequencies: (..., 1 | columns)."""
    return positions[..., None] if rotary.axes is None else deal(rotary).positions(positions)


def factors(rotary: RotaryEncoding, positions: Ids) -> NDArray[Any]:
    """What frequencies are multiplied with at positions (..., sequence): indices, or centred coordinates in float64.

    2 pi times the centre of cell p of n from -1 to 1, n the largest index of the sequence + 1, by coordinate.
    """
    if rotary.coordinates == "index":
        return by_column(rotary, positions + rotary.offset)
    cells = positions.max(axis=-1, keepdims=True) + 1
    return by_column(rotary, 2 * np.pi * (2 * positions + 1 - cells) / cells)


_DEALS: dict[str, Callable[[Any, int], Dealt]] = {
    "sectioned": _sectioned,
    "interleaved": _interleaved,
    "alternating": _alternating,
    "axial": _axial,
}
