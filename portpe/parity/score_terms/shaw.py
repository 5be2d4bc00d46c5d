"""Shaw: a trained vector a distance, for keys and for values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases.by_distance import distance_rows
from portpe.encodings import ShawEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def shaw(block: Block, encoding: ShawEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """(q . K[row of the distance]) * scale."""
    table = bounds.given(_ended(encoding, block.weight("relative_key.weight")))
    products = bounds.matmul(q, table.swapaxes(0, 1), block.rounding, scale=block.spec.scale)
    return products[:, distance_rows(encoding).of(row.position[None], row.key_positions)[0]]


def shaw_values(block: Block, encoding: ShawEncoding, row: QueryRow, probs: Estimate) -> Estimate:
    """Sum over keys of p V[row]; an error of the softmax's denominator is common to the terms and does not cancel."""
    rows = distance_rows(encoding).of(row.position[None], row.key_positions)[0]
    term = bounds.matmul(
        probs, bounds.given(_ended(encoding, block.weight("relative_value.weight"))[rows]), block.rounding
    )
    if not probs.error.any():
        return term
    common = bounds.softmax_sum(probs.value.shape[-1]) * np.abs(term.value)
    return Estimate(term.value, quadrature(term.error, common))


def _ended(encoding: ShawEncoding, table: Exact) -> Exact:
    """The table, with a row of zeros behind it where farther keys get nothing."""
    return np.pad(table, ((0, 1), (0, 0))) if encoding.beyond == "nothing" else table
