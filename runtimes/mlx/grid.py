"""Layer: runtimes (MLX). Patches of an image: a table resampled to the image's own grid, and sinusoids.

The weights of the table's rows depend on positions alone, which are known on the host: they are made there in float64
and rounded once; the product with the table runs on the device.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe import addends, grids
from portpe.encodings import LearnedGridEncoding, SinusoidalGridEncoding
from portpe.runtimes.mlx.positions import Positions, Slots, host


class LearnedGrid(nn.Module):
    """The table (prefix_tokens + rows * columns, width), weighed row by row for each token."""

    def __init__(self, encoding: LearnedGridEncoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.weight = mx.zeros(encoding.table_shape)

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (B, S, width) float32 of positions (2, B, S)."""
        weights = grids.table_weights(self.encoding, _both(positions))
        return mx.array(weights.astype(np.float32)) @ self.weight.astype(mx.float32)

    def to_quantized(self, *_: Any, **__: Any) -> nn.Module:
        """The table itself: its rows are no activations' weights."""
        return self


class SinusoidalGrid(nn.Module):
    """Sinusoids of both coordinates: out of tables, or made on the host where the image's size is in the angle."""

    def __init__(self, encoding: SinusoidalGridEncoding, one: nn.Module | None) -> None:
        super().__init__()
        self.encoding, self.one = encoding, one

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (B, S, width) float32 of positions (2, B, S)."""
        places = _both(positions)
        if self.one is None:
            return mx.array(addends.addend(self.encoding, places, {}).astype(np.float32))
        halves = [self.one(each) for each in places]
        both = mx.concatenate(halves if self.encoding.first == "row" else halves[::-1], axis=-1)
        return both * (mx.arange(both.shape[1]) >= self.encoding.plain_tokens)[:, None]


def _both(positions: Positions) -> Slots:
    """(2, B, S); counted tokens stand alike on both axes."""
    places = host(positions)
    return places if places.ndim == 3 else np.stack([np.atleast_2d(places)] * 2)
