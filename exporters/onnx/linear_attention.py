"""Layer: exporters/onnx. Linear attention: features in place of a softmax, their normaliser, and the quotient.

Everything here is float32 whatever the graph's type: in float16 the feature of -18 is 0, and a row whose features are
all 0 has no quotient.
"""

from __future__ import annotations

import onnx_ir as ir

from portpe.exporters.onnx.graph import BOOL, FLOAT, GraphBuilder, shape_of


def features(graph: GraphBuilder, value: ir.Value) -> ir.Value:
    """Elu(x) + 1 as exp(min(x, 0)) + max(x, 0): the operator Elu, plus 1, would lose the digits of small features."""
    value = graph.cast(value, FLOAT)
    falling = graph.unary("Exp", graph.binary("Min", value, graph.scalar(0.0, FLOAT)))
    return graph.binary("Add", falling, graph.unary("Relu", value))


def normaliser(graph: GraphBuilder, q: ir.Value, k: ir.Value, visible: ir.Value) -> ir.Value:
    """(batch, heads, sequence, 1): the sum of q . k over the keys that are seen, q and k features before rotation.

    Keys are summed first, once a kv head: the mask (batch, 1, 1 | sequence, total) is a factor of a product.
    """
    batch, heads, sequence, width = shape_of(q)
    kv_heads = shape_of(k)[1]
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    assert isinstance(width, int)
    group = heads // kv_heads
    summed = graph.matmul(graph.cast(visible, FLOAT), k)
    if group == 1:
        return _over_channels(graph, graph.binary("Mul", q, summed))
    grouped = graph.reshape(q, [0, kv_heads, group, -1, width], (batch, kv_heads, group, sequence, width))
    total = _over_channels(graph, graph.binary("Mul", grouped, graph.unsqueeze(summed, 2)))
    return graph.reshape(total, [0, heads, -1, 1], (batch, heads, sequence, 1))


def weights(graph: GraphBuilder, scores: ir.Value, total: ir.Value, visible: ir.Value) -> ir.Value:
    """Scores / normaliser where a key is seen, else 0; a row without any is 0."""
    zero = graph.scalar(0.0, FLOAT)
    empty = graph.binary("Equal", total, zero, dtype=BOOL)
    divided = graph.binary("Div", scores, graph.where(empty, graph.scalar(1.0, FLOAT), total))
    return graph.where(visible, divided, zero)


def _over_channels(graph: GraphBuilder, value: ir.Value) -> ir.Value:
    last = len(shape_of(value)) - 1
    return graph.op("ReduceSum", value, graph.ints(last), shape=(*shape_of(value)[:-1], 1), keepdims=1)
