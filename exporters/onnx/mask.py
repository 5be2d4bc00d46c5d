"""Layer: exporters/onnx. Which keys a query may see, by cache slot, bottom-right aligned."""

from __future__ import annotations

import onnx_ir as ir

from portpe.exporters.onnx.graph import BOOL, INT64, GraphBuilder, shape_of
from portpe.spec import AttentionSpec


def visible(graph: GraphBuilder, spec: AttentionSpec, hidden_states: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """Bool (batch, 1, 1 | sequence, total): True where the query at slot past + row may see the key's slot."""
    kept = graph.binary("Equal", attention_mask, graph.scalar(1, INT64), dtype=BOOL)
    kept = graph.unsqueeze(kept, 1, 2)
    if not spec.causal and spec.window_radius is None:
        return kept
    return graph.binary("And", kept, _by_slot(graph, spec, hidden_states, attention_mask))


def in_every_row(graph: GraphBuilder, visible: ir.Value, hidden_states: ir.Value) -> ir.Value:
    """Bool (batch, 1, sequence, total): fused operators do not broadcast one row over all queries."""
    batch, one, rows, total = shape_of(visible)
    sequence = shape_of(hidden_states)[1]
    if rows == sequence:
        return visible
    size = graph.op("Shape", hidden_states, shape=(1,), dtype=INT64, start=1, end=2)
    target = graph.concat([graph.ints(1, 1), size, graph.ints(1)], axis=0, size=4)
    return graph.op("Expand", visible, target, shape=(batch, one, sequence, total))


def _by_slot(graph: GraphBuilder, spec: AttentionSpec, hidden_states: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """Bool (sequence, total)."""
    sequence_size, total_size = shape_of(hidden_states)[1], shape_of(attention_mask)[1]
    total = graph.size(attention_mask, 1)
    past = graph.binary("Sub", total, graph.size(hidden_states, 1))
    zero, one = graph.scalar(0, INT64), graph.scalar(1, INT64)
    keys = graph.op("Range", zero, total, one, shape=(total_size,))
    queries = graph.op("Range", past, total, one, shape=(sequence_size,))
    behind = graph.binary("Sub", graph.unsqueeze(queries, 1), keys)  # how many slots the key stands before the query
    if spec.window_radius is not None:
        return graph.binary(
            "LessOrEqual", graph.unary("Abs", behind), graph.scalar(spec.window_radius, INT64), dtype=BOOL
        )
    allowed = graph.binary("GreaterOrEqual", behind, zero, dtype=BOOL)
    if spec.window is not None:
        near = graph.binary("Less", behind, graph.scalar(spec.window, INT64), dtype=BOOL)
        allowed = graph.binary("And", allowed, near)
    return allowed
