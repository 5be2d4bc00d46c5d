"""Layer: reference. What a member of the bias site is: what it may read, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class ScoreInputs(NamedTuple):
    """What a bias may read. Positions are (axes, ...) where the spec's have several axes."""

    hidden: Float[Tensor, "batch seq hidden"]  # what q_proj sees
    q: Float[Tensor, "batch heads seq head_dim"]  # rotated and normed, not scaled
    k: Float[Tensor, "batch kv_heads total head_dim"]  # the cached ones too
    query_positions: Int[Tensor, "*axes batch seq"]
    key_positions: Int[Tensor, "*axes batch total"]
    visible: Bool[Tensor, "#batch 1 seq total"]  # True where the query may see the key
    weights: Mapping[str, Tensor]  # the trained tensors, by canonical name, in the block's type
    project: Callable[
        [str, Tensor], Tensor
    ]  # a projection of the block, by name (``k_proj``), on rows as wide as hidden
    states: Mapping[str, Tensor] = MappingProxyType({})  # (batch, numbers of a token, total), of all keys, by name


class Bias(nn.Module):
    """Base of the site's members."""

    def states(
        self,
        hidden: Float[Tensor, "batch seq hidden"],  # noqa: ARG002 - most cache nothing
        weights: Mapping[str, Tensor],  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """What a call's tokens add to the cache, (batch, numbers of a token, seq) in the accumulation type, by the
        names of the encoding's ``cached_states``.
        """
        return {}

    def value_term(
        self, probs: Float[Tensor, "batch heads seq total"], inputs: ScoreInputs
    ) -> Float[Tensor, "batch heads seq v_head_dim"]:
        """What is added to the context, of an encoding with ``reads_probs``; in the type of ``probs``."""
        raise NotImplementedError
