"""Layer: exporters/onnx. Distances between queries and keys, and what a table has for them."""

from __future__ import annotations

import onnx_ir as ir

from portpe.exporters.onnx.graph import GraphBuilder, shape_of


def key_minus_query(graph: GraphBuilder, position_ids: ir.Value, key_position_ids: ir.Value) -> ir.Value:
    """int64 (batch, sequence, total) from (batch, sequence) and (batch, total)."""
    return graph.binary("Sub", graph.unsqueeze(key_position_ids, 1), graph.unsqueeze(position_ids, 2))


def of_pairs(graph: GraphBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """(batch, heads, sequence, total): for each head the column of ``table`` (heads, columns) that ``index`` (batch,
    sequence, total) names.
    """
    heads, _ = shape_of(table)
    found = graph.op("Gather", table, index, shape=(heads, *shape_of(index)), axis=1)
    return graph.transpose(found, 1, 0, 2, 3)
