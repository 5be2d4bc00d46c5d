"""Layer: exporters/onnx. DeBERTa: projected vectors of the distance meet queries and keys.

What follows from the table and the projections alone is made in the graph, from the weights as they are stored; a
runtime may fold it.
"""

from __future__ import annotations

import onnx_ir as ir

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DebertaEncoding
from portpe.exporters.onnx import norm
from portpe.exporters.onnx.bias.by_distance import pick, rows_of
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of
from portpe.layer_parts import Norm


def deberta(graph: GraphBuilder, encoding: DebertaEncoding, inputs: ScoreInputs) -> ir.Value:
    """(q_i . K[r] + k_j . Q[r]) * scale; queries and keys are scaled first."""
    rows = rows_of(graph, inputs, distance_rows(encoding))
    table = _table(graph, encoding, inputs)
    terms = []
    if encoding.content_to_position:
        products = _products(graph, encoding, inputs, inputs.q(), table, "key")
        terms.append(pick(graph, products, rows))
    if encoding.position_to_content:
        products = _products(graph, encoding, inputs, inputs.k(), table, "query")
        by_key = pick(graph, products, graph.transpose(rows, 0, 2, 1))
        terms.append(graph.transpose(by_key, 0, 1, 3, 2))
    return terms[0] if len(terms) == 1 else graph.binary("Add", terms[0], terms[1])


def _table(graph: GraphBuilder, encoding: DebertaEncoding, inputs: ScoreInputs) -> ir.Value:
    """(1, rows, hidden), normed where the encoding norms it."""
    table = graph.unsqueeze(graph.external("relative_embedding.weight", inputs.weights), 0)
    if encoding.norm_eps is None:
        return table
    kind = Norm(kind="layer", eps=encoding.norm_eps, bias=True)
    return norm.normalize(graph, table, kind, "relative_norm", inputs.weights)


def _products(
    graph: GraphBuilder, encoding: DebertaEncoding, inputs: ScoreInputs, x: ir.Value, table: ir.Value, part: str
) -> ir.Value:
    """(batch, heads, n, rows) in float32: queries or keys x (batch, heads | kv_heads, n, head_dim) times every row."""
    spec = inputs.spec
    if encoding.share_projections:
        name, bias = f"{part[0]}_proj", getattr(spec.biases, part[0])
    else:
        name, bias = f"position_{part}_proj", part == "query" or encoding.key_bias
    projected = inputs.project(table, name, bias)
    heads, rows, width = spec.num_heads, 2 * encoding.span, spec.head_dim
    by_head = graph.reshape(projected, [1, -1, heads, width], (1, rows, heads, width))
    by_head = graph.transpose(by_head, 0, 2, 3, 1)
    x = x if spec.scale == 1 else graph.binary("Mul", x, graph.scalar(spec.scale, graph.dtype))
    batch, kv_heads, n, _ = shape_of(x)
    if kv_heads == heads:
        return graph.cast(graph.matmul(x, by_head), FLOAT)
    assert isinstance(kv_heads, int)
    group = heads // kv_heads  # whose rows stand side by side, so that no key is repeated
    side_by_side = graph.reshape(by_head, [1, kv_heads, group, width, rows], (1, kv_heads, group, width, rows))
    side_by_side = graph.transpose(side_by_side, 0, 1, 3, 2, 4)
    side_by_side = graph.reshape(side_by_side, [1, kv_heads, width, -1], (1, kv_heads, width, group * rows))
    products = graph.reshape(graph.matmul(x, side_by_side), [0, 0, 0, group, rows], (batch, kv_heads, n, group, rows))
    products = graph.transpose(products, 0, 1, 3, 2, 4)
    return graph.cast(graph.reshape(products, [0, heads, -1, rows], (batch, heads, n, rows)), FLOAT)
