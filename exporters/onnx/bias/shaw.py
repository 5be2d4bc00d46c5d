"""Layer: exporters/onnx. Shaw: a trained vector a distance, for keys and for values."""

from __future__ import annotations

import onnx_ir as ir

from portpe.biases.by_distance import distance_rows
from portpe.encodings import ShawEncoding
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.bias.by_distance import pick, rows_of
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of


def shaw(graph: GraphBuilder, encoding: ShawEncoding, inputs: ScoreInputs) -> ir.Value:
    """(q . K[row of the distance]) * scale; q is scaled first, as for its product with the keys."""
    q = graph.binary("Mul", inputs.q(), graph.scalar(inputs.spec.scale, graph.dtype))
    table = graph.transpose(graph.external("relative_key.weight", inputs.weights), 1, 0)
    products = graph.cast(graph.matmul(q, table), FLOAT)
    if encoding.beyond == "nothing":
        *front, count = shape_of(products)
        products = graph.op("Pad", products, graph.ints(*[0] * 7, 1), shape=(*front, int(count) + 1))
    return pick(graph, products, rows_of(graph, inputs, distance_rows(encoding)))


def shaw_values(graph: GraphBuilder, encoding: ShawEncoding, probs: ir.Value, inputs: ScoreInputs) -> ir.Value:
    """Sum over keys of p V[row]: a product for each query, (heads, total) by (total, v_head_dim)."""
    table = graph.cast(graph.external("relative_value.weight", inputs.weights), FLOAT)
    if encoding.beyond == "nothing":
        count, width = shape_of(table)
        table = graph.op("Pad", table, graph.ints(0, 0, 1, 0), shape=(int(count) + 1, width))
    values = lookup.rows(graph, table, rows_of(graph, inputs, distance_rows(encoding)))
    by_query = graph.transpose(graph.cast(probs, FLOAT), 0, 2, 1, 3)
    return graph.transpose(graph.matmul(by_query, values), 0, 2, 1, 3)
