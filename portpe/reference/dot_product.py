"""Layer: reference. Scores, softmax and the sum over values, with key/value groups and sinks."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from portpe.reference.arrays import accumulation_dtype


def scores(
    q: Float[Tensor, "batch heads seq dim"], k: Float[Tensor, "batch kv_heads total dim"], scale: float
) -> Float[Tensor, "batch heads seq total"]:
    """(q . k) * scale in the accumulation type; query head h reads key head h // (heads / kv_heads).

    The query heads of a group are stacked as rows of one product, so no key is repeated.
    """
    accumulate = accumulation_dtype(q.dtype)
    batch, heads, seq, _ = q.shape
    products = _by_group(q.to(accumulate), k.shape[1]) @ k.to(accumulate).transpose(-1, -2)
    return products.reshape(batch, heads, seq, k.shape[2]) * scale


def softcap(x: Tensor, cap: float) -> Tensor:
    """Cap * tanh(x / cap)."""
    return cap * torch.tanh(x / cap)


def probabilities(
    x: Float[Tensor, "batch heads seq total"],
    visible: Bool[Tensor, "#batch 1 seq total"],
    sinks: Float[Tensor, " heads"] | None,
) -> Float[Tensor, "batch heads seq total"]:
    """Softmax over the visible keys; the head's sink, where there is one, joins the denominator only.

    Masked keys get exactly 0, and so does a whole row with no key. The mask is minus infinity and never a large
    finite number, which another type would turn into an infinity and a row without keys into NaN.
    """
    masked = x.masked_fill(~visible, -torch.inf)
    top = masked.amax(-1, keepdim=True)
    sink = None if sinks is None else sinks.to(x.dtype)[:, None, None]
    if sink is not None:
        top = torch.maximum(top, sink)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(masked - top)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    return weights / torch.where(total == 0, 1.0, total)


def mix(
    probs: Float[Tensor, "batch heads seq total"], v: Float[Tensor, "batch kv_heads total dim"]
) -> Float[Tensor, "batch heads seq dim"]:
    """Probs @ v with the same grouping as ``scores``, summed in the type of probs, rounded to v's."""
    batch, heads, seq, _ = probs.shape
    sums = _by_group(probs, v.shape[1]) @ v.to(probs.dtype)
    return sums.reshape(batch, heads, seq, v.shape[3]).to(v.dtype)


def _by_group(x: Float[Tensor, "batch heads seq dim"], groups: int) -> Float[Tensor, "batch groups rows dim"]:
    batch, heads, seq, dim = x.shape
    return x.reshape(batch, groups, heads // groups * seq, dim)
