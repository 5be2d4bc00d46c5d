"""Layer: exporters/onnx. The gate on what the heads give, before o_proj, from primitives in float32."""

from __future__ import annotations

import onnx_ir as ir

from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of
from portpe.layer_parts import OutputGate
from portpe.spec import AttentionSpec

_OPERATORS = {"sigmoid": "Sigmoid", "softplus": "Softplus"}


def gated(graph: GraphBuilder, spec: AttentionSpec, gate: OutputGate, context: ir.Value, rows: ir.Value) -> ir.Value:
    """``context`` in tokens (batch, sequence, heads * v_head_dim) times the activation of ``rows``, which gate_proj
    gives (batch, sequence, heads * v_head_dim | heads). The result has the graph's type.
    """
    shape = shape_of(context)
    factor = graph.unary(_OPERATORS[gate.activation], graph.cast(rows, FLOAT))
    wide = graph.cast(context, FLOAT)
    if gate.scope == "channel":
        return graph.cast(graph.binary("Mul", wide, factor), graph.dtype)
    heads = spec.num_heads
    by_head = graph.reshape(wide, [0, 0, heads, spec.v_head_dim], (*shape[:2], heads, spec.v_head_dim))
    product = graph.binary("Mul", by_head, graph.unsqueeze(factor, 3))
    return graph.cast(graph.reshape(product, [0, 0, heads * spec.v_head_dim], shape), graph.dtype)
