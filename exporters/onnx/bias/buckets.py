"""Layer: exporters/onnx. T5's buckets: a trained number by distance and head."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from portpe.biases import buckets as numbers
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, GatedBucketsEncoding
from portpe.exporters.onnx.bias.by_distance import of_pairs, rows_of
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, Shape, shape_of


def buckets(graph: GraphBuilder, encoding: BucketsEncoding, inputs: ScoreInputs) -> ir.Value:
    """The bucket of every distance up to ``max_distance`` stands in the graph: no logarithm is left to a runtime's
    rounding, and no length is fixed.
    """
    table = graph.cast(graph.external(numbers.TABLE, inputs.weights), FLOAT)
    found = of_pairs(graph, graph.transpose(table, 1, 0), rows_of(graph, inputs, numbers.distance_rows(encoding)))
    return _scaled(graph, found, encoding.scale)


def gated_buckets(graph: GraphBuilder, encoding: GatedBucketsEncoding, inputs: ScoreInputs) -> ir.Value:
    """The same times a (b c - 1) + 2, a and b gates of the query's own hidden state; the matrix of each is the sum of
    four rows, which a runtime may fold.
    """
    spec = inputs.spec
    heads, width = spec.num_heads, spec.hidden_size // spec.num_heads
    batch, rows, _ = shape_of(inputs.hidden)
    by_head = graph.reshape(graph.cast(inputs.hidden, FLOAT), [0, 0, heads, width], (batch, rows, heads, width))
    weight, bias = (graph.cast(graph.external(f"relative_gate.{part}", inputs.weights), FLOAT) for part in _GATE)
    weight = _sums_of_four(graph, graph.reshape(weight, [2, 4, width], (2, 4, width)), (2, width))
    bias = _sums_of_four(graph, graph.reshape(bias, [2, 4], (2, 4)), (2,))
    logits = graph.binary("Add", graph.matmul(by_head, graph.transpose(weight, 1, 0)), bias)
    a, b = graph.split(graph.unary("Sigmoid", logits), (1, 1), axis=3)  # (batch, rows, heads, 1)
    scale = graph.cast(graph.external("relative_gate_scale", inputs.weights), FLOAT)
    scaled = graph.binary("Mul", b, graph.reshape(scale, [heads, 1], (heads, 1)))
    gate = graph.binary("Mul", a, graph.binary("Sub", scaled, graph.scalar(1.0, FLOAT)))
    gate = graph.transpose(graph.binary("Add", gate, graph.scalar(2.0, FLOAT)), 0, 2, 1, 3)
    table = graph.transpose(graph.cast(graph.external(numbers.TABLE, inputs.weights), FLOAT), 1, 0)
    return graph.binary("Mul", of_pairs(graph, table, rows_of(graph, inputs, numbers.distance_rows(encoding))), gate)


_GATE = ("weight", "bias")


def _sums_of_four(graph: GraphBuilder, value: ir.Value, shape: Shape) -> ir.Value:
    return graph.op("ReduceSum", value, graph.ints(1), shape=shape, keepdims=0)


def axis_buckets(graph: GraphBuilder, encoding: AxisBucketsEncoding, inputs: ScoreInputs) -> ir.Value:
    """A row of each axis' own table, added up."""
    total = None
    for axis, (name, buckets_of) in enumerate(zip(encoding.weight_shapes(inputs.spec), encoding.axes, strict=True)):
        queries, keys = (_on_axis(graph, ids, axis) for ids in (inputs.position_ids, inputs.key_position_ids))
        along = replace(inputs, position_ids=queries, key_position_ids=keys)
        rows = rows_of(graph, along, numbers.distance_rows(buckets_of))
        table = graph.cast(graph.external(name, inputs.weights), FLOAT)
        found = of_pairs(graph, graph.transpose(table, 1, 0), rows)
        total = found if total is None else graph.binary("Add", total, found)
    assert total is not None
    return _scaled(graph, total, encoding.scale)


def _on_axis(graph: GraphBuilder, ids: ir.Value, axis: int) -> ir.Value:
    return graph.op("Gather", ids, graph.scalar(axis, INT64), shape=shape_of(ids)[1:], axis=0)


def _scaled(graph: GraphBuilder, bias: ir.Value, scale: float) -> ir.Value:
    return bias if scale == 1 else graph.binary("Mul", bias, graph.scalar(scale, FLOAT))
