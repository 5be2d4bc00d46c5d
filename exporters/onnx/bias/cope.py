"""Layer: exporters/onnx. CoPE: positions that count what a query finds."""

from __future__ import annotations

import onnx_ir as ir

from portpe.encodings import CopeEncoding
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, shape_of


def cope(graph: GraphBuilder, encoding: CopeEncoding, inputs: ScoreInputs) -> ir.Value:
    """Q . e at the sum of gates from each key on, in float32: a position is no number for a type of 8 bits."""
    gates = graph.unary("Sigmoid", _scores(graph, encoding, inputs))
    gates = graph.where(inputs.visible(), gates, graph.scalar(0.0, FLOAT))
    place = graph.op("CumSum", gates, graph.scalar(3, INT64), shape=shape_of(gates), reverse=1)
    place = graph.binary("Min", place, graph.scalar(encoding.rows - 1.0, FLOAT))
    below = graph.unary("Floor", place)
    table = graph.transpose(graph.external("contextual_position.weight", inputs.weights), 1, 0)
    products = graph.cast(graph.matmul(inputs.q(), table), FLOAT)
    low = _at(graph, products, below)
    above = graph.binary("Add", below, graph.scalar(1.0, FLOAT))
    high = _at(graph, products, graph.binary("Min", above, graph.scalar(encoding.rows - 1.0, FLOAT)))
    share, step = graph.binary("Sub", place, below), graph.binary("Sub", high, low)
    return graph.binary("Add", low, graph.binary("Mul", share, step))


def _at(graph: GraphBuilder, products: ir.Value, rows: ir.Value) -> ir.Value:
    """(batch, heads, sequence, total): for each key the product with its row."""
    return graph.op("GatherElements", products, graph.cast(rows, INT64), shape=shape_of(rows), axis=3)


def _scores(graph: GraphBuilder, encoding: CopeEncoding, inputs: ScoreInputs) -> ir.Value:
    """(batch, heads, sequence, total) in float32: the scores before any bias, as the block forms them; a runtime that
    knows equal subgraphs makes them once.
    """
    spec, q, k = inputs.spec, inputs.q(), inputs.k()
    batch, heads, rows, width = shape_of(q)
    _, kv_heads, total, _ = shape_of(k)
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    group = heads // kv_heads
    if group > 1:
        q = graph.reshape(q, [0, kv_heads, -1, 0], (batch, kv_heads, f"{group}*{rows}", width))
    if encoding.scaled_gates and spec.scale != 1:
        q = graph.binary("Mul", q, graph.scalar(spec.scale, graph.dtype))
    products = graph.matmul(q, graph.transpose(k, 0, 1, 3, 2))
    if group > 1:
        products = graph.reshape(products, [0, heads, -1, 0], (batch, heads, rows, total))
    return graph.cast(products, FLOAT)
