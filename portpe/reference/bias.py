"""Layer: reference. Bias site: what is added to the scores, and to what the probabilities weigh.

A member is a module that is called with ``ScoreInputs`` and gives the addend (B, heads, S, T) in the accumulation
type. ``BIASES`` finds it by the encoding's kind. One with a value term has ``value_term(probs, inputs)`` besides,
(B, heads, S, v_head_dim). Trained tensors stand in the block, under their canonical names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from portpe.biases import slopes
from portpe.encodings import AlibiEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.lookup import Tables, table
from portpe.spec import AttentionSpec


class ScoreInputs(NamedTuple):
    """What a bias may read. Positions are (axes, ...) where the spec's have several axes."""

    hidden: Float[Tensor, "batch seq hidden"]  # what q_proj sees
    q: Float[Tensor, "batch heads seq head_dim"]  # rotated and normed, not scaled
    k: Float[Tensor, "batch kv_heads total head_dim"]  # the cached ones too
    query_positions: Int[Tensor, "*axes batch seq"]
    key_positions: Int[Tensor, "*axes batch total"]
    visible: Bool[Tensor, "#batch 1 seq total"]  # True where the query may see the key
    weights: Mapping[str, Tensor]  # the trained tensors, by canonical name, in the block's type


class Bias(nn.Module):
    """Base of the site's members."""

    def value_term(
        self, probs: Float[Tensor, "batch heads seq total"], inputs: ScoreInputs
    ) -> Float[Tensor, "batch heads seq v_head_dim"]:
        """What is added to the context, of an encoding with ``reads_probs``; in the type of ``probs``."""
        raise NotImplementedError


class Alibi(Bias):
    """Minus slope times distance (Press 2021, section 3).

    Formed from distances, never from key indices: slope * j grows with the position, and in half precision the
    neighbours of a far query would share one value. Formed in float64 and rounded once.
    """

    slopes: Tensor

    def __init__(self, encoding: AlibiEncoding, spec: AttentionSpec, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.symmetric = encoding.symmetric
        self.accumulate = accumulation_dtype(dtype)
        numbers = slopes(encoding, spec.num_heads) if tables is None else table(tables, "slopes")
        self.register_buffer("slopes", to_torch(numbers).double(), persistent=False)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        distance = inputs.query_positions[:, None, :, None] - inputs.key_positions[:, None, None, :]
        distance = distance.abs() if self.symmetric else distance
        return (-self.slopes[:, None, None] * distance.double()).to(self.accumulate)


BIASES: dict[str, Callable[..., Bias]] = {"alibi": Alibi}
