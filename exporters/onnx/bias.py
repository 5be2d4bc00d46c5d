"""Layer: exporters/onnx. What each bias-site encoding adds to the scores, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from portpe.encodings import AlibiEncoding, BiasEncoding
from portpe.errors import SpecError
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder


def additive(
    graph: GraphBuilder,
    encoding: BiasEncoding,
    num_heads: int,
    position_ids: ir.Value,
    key_position_ids: ir.Value,
    tables: lookup.Tables,
) -> ir.Value:
    """(batch, heads, sequence, total) in float32, whatever the graph's type."""
    return _BIASES[encoding.kind](graph, encoding, num_heads, position_ids, key_position_ids, tables)


def _alibi(
    graph: GraphBuilder,
    encoding: AlibiEncoding,
    num_heads: int,
    position_ids: ir.Value,
    key_position_ids: ir.Value,
    tables: lookup.Tables,
) -> ir.Value:
    """Slope times distance. Distances are taken between integers: a product with a key's own position would
    round away the last digits of a long context.
    """
    if "slopes" not in tables:
        raise SpecError(f"tables must hold slopes, got {', '.join(tables) or 'none'}")
    if tables["slopes"].shape != (num_heads,):
        raise SpecError(f"tables.slopes must have shape ({num_heads},), got {tables['slopes'].shape}")
    slopes = graph.inline("slopes", tables["slopes"].reshape(num_heads, 1, 1), FLOAT)
    keys, queries = graph.unsqueeze(key_position_ids, 1, 2), graph.unsqueeze(position_ids, 1, 3)
    distance = graph.binary("Sub", keys, queries)
    if encoding.symmetric:
        distance = graph.unary("Neg", graph.unary("Abs", distance))
    return graph.binary("Mul", graph.cast(distance, FLOAT), slopes)


_BIASES: dict[str, Callable[[GraphBuilder, Any, int, ir.Value, ir.Value, lookup.Tables], ir.Value]] = {
    "alibi": _alibi,
}
