"""What bias-site encodings add to one query row's scores, and to its context, with the error a runtime may have in it.

``BIASES`` and ``VALUE_TERMS`` find a function by the encoding's kind: (block, encoding, row, q, keys) gives (G, T), and
(block, encoding, row, probs) gives (G, Dv). ``STATES`` has those that cache more than keys and values:
(block, encoding, x (S, hidden)) gives what new tokens add, (numbers of a token, S) by name. One module a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from portpe.parity.bounds import Estimate
from portpe.parity.score_terms.alibi import alibi
from portpe.parity.score_terms.buckets import axis_buckets, buckets, gated_buckets
from portpe.parity.score_terms.cope import cope
from portpe.parity.score_terms.deberta import deberta
from portpe.parity.score_terms.distance_bank import distance_bank
from portpe.parity.score_terms.forget import forget, gates
from portpe.parity.score_terms.functions import fire, kerple, sandwich
from portpe.parity.score_terms.grid import grid_network, grid_table, grid_vectors
from portpe.parity.score_terms.row import QueryRow
from portpe.parity.score_terms.shaw import shaw, shaw_values
from portpe.parity.score_terms.transformer_xl import transformer_xl

if TYPE_CHECKING:
    from portpe.parity.stages import Block

__all__ = ["BIASES", "STATES", "VALUE_TERMS", "QueryRow"]

BIASES: dict[str, Callable[[Block, Any, QueryRow, Estimate, Estimate], Estimate]] = {
    "alibi": alibi,
    "axis_buckets": axis_buckets,
    "buckets": buckets,
    "cope": cope,
    "deberta": deberta,
    "distance_bank": distance_bank,
    "fire": fire,
    "forget": forget,
    "gated_buckets": gated_buckets,
    "grid_network": grid_network,
    "grid_table": grid_table,
    "grid_vectors": grid_vectors,
    "kerple": kerple,
    "sandwich": sandwich,
    "shaw": shaw,
    "transformer_xl": transformer_xl,
}
STATES: dict[str, Callable[[Block, Any, Estimate], dict[str, Estimate]]] = {"forget": gates}
VALUE_TERMS: dict[str, Callable[[Block, Any, QueryRow, Estimate], Estimate]] = {"shaw": shaw_values}
