"""Layer: exporters/onnx. Which keys a query may see, by cache slot, bottom-right aligned."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from portpe.exporters.onnx.graph import BOOL, INT64, GraphBuilder, shape_of
from portpe.spec import AttentionSpec


def visible(
    graph: GraphBuilder, spec: AttentionSpec, attention_mask: ir.Value, query_slots: Callable[[], ir.Value]
) -> ir.Value:
    """Bool (batch, 1, 1 | sequence, total): True where the query may see the key's slot.

    ``attention_mask`` (batch, total); ``query_slots`` makes (sequence,) or (batch, sequence), where they matter.
    """
    kept = graph.unsqueeze(kept_keys(graph, attention_mask), 1, 2)
    if not spec.causal and spec.window_radius is None:
        return kept
    return graph.binary("And", kept, _by_slot(graph, spec, attention_mask, query_slots()))


def in_one_chunk(graph: GraphBuilder, chunk: int, queries: ir.Value, keys: ir.Value) -> ir.Value:
    """Bool (batch, 1, sequence, total): the positions (batch, sequence) and (batch, total) lie in one chunk."""
    size = graph.scalar(chunk, INT64)
    of_query, of_key = (graph.binary("Div", ids, size) for ids in (queries, keys))
    return graph.binary("Equal", graph.unsqueeze(of_query, 1, 3), graph.unsqueeze(of_key, 1, 2), dtype=BOOL)


def kept_keys(graph: GraphBuilder, attention_mask: ir.Value) -> ir.Value:
    """Bool (batch, total): the slots that hold no pad."""
    return graph.binary("Equal", attention_mask, graph.scalar(1, INT64), dtype=BOOL)


def last_slots(graph: GraphBuilder, hidden_states: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """(sequence,): the slots of this call's rows where they are the last of the mask's."""
    total = graph.size(attention_mask, 1)
    past = graph.binary("Sub", total, graph.size(hidden_states, 1))
    return graph.op("Range", past, total, graph.scalar(1, INT64), shape=shape_of(hidden_states)[1:2])


def in_every_row(graph: GraphBuilder, value: ir.Value, hidden_states: ir.Value) -> ir.Value:
    """(batch, 1, sequence, total): fused operators do not broadcast one row over all queries."""
    batch, one, rows, total = shape_of(value)
    sequence = shape_of(hidden_states)[1]
    if rows == sequence:
        return value
    target = graph.concat([graph.ints(1, 1), graph.sizes(hidden_states, 1), graph.ints(1)], axis=0, size=4)
    return graph.op("Expand", value, target, shape=(batch, one, sequence, total))


def _by_slot(graph: GraphBuilder, spec: AttentionSpec, attention_mask: ir.Value, query_slots: ir.Value) -> ir.Value:
    """Bool (sequence, total), or (batch, 1, sequence, total) where rows of a batch have slots of their own."""
    total, zero = graph.size(attention_mask, 1), graph.scalar(0, INT64)
    keys = graph.op("Range", zero, total, graph.scalar(1, INT64), shape=shape_of(attention_mask)[1:2])
    rank = len(shape_of(query_slots))
    queries = graph.unsqueeze(query_slots, *((1,) if rank == 1 else (1, 3)))
    if spec.causal and spec.window is None:
        return graph.binary("GreaterOrEqual", queries, keys, dtype=BOOL)
    behind = graph.binary("Sub", queries, keys)  # how many slots the key stands before the query
    if spec.window_radius is not None:
        return graph.binary(
            "LessOrEqual", graph.unary("Abs", behind), graph.scalar(spec.window_radius, INT64), dtype=BOOL
        )
    assert spec.window is not None
    allowed = graph.binary("GreaterOrEqual", behind, zero, dtype=BOOL)
    near = graph.binary("Less", behind, graph.scalar(spec.window, INT64), dtype=BOOL)
    return graph.binary("And", allowed, near)
