"""Layer: reference. The gate on what the heads give, before o_proj."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from portpe.layer_parts import OutputGate
from portpe.reference.arrays import accumulation_dtype


def gated(
    gate: OutputGate,
    context: Float[Tensor, "batch heads seq dim"],
    rows: Float[Tensor, "batch seq width"],
) -> Float[Tensor, "batch heads seq dim"]:
    """``context`` times the activation of what gate_proj gives, ``rows``: formed in float32 at least, rounded once."""
    accumulate = accumulation_dtype(context.dtype)
    wide = rows.to(accumulate)
    factor = torch.sigmoid(wide) if gate.activation == "sigmoid" else F.softplus(wide)
    by_head = factor.reshape(*rows.shape[:2], context.shape[1], -1).transpose(1, 2)  # (B, heads, S, dim | 1)
    return (context.to(accumulate) * by_head).to(context.dtype)
