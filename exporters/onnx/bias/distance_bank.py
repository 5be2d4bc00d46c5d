"""Layer: exporters/onnx. A bank of profiles over the distance, mixed by each token for itself."""

from __future__ import annotations

import onnx_ir as ir

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DistanceBankEncoding
from portpe.exporters.onnx import temperature
from portpe.exporters.onnx.bias.by_distance import pick, rows_of
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of


def distance_bank(graph: GraphBuilder, encoding: DistanceBankEncoding, inputs: ScoreInputs) -> ir.Value:
    """Each token's products with the whole bank, and a 0 behind them, looked up by distance."""
    states = _states(graph, encoding, inputs)
    bank = graph.external("distance_bank", inputs.weights)
    products = graph.cast(graph.matmul(states, bank), FLOAT)
    pads = graph.ints(0, 0, 0, 0, 0, 0, 0, 1)
    products = graph.op("Pad", products, pads, shape=(*shape_of(products)[:3], encoding.extent + 1))
    bias = pick(graph, products, rows_of(graph, inputs, distance_rows(encoding)))
    if not encoding.tempered:
        return bias
    assert inputs.spec.query_scale is not None
    factor = temperature.multiplier(graph, inputs.spec.query_scale, inputs.position_ids, inputs.tables)
    return graph.binary("Mul", bias, graph.unsqueeze(factor, 1, 3))


def _states(graph: GraphBuilder, encoding: DistanceBankEncoding, inputs: ScoreInputs) -> ir.Value:
    """(batch, heads, sequence, width) in the graph's type."""
    projected = inputs.project(inputs.hidden, "relative_state_proj", False)
    batch, sequence, _ = shape_of(projected)
    heads, width = inputs.spec.num_heads, encoding.width
    states = graph.reshape(projected, [0, -1, heads, width], (batch, sequence, heads, width))
    if encoding.clip is not None:
        scale = graph.cast(graph.external("relative_state_scale", inputs.weights), FLOAT)
        states = graph.binary("Mul", graph.cast(states, FLOAT), scale)
        states = graph.cast(graph.binary("Mul", states, _shortened(graph, states, encoding.clip)), graph.dtype)
    return graph.transpose(states, 0, 2, 1, 3)


def _shortened(graph: GraphBuilder, states: ir.Value, clip: float) -> ir.Value:
    """min(1, clip / (length + 1e-6)) over the last axis, which stays as 1."""
    squares = graph.binary("Mul", states, states)
    total = graph.op("ReduceSum", squares, graph.ints(3), shape=(*shape_of(states)[:3], 1), keepdims=1)
    length = graph.binary("Add", graph.unary("Sqrt", total), graph.scalar(1e-6, FLOAT))
    return graph.binary("Min", graph.binary("Div", graph.scalar(clip, FLOAT), length), graph.scalar(1.0, FLOAT))
