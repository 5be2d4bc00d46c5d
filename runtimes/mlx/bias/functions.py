"""Layer: runtimes (MLX). Biases that are functions of the distance: KERPLE, FIRE and Sandwich; all in float32."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases import functions
from portpe.encodings import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import PositionTable, Tables
from portpe.spec import AttentionSpec


def _apart(inputs: ScoreInputs) -> mx.array:
    """(1 | B, S, T): distances, whichever of the two stands first."""
    between = inputs.query_positions[:, :, None] - inputs.key_positions[:, None, :]
    return mx.abs(between).astype(mx.float32)


class Kerple(nn.Module):
    """-r1 log(1 + r2 d), or -r1 d^r2."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T)."""
        r1, r2 = (inputs.weights[f"kerple_{name}"].astype(mx.float32)[:, None, None] for name in ("r1", "r2"))
        apart = _apart(inputs)[:, None]
        return -r1 * (mx.log1p(r2 * apart) if self.form == "logarithmic" else apart**r2)


class Fire(nn.Module):
    """W2 relu(W1 x + b1) + b2, x the distance over the query's position."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T)."""
        own = {name: array.astype(mx.float32) for name, array in inputs.weights.items()}
        c, threshold = mx.abs(own["fire_c"]), mx.abs(own["fire_threshold"])
        place = mx.maximum(inputs.query_positions.astype(mx.float32), threshold)
        x = mx.log1p(c * _apart(inputs)) / (mx.log1p(c * place) + self.epsilon)[:, :, None]
        hidden = mx.maximum(x[..., None] * own["fire_in.weight"][:, 0] + own["fire_in.bias"], 0.0)
        return (hidden @ own["fire_out.weight"].T + own["fire_out.bias"]).transpose(0, 3, 1, 2)


class Sandwich(nn.Module):
    """8 h / H times the product of the two tokens' sinusoids."""

    def __init__(self, table: PositionTable, num_heads: int) -> None:
        super().__init__()
        self._table = table
        self._ratios = mx.array(functions.ratios(num_heads), dtype=mx.float32)[:, None, None]

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T)."""
        queries, keys = (
            mx.concatenate(list(self._table(ids)), axis=-1) for ids in (inputs.query_positions, inputs.key_positions)
        )
        return self._ratios * (queries @ keys.swapaxes(-1, -2))[:, None]


def kerple(encoding: KerpleEncoding, spec: AttentionSpec, tables: Tables) -> Kerple:  # noqa: ARG001 - a site's signature
    """Chi 2022a."""
    return Kerple(encoding.form)


def fire(encoding: FireEncoding, spec: AttentionSpec, tables: Tables) -> Fire:  # noqa: ARG001
    """Li 2023."""
    return Fire(encoding.epsilon)


def sandwich(encoding: SandwichEncoding, spec: AttentionSpec, tables: Tables) -> Sandwich:  # noqa: ARG001
    """Chi 2022b."""
    return Sandwich(PositionTable(tables, "relative_"), spec.num_heads)
