"""Layer: runtimes (MLX). The gate on what the heads give, before o_proj."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.layer_parts import OutputGate


def gated(gate: OutputGate, context: mx.array, rows: mx.array) -> mx.array:
    """``context`` (B, heads, S, Dv) times the activation of what gate_proj gives, ``rows`` (B, S, heads * Dv | heads):
    formed in float32, in the context's type.
    """
    wide = rows.astype(mx.float32)
    factor = mx.sigmoid(wide) if gate.activation == "sigmoid" else nn.softplus(wide)
    by_head = factor.reshape(*rows.shape[:2], context.shape[1], -1).transpose(0, 2, 1, 3)
    return (context.astype(mx.float32) * by_head).astype(context.dtype)
