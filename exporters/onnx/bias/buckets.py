"""Layer: exporters/onnx. T5's buckets: a trained number by distance and head."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from portpe.biases import buckets as numbers
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding
from portpe.exporters.onnx.bias.by_distance import of_pairs, rows_of
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, shape_of


def buckets(graph: GraphBuilder, encoding: BucketsEncoding, inputs: ScoreInputs) -> ir.Value:
    """The bucket of every distance up to ``max_distance`` stands in the graph: no logarithm is left to a runtime's
    rounding, and no length is fixed.
    """
    table = graph.cast(graph.external(numbers.TABLE, inputs.weights), FLOAT)
    found = of_pairs(graph, graph.transpose(table, 1, 0), rows_of(graph, inputs, numbers.distance_rows(encoding)))
    return _scaled(graph, found, encoding.scale)


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
