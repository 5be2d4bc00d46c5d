"""Layer: exporters/onnx. Rows of tables by distance, and products with every row read at the rows that these choose.

Queries (or keys) are multiplied with every row once, and the products are looked up: no vector is repeated for each
pair of query and key. Gathers go by batch and query, with the heads innermost, so that one index serves all of them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from portpe.biases.by_distance import DistanceRows
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import INT64, GraphBuilder, shape_of


def distance(graph: GraphBuilder, inputs: ScoreInputs) -> ir.Value:
    """Int64 (batch, sequence, total): key position minus query position."""
    keys, queries = graph.unsqueeze(inputs.key_position_ids, 1), graph.unsqueeze(inputs.position_ids, 2)
    return graph.binary("Sub", keys, queries)


def rows_of(graph: GraphBuilder, inputs: ScoreInputs, rows: DistanceRows) -> ir.Value:
    """Int64 (batch, sequence, total): the row of each query and key."""
    ends = (graph.scalar(end, INT64) for end in (rows.first, rows.last))
    apart = distance(graph, inputs)
    index = graph.op("Clip", apart, *ends, shape=shape_of(apart))
    count = len(rows.rows)
    if np.array_equal(rows.rows, np.arange(count)):
        return graph.binary("Sub", index, graph.scalar(rows.first, INT64))
    if np.array_equal(rows.rows, np.arange(count)[::-1]):
        return graph.binary("Sub", graph.scalar(rows.last, INT64), index)
    index = graph.binary("Sub", index, graph.scalar(rows.first, INT64))
    table = graph.inline(f"distance_rows_{count}", rows.rows, INT64)
    return graph.op("Gather", table, index, shape=shape_of(index), axis=0)


def of_pairs(graph: GraphBuilder, table: ir.Value, rows: ir.Value) -> ir.Value:
    """(batch, heads, n, m) from a table (heads, rows) and rows (batch, n, m): each pair's number, by head."""
    heads, _ = shape_of(table)
    found = graph.op("Gather", table, rows, shape=(heads, *shape_of(rows)), axis=1)
    return graph.transpose(found, 1, 0, 2, 3)


def pick(graph: GraphBuilder, products: ir.Value, rows: ir.Value) -> ir.Value:
    """(batch, heads, n, m) from products (batch, heads, n, rows) and rows (batch, n, m): for each pair the product with
    the row that is theirs.
    """
    batch, heads, n, _ = shape_of(products)
    by_row = graph.transpose(products, 0, 2, 3, 1)
    picked = graph.op(
        "GatherND",
        by_row,
        graph.unsqueeze(rows, 3),
        shape=(batch, n, shape_of(rows)[2], heads),
        batch_dims=2,
    )
    return graph.transpose(picked, 0, 3, 1, 2)
