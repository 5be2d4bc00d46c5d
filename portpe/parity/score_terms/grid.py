"""A trained number for each offset between cells of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases import grid
from portpe.encodings import GridNetworkEncoding, GridTableEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, given, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def grid_table(block: Block, encoding: GridTableEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Numbers of the table itself: looking one up rounds nothing."""
    (found,) = grid.rows(encoding, row.position[:, None], row.key_positions, np.array([row.slot]))
    return given(np.asarray(block.weight(grid.TABLE)[found][:, row.heads].T))


def grid_network(block: Block, encoding: GridNetworkEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Both layers in float32; a sigmoid is no steeper than 1 / 4."""
    rounding = bounds.ROUNDINGS["float32"]
    (found,) = grid.rows(encoding.offsets, row.position[:, None], row.key_positions, np.array([row.slot]))
    x = grid.network_inputs(encoding)[found]  # (T, 2)
    first, bias = block.weight("grid_in.weight"), block.weight("grid_in.bias")
    size = np.abs(x) @ np.abs(first.T) + np.abs(bias)
    hidden = Estimate(np.maximum(x @ first.T + bias, 0.0), bounds.stored(size, rounding))
    before = bounds.matmul(hidden, given(block.weight("grid_out.weight")[row.heads].T), rounding)
    value = 16 / (1 + np.exp(-before.value))
    error = quadrature(4 * before.error, bounds.stored(value, rounding), bounds.stored(value, block.rounding))
    return Estimate(value.T, error.T)
