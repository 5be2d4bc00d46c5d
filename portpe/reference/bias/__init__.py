"""Layer: reference. Bias site: what is added to the scores, and to what the probabilities weigh.

A member is a module that is called with ``ScoreInputs`` and gives the addend (B, heads, S, T) in the accumulation
type. ``BIASES`` finds it by the encoding's kind. One with a value term has ``value_term(probs, inputs)`` besides,
(B, heads, S, v_head_dim). Trained tensors stand in the block, under their canonical names. One module a kind.
"""

from __future__ import annotations

from collections.abc import Callable

from portpe.reference.bias.alibi import Alibi
from portpe.reference.bias.buckets import AxisBuckets, Buckets, GatedBuckets
from portpe.reference.bias.cope import Cope
from portpe.reference.bias.deberta import Deberta
from portpe.reference.bias.distance_bank import DistanceBank
from portpe.reference.bias.forget import Forget
from portpe.reference.bias.functions import Fire, Kerple, Sandwich
from portpe.reference.bias.grid import GridNetwork, GridTable, GridVectors
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.bias.shaw import Shaw
from portpe.reference.bias.transformer_xl import TransformerXl

__all__ = ["BIASES", "Bias", "ScoreInputs"]

BIASES: dict[str, Callable[..., Bias]] = {
    "alibi": Alibi,
    "axis_buckets": AxisBuckets,
    "buckets": Buckets,
    "cope": Cope,
    "deberta": Deberta,
    "distance_bank": DistanceBank,
    "fire": Fire,
    "forget": Forget,
    "gated_buckets": GatedBuckets,
    "grid_network": GridNetwork,
    "grid_table": GridTable,
    "grid_vectors": GridVectors,
    "kerple": Kerple,
    "sandwich": Sandwich,
    "shaw": Shaw,
    "transformer_xl": TransformerXl,
}
