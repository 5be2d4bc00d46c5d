"""Layer: runtimes (MLX). Positions and cache slots, known on the host: as a run of consecutive ones, or one by one.

A decode step needs one position and hides nothing; a run makes no array for it and asks the device for nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.interface import check_positions
from portpe.spec import AttentionSpec

Slots = NDArray[np.int64]


class Run(NamedTuple):
    """The integers first, first + 1, ... first + length - 1."""

    first: int
    length: int

    @property
    def stop(self) -> int:
        return self.first + self.length

    def array(self) -> Slots:
        """The integers (length,) on the host."""
        return np.arange(self.first, self.stop)

    def last(self, count: int) -> Run:
        """The last ``count`` of them."""
        return Run(self.stop - count, count)


Positions = Run | Slots
"""Of queries or keys: one run that every row of the batch shares, or (1 | B, n)."""

Places = Run | Slots
"""Of cache slots: one run, or (n,) where a ring is out of order."""


def host(places: Positions | Places) -> Slots:
    """As an array on the host; a run is (n,)."""
    return places.array() if isinstance(places, Run) else places


def device(places: Positions | Places) -> mx.array:
    """As an array on the device; a run is (n,)."""
    return mx.arange(places.first, places.stop) if isinstance(places, Run) else mx.array(places)


def rows(positions: Positions) -> mx.array:
    """Positions (1 | B, n) on the device."""
    return device(positions)[None] if isinstance(positions, Run) else mx.array(positions)


def on_axes(ids: mx.array, axes: int) -> mx.array:
    """Positions (1 | B, n), or (axes, 1 | B, n) where there are several axes: counted ones are alike on each."""
    return ids if axes == 1 or ids.ndim == 3 else mx.broadcast_to(ids, (axes, *ids.shape))


def lowest(places: Places) -> int:
    """The least of them."""
    return places.first if isinstance(places, Run) else int(places.min())


def highest(places: Places) -> int:
    """The greatest of them."""
    return places.stop - 1 if isinstance(places, Run) else int(places.max())


def check(spec: AttentionSpec, positions: Positions, end: int | None) -> None:
    """Refuse positions that no table row serves (see ``interface.check_positions``). Raises SpecError."""
    if isinstance(positions, Run) and positions.first >= 0 and (end is None or positions.stop <= end):
        return
    check_positions(spec, host(positions), end)


def given(name: str, ids: Any, axes: int = 1) -> Slots:
    """A caller's positions as a host array (1 | B, n) of int64, or (axes, 1 | B, n). Raises SpecError."""
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise SpecError(f"{name} must be integers, got {array.dtype}")
    if axes > 1:
        if array.ndim not in (2, 3) or array.shape[0] != axes:
            raise SpecError(f"{name} must have shape ({axes}, n) or ({axes}, batch, n), got {array.shape}")
        return (array if array.ndim == 3 else array[:, None]).astype(np.int64)
    if array.ndim not in (1, 2):
        raise SpecError(f"{name} must have shape (n,) or (batch, n), got {array.shape}")
    return np.atleast_2d(array).astype(np.int64)


def from_mask(attention_mask: Any, length: int, axes: int = 1) -> tuple[Slots, Slots]:
    """Query and key positions that count the kept tokens of each row, alike on every axis; pads get 0."""
    kept = np.asarray(attention_mask) != 0
    keys = np.maximum(np.cumsum(kept, axis=1) - 1, 0) * kept
    keys = keys if axes == 1 else np.stack([keys] * axes)
    return keys[..., -length:], keys
