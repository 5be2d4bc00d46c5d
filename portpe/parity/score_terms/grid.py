"""A trained number for each offset between cells of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases import grid
from portpe.encodings import GridNetworkEncoding, GridTableEncoding, GridVectorsEncoding
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


def grid_vectors(
    block: Block,
    encoding: GridVectorsEncoding,
    row: QueryRow,
    q: Estimate,
    keys: Estimate,  # noqa: ARG001
) -> Estimate:
    """Products q . Kh[dy] + q . Kw[dx], not scaled."""
    found = grid.vector_rows(encoding, row.position[:, None], row.key_positions)[:, 0]
    terms = []
    for axis, name in enumerate(encoding.weight_shapes(block.spec)):
        products = bounds.matmul(q, _resampled(block, encoding, axis, name).swapaxes(0, 1), block.rounding)
        terms.append(products[:, found[axis]])
    height, width = terms
    value = height.value + width.value
    return Estimate(value, quadrature(height.error, width.error, bounds.stored(value, block.rounding)))


def _resampled(block: Block, encoding: GridVectorsEncoding, axis: int, name: str) -> Estimate:
    """A table of the grid's own size, (2 side - 1, head_dim)."""
    if name not in block.derived:
        table, matrices = block.weight(name), grid.resampling(encoding)
        if matrices is None:
            block.derived[name] = given(table)
        else:
            formed = bounds.matmul(given(matrices[axis]), given(table), bounds.ROUNDINGS["float32"])
            error = quadrature(formed.error, bounds.stored(formed.value, block.rounding))
            block.derived[name] = Estimate(formed.value, error)
    return block.derived[name]
