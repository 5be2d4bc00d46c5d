"""A trained number for each offset between cells of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases import grid
from portpe.encodings import GridTableEncoding
from portpe.parity.bounds import Estimate, given
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def grid_table(block: Block, encoding: GridTableEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Numbers of the table itself: looking one up rounds nothing."""
    (found,) = grid.rows(encoding, row.position[:, None], row.key_positions, np.array([row.slot]))
    return given(np.asarray(block.weight(grid.TABLE)[found][:, row.heads].T))
