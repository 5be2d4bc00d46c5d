"""What bias-site encodings add to one query row's scores, and to its context, with the error a runtime may have in it.

``BIASES`` and ``VALUE_TERMS`` find a function by the encoding's kind: (block, encoding, row, q, keys) gives (G, T), and
(block, encoding, row, probs) gives (G, Dv).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from portpe.biases import alibi
from portpe.encodings import AlibiEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate

if TYPE_CHECKING:
    from portpe.parity.stages import Block

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class QueryRow:
    """One query and the keys before it. Positions have an axis before them where the spec's have several."""

    hidden: Estimate  # (hidden,): what q_proj saw
    position: Ids  # () or (axes,)
    key_positions: Ids  # (T,) or (axes, T)
    visible: NDArray[np.bool_]  # (T,)
    heads: Ids  # (G,): the query heads, which read one kv head


def _alibi(block: Block, encoding: AlibiEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Slope times distance."""
    if encoding.precision == "hf":
        distance = row.position - row.key_positions
        distance = np.abs(distance) if encoding.symmetric else distance
        value = -block.tables["slopes"].astype(np.float64)[row.heads][:, None] * distance
    else:
        value = alibi.additive(encoding, block.spec.num_heads, row.position[None], row.key_positions)[row.heads, 0]
    return Estimate(value, bounds.stored(value, block.rounding))


BIASES: dict[str, Callable[[Block, Any, QueryRow, Estimate, Estimate], Estimate]] = {"alibi": _alibi}
VALUE_TERMS: dict[str, Callable[[Block, Any, QueryRow, Estimate], Estimate]] = {}
