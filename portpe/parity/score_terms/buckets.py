"""T5's buckets: a trained number by distance and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe import biases
from portpe.encodings import BucketsEncoding
from portpe.parity.bounds import Estimate, given
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def buckets(block: Block, encoding: BucketsEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Numbers of the table itself: looking one up rounds nothing."""
    found = biases.buckets.distance_rows(encoding).of(row.position[None], row.key_positions)[0]
    return given(np.asarray(block.weight(biases.buckets.TABLE)[found][:, row.heads].T))
