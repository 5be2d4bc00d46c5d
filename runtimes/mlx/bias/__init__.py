"""Layer: runtimes (MLX). The bias site: what is added to the scores, and to what the probabilities weigh.

A member is a module that is called with ``ScoreInputs`` and gives the addend (1 | B, heads, S, T) in float32. One
with a value term has ``value_term(probs, inputs)`` besides, (B, heads, S, v_head_dim) in float32. One whose encoding
has ``cached_states`` has ``states(hidden, weights)``: what new tokens add, (B, numbers of a token, S) in float32.
Trained tensors stand in the block, under their canonical names. One module a kind.
"""

from __future__ import annotations

from collections.abc import Callable

from mlx import nn

from portpe.runtimes.mlx.bias.alibi import alibi
from portpe.runtimes.mlx.bias.buckets import axis_buckets, buckets, gated_buckets
from portpe.runtimes.mlx.bias.cope import cope
from portpe.runtimes.mlx.bias.deberta import deberta
from portpe.runtimes.mlx.bias.distance_bank import distance_bank
from portpe.runtimes.mlx.bias.forget import forget
from portpe.runtimes.mlx.bias.functions import fire, kerple, sandwich
from portpe.runtimes.mlx.bias.grid import grid_network, grid_table, grid_vectors
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.bias.shaw import shaw
from portpe.runtimes.mlx.bias.transformer_xl import transformer_xl

__all__ = ["SITES", "ScoreInputs"]

SITES: dict[str, Callable[..., nn.Module]] = {
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
