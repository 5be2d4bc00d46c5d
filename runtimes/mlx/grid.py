"""Layer: runtimes (MLX). A trained table over a grid of patches, resampled to an image's own grid.

The weights of the table's rows depend on positions alone, which are known on the host: they are made there in float64
and rounded once; the product with the table runs on the device.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe import grids
from portpe.encodings import LearnedGridEncoding
from portpe.runtimes.mlx.positions import Positions, host


class LearnedGrid(nn.Module):
    """The table (prefix_tokens + rows * columns, width), weighed row by row for each token."""

    def __init__(self, encoding: LearnedGridEncoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.weight = mx.zeros(encoding.table_shape)

    def __call__(self, positions: Positions) -> mx.array:
        """The addend (B, S, width) float32 of positions (2, B, S)."""
        places = host(positions)
        if places.ndim == 1:  # counted tokens: alike on both axes
            places = np.stack([places, places])[:, None]
        weights = grids.table_weights(self.encoding, places)
        return mx.array(weights.astype(np.float32)) @ self.weight.astype(mx.float32)

    def to_quantized(self, *_: Any, **__: Any) -> nn.Module:
        """The table itself: its rows are no activations' weights."""
        return self
