"""Layer: exporters/onnx. What each bias-site encoding adds to the scores, and to the context; in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from portpe.encodings import AlibiEncoding, BiasEncoding
from portpe.errors import SpecError
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.embedding import Weights
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder
from portpe.spec import AttentionSpec


@dataclass(frozen=True)
class ScoreInputs:
    """What a bias may read of a block. What a form has to lay out first is a function, called where it is read."""

    spec: AttentionSpec
    hidden: ir.Value  # (batch, sequence, hidden): what q_proj sees
    q: Callable[[], ir.Value]  # (batch, heads, sequence, head_dim): rotated and normed, not scaled
    k: Callable[[], ir.Value]  # (batch, kv_heads, total, head_dim), the cached ones too, of ``reads_keys`` alone
    visible: Callable[[], ir.Value]  # bool (batch, 1, 1 | sequence, total)
    position_ids: ir.Value  # (batch, sequence), axes before it where there are several
    key_position_ids: ir.Value  # (batch, total), likewise
    tables: lookup.Tables
    weights: Weights


def additive(graph: GraphBuilder, encoding: BiasEncoding, inputs: ScoreInputs) -> ir.Value:
    """(1 | batch, heads, sequence, total) in float32, whatever the graph's type."""
    return _BIASES[encoding.kind](graph, encoding, inputs)


def value_term(graph: GraphBuilder, encoding: BiasEncoding, probs: ir.Value, inputs: ScoreInputs) -> ir.Value:
    """(batch, heads, sequence, v_head_dim) in float32, of an encoding that reads ``probs``."""
    return _VALUE_TERMS[encoding.kind](graph, encoding, probs, inputs)


def _alibi(graph: GraphBuilder, encoding: AlibiEncoding, inputs: ScoreInputs) -> ir.Value:
    """Slope times distance. Distances are taken between integers: a product with a key's own position would
    round away the last digits of a long context.
    """
    tables, num_heads = inputs.tables, inputs.spec.num_heads
    if "slopes" not in tables:
        raise SpecError(f"tables must hold slopes, got {', '.join(tables) or 'none'}")
    if tables["slopes"].shape != (num_heads,):
        raise SpecError(f"tables.slopes must have shape ({num_heads},), got {tables['slopes'].shape}")
    slopes = graph.inline("slopes", tables["slopes"].reshape(num_heads, 1, 1), FLOAT)
    keys, queries = graph.unsqueeze(inputs.key_position_ids, 1, 2), graph.unsqueeze(inputs.position_ids, 1, 3)
    distance = graph.binary("Sub", keys, queries)
    if encoding.symmetric:
        distance = graph.unary("Neg", graph.unary("Abs", distance))
    return graph.binary("Mul", graph.cast(distance, FLOAT), slopes)


_BIASES: dict[str, Callable[[GraphBuilder, Any, ScoreInputs], ir.Value]] = {
    "alibi": _alibi,
}
_VALUE_TERMS: dict[str, Callable[[GraphBuilder, Any, ir.Value, ScoreInputs], ir.Value]] = {}
