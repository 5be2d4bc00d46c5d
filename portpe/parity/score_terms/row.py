"""One query row, as the bias site sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from portpe.parity.bounds import Estimate

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class QueryRow:
    """One query and the keys before it. Positions have an axis before them where the spec's have several."""

    hidden: Estimate  # (hidden,): what q_proj saw
    slot: int  # its place among the keys
    position: Ids  # () or (axes,)
    key_positions: Ids  # (T,) or (axes, T)
    visible: NDArray[np.bool_]  # (T,)
    heads: Ids  # (G,): the query heads, which read one kv head
    states: Mapping[str, Estimate] = field(default_factory=dict)  # (numbers of a token, T): what encodings cache
