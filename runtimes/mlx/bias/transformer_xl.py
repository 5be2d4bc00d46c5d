"""Layer: runtimes (MLX). Transformer-XL: projected sinusoids of the distance, with biases of their own."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
from mlx import nn

from portpe.encodings import TransformerXlEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx.bias.by_distance import pick
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import PositionTable, Tables
from portpe.spec import AttentionSpec


class TransformerXl(nn.Module):
    """(u . k_j + (q_i + v) . W R(i - j)) * scale (Dai 2019, section 3.3), in float32.

    The sinusoid is made once for each distance from the nearest to the farthest and projected; its products with the
    queries are looked up by distance.
    """

    def __init__(self, encoding: TransformerXlEncoding, spec: AttentionSpec, table: PositionTable) -> None:
        super().__init__()
        self._table = table
        self.order, self.clamp = encoding.order, encoding.clamp
        self.heads, self.scale = spec.num_heads, spec.scale

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        weights = {name: value.astype(mx.float32) for name, value in inputs.weights.items()}
        behind = inputs.query_positions[:, :, None] - inputs.key_positions[:, None, :]
        if self.clamp is not None:
            behind = mx.clip(behind, -self.clamp, self.clamp)
        nearest, farthest = (cast("int", end.item()) for end in (behind.min(), behind.max()))
        projected = self._sinusoid(nearest, farthest) @ weights["relative_proj.weight"].T
        by_head = projected.reshape(farthest - nearest + 1, self.heads, -1).transpose(1, 2, 0)
        q = inputs.q.astype(mx.float32) + weights["position_bias"][:, None]
        of_positions = pick(q @ by_head, behind - nearest)
        kv_heads = inputs.k.shape[1]
        content = weights["content_bias"].reshape(kv_heads, self.heads // kv_heads, -1)
        of_keys = content @ inputs.k.astype(mx.float32).swapaxes(-1, -2)  # (B, kv_heads, group, T)
        return (of_positions + of_keys.reshape(-1, self.heads, 1, of_keys.shape[-1])) * self.scale

    def _sinusoid(self, nearest: int, farthest: int) -> mx.array:
        """(distances, width) of the distances from ``nearest`` to ``farthest``. Raises SpecError past the table."""
        longest = max(-nearest, farthest)
        if longest >= self._table.end:
            raise SpecError(f"distances must be < {self._table.end}, the end of the position table, got {longest}")
        distances = mx.arange(nearest, farthest + 1)
        cos, sin = self._table(mx.abs(distances))
        sin = sin * mx.sign(distances)[:, None]
        if self.order == "interleaved":
            return mx.flatten(mx.stack([sin, cos], axis=-1), -2)
        return mx.concatenate([sin, cos], axis=-1)


def transformer_xl(encoding: TransformerXlEncoding, spec: AttentionSpec, tables: Tables) -> TransformerXl:
    """Dai 2019, and its users' two orders of channels."""
    return TransformerXl(encoding, spec, PositionTable(tables, "relative_"))
