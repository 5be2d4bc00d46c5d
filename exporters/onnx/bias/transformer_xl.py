"""Layer: exporters/onnx. Transformer-XL: projected sinusoids of the distance, with biases of their own.

The sinusoid is made once for each distance from the nearest that a query sees to the farthest, of all batch rows,
projected, and multiplied with every query; the products are then looked up by distance. So the cost is that of a second
product with keys, twice as many of them, and positions may be any.
"""

from __future__ import annotations

import onnx_ir as ir

from portpe.encodings import TransformerXlEncoding
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.bias.by_distance import distance, pick
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, shape_of

DISTANCES = "distances"


def transformer_xl(graph: GraphBuilder, encoding: TransformerXlEncoding, inputs: ScoreInputs) -> ir.Value:
    """(u . k_j + (q_i + v) . W R(i - j)) * scale."""
    spec = inputs.spec
    heads = spec.num_heads, spec.head_dim
    behind = _seen(graph, encoding, inputs)
    nearest, farthest = (graph.op(op, behind, shape=(), keepdims=0) for op in ("ReduceMin", "ReduceMax"))
    end = graph.binary("Add", farthest, graph.scalar(1, INT64))
    distances = graph.op("Range", nearest, end, graph.scalar(1, INT64), shape=(DISTANCES,))
    sinusoid = graph.cast(_sinusoid(graph, encoding, inputs, distances), graph.dtype)
    projected = inputs.project(graph.unsqueeze(sinusoid, 0), "relative_proj", False)
    by_head = graph.reshape(projected, [1, -1, *heads], (1, DISTANCES, *heads))
    position = graph.reshape(
        graph.external("position_bias", inputs.weights),
        [spec.num_heads, 1, spec.head_dim],
        (spec.num_heads, 1, spec.head_dim),
    )
    q = graph.binary("Add", inputs.q(), position)
    q = q if spec.scale == 1 else graph.binary("Mul", q, graph.scalar(spec.scale, graph.dtype))
    products = graph.cast(graph.matmul(q, graph.transpose(by_head, 0, 2, 3, 1)), FLOAT)
    of_positions = pick(graph, products, graph.binary("Sub", behind, nearest))
    return graph.binary("Add", of_positions, _of_keys(graph, inputs))


def _seen(graph: GraphBuilder, encoding: TransformerXlEncoding, inputs: ScoreInputs) -> ir.Value:
    """Int64 (batch, sequence, total): query position minus key position, clamped; 0 where the key is hidden.

    A hidden key may stand anywhere (the free slots of a buffer have position 0), and need not be provided for.
    """
    behind = graph.unary("Neg", distance(graph, inputs))
    visible = inputs.visible()
    batch, _, rows, total = shape_of(visible)
    visible = graph.op("Squeeze", visible, graph.ints(1), shape=(batch, rows, total))
    behind = graph.where(visible, behind, graph.scalar(0, INT64))
    if encoding.clamp is None:
        return behind
    ends = (graph.scalar(end, INT64) for end in (-encoding.clamp, encoding.clamp))
    return graph.op("Clip", behind, *ends, shape=shape_of(behind))


def _sinusoid(
    graph: GraphBuilder, encoding: TransformerXlEncoding, inputs: ScoreInputs, distances: ir.Value
) -> ir.Value:
    """(distances, width) in float32."""
    width = inputs.spec.hidden_size
    cos, sin = lookup.cos_sin(graph, inputs.tables, graph.unary("Abs", distances), prefix="relative_")
    sin = graph.binary("Mul", sin, graph.unsqueeze(graph.cast(graph.unary("Sign", distances), FLOAT), 1))
    if encoding.order == "sin_cos":
        return graph.concat([sin, cos], axis=1, size=width)
    pairs = graph.concat([graph.unsqueeze(sin, 2), graph.unsqueeze(cos, 2)], axis=2, size=2)
    return graph.reshape(pairs, [-1, width], (DISTANCES, width))


def _of_keys(graph: GraphBuilder, inputs: ScoreInputs) -> ir.Value:
    """(batch, heads, 1, total): u . k_j * scale; the heads of a group are columns of one product.

    Both factors have four dimensions: ONNX Runtime 1.32 crashes where it fuses the Transpose of a float16 factor into a
    product with one of three.
    """
    spec, k = inputs.spec, inputs.k()
    batch, kv_heads, total, width = shape_of(k)
    assert isinstance(kv_heads, int)
    group = spec.num_heads // kv_heads
    content = graph.cast(graph.external("content_bias", inputs.weights), FLOAT)  # CPUs multiply no float16
    content = graph.binary("Mul", content, graph.scalar(spec.scale, FLOAT))
    content = graph.reshape(content, [1, kv_heads, group, spec.head_dim], (1, kv_heads, group, width))
    content = graph.transpose(graph.cast(content, graph.dtype), 0, 1, 3, 2)
    products = graph.transpose(graph.matmul(k, content), 0, 1, 3, 2)
    products = graph.reshape(products, [0, spec.num_heads, 1, -1], (batch, spec.num_heads, 1, total))
    return graph.cast(products, FLOAT)
