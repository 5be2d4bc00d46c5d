"""Layer: reference. Linear attention (Katharopoulos 2020): features in place of a softmax, and their normaliser.

Features, products and sums stay in the accumulation type up to the quotient: in float16 the feature of -18 is 0, and a
row whose features are all 0 has no quotient.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from portpe.reference.arrays import accumulation_dtype


def features(x: Float[Tensor, "batch heads seq dim"]) -> Float[Tensor, "batch heads seq dim"]:
    """Elu(x) + 1 (equation 7), as exp(min(x, 0)) + max(x, 0): exp(x) - 1 + 1 would lose a small one's digits."""
    wide = x.to(accumulation_dtype(x.dtype))
    return torch.exp(wide.clamp(max=0)) + wide.clamp(min=0)


def normaliser(
    q: Float[Tensor, "batch heads seq dim"],
    k: Float[Tensor, "batch kv_heads total dim"],
    visible: Bool[Tensor, "#batch 1 seq total"],
) -> Float[Tensor, "batch heads seq 1"]:
    """The sum of q . k over the visible keys, of features before rotation: keys are summed first, once a kv head."""
    batch, heads, seq, dim = q.shape
    summed = visible.to(k.dtype) @ k
    by_group = q.reshape(batch, k.shape[1], heads // k.shape[1], seq, dim) * summed.unsqueeze(2)
    return by_group.sum(-1, keepdim=True).reshape(batch, heads, seq, 1)


def weights(
    scores: Float[Tensor, "batch heads seq total"],
    normaliser: Float[Tensor, "batch heads seq 1"],
    visible: Bool[Tensor, "#batch 1 seq total"],
) -> Float[Tensor, "batch heads seq total"]:
    """Scores / normaliser where a key is visible, else exactly 0, and so in a whole row with no key."""
    return torch.where(visible, scores / torch.where(normaliser == 0, 1.0, normaliser), 0.0)
