"""Layer: runtimes (MLX). FoX: forget gates, each of which fades what stands before it."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
from mlx import nn

from portpe.biases.forget import SUM_BLOCK
from portpe.encodings import ForgetEncoding
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class Forget(nn.Module):
    """The sum of log f over the keys behind j that query i sees (Lin 2025, section 3), in float32.

    GPUs have no float64, so each sum is formed from the query back, over the range that it is of: a short range late
    in a long cache has all its digits.
    """

    def states(self, hidden: mx.array, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """``gate``: log f of each token, (B, heads, S) in float32."""
        weight, bias = (weights[f"fgate_proj.{part}"].astype(mx.float32) for part in ("weight", "bias"))
        return {"gate": nn.log_sigmoid(hidden.astype(mx.float32) @ weight.T + bias).swapaxes(1, 2)}

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        gates = inputs.states["gate"][:, :, None]
        rows, total = inputs.q.shape[2], gates.shape[3]
        later = mx.arange(total)[None] > mx.arange(total - rows, total)[:, None]  # keys stand in order: no query yet
        seen = ~later if inputs.visible is None else mx.logical_and(inputs.visible, ~later)
        return _behind(mx.where(seen, gates, 0.0))


def _behind(x: mx.array) -> mx.array:
    """For each key the sum of x (..., T) over the keys behind it.

    In blocks, then over blocks: one running sum of many small numbers of one sign drifts, by T / 16 half units.
    """
    total = x.shape[-1]
    if total <= SUM_BLOCK:
        return mx.cumsum(x, axis=-1, reverse=True, inclusive=False)
    spare = -total % SUM_BLOCK
    blocks = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(spare, 0)]).reshape(*x.shape[:-1], -1, SUM_BLOCK)
    within = mx.cumsum(blocks, axis=-1, reverse=True, inclusive=False)
    beyond = mx.cumsum(within[..., :1] + blocks[..., :1], axis=-2, reverse=True, inclusive=False)
    return (within + beyond).reshape(*x.shape[:-1], -1)[..., spare:]


def forget(encoding: ForgetEncoding, spec: AttentionSpec, tables: Tables) -> Forget:  # noqa: ARG001 - a site's signature
    """Lin 2025; the gates' projection is a weight."""
    return Forget()
