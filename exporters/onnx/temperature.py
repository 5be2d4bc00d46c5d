"""Layer: exporters/onnx. Query temperature: what multiplies a query by its own position."""

from __future__ import annotations

import onnx_ir as ir

from portpe.encodings.temperature import Temperature
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.graph import INT64, GraphBuilder


def multiplier(
    graph: GraphBuilder, temperature: Temperature, position_ids: ir.Value, tables: lookup.Tables
) -> ir.Value:
    """(batch, sequence) in float32: the row of the table at floor((position + offset) / step), divided as integers."""
    rows = lookup.table(graph, tables, "query_scale")
    end = tables["query_scale"].shape[0] * temperature.step - temperature.offset
    index = lookup.legal(graph, position_ids, end)
    if temperature.offset:
        index = graph.binary("Add", index, graph.scalar(temperature.offset, INT64))
    if temperature.step > 1:
        index = graph.binary("Div", index, graph.scalar(temperature.step, INT64))
    return lookup.rows(graph, rows, index)
