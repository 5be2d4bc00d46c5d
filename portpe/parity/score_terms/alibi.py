"""ALiBi: slope times distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe import biases
from portpe.encodings import AlibiEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def alibi(block: Block, encoding: AlibiEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Slope times distance."""
    if encoding.precision == "hf":
        distance = row.position - row.key_positions
        distance = np.abs(distance) if encoding.symmetric else distance
        value = -block.tables["slopes"].astype(np.float64)[row.heads][:, None] * distance
    else:
        value = biases.alibi.additive(encoding, block.spec.num_heads, row.position[None], row.key_positions)[
            row.heads, 0
        ]
    return Estimate(value, bounds.stored(value, block.rounding))
