"""Layer: exporters/onnx. A trained number for each offset between cells of a grid, or a network of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from portpe.biases.grid import TABLE, network_inputs, resampling
from portpe.encodings import GridNetworkEncoding, GridPart, GridTableEncoding, GridVectorsEncoding
from portpe.exporters.onnx.bias.by_distance import of_pairs, pick
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import BOOL, FLOAT, INT64, GraphBuilder, shape_of

_OUTSIDE = 1 << 40  # of a coordinate that is no cell's: the row that follows from it is none of the table's


def grid_table(graph: GraphBuilder, encoding: GridTableEncoding, inputs: ScoreInputs) -> ir.Value:
    """Rows by differences of rows and columns; a position outside the grid has none, and the look-up raises."""
    table = graph.cast(graph.external(TABLE, inputs.weights), FLOAT)
    return of_pairs(graph, graph.transpose(table, 1, 0), _rows(graph, encoding, inputs))


def grid_network(graph: GraphBuilder, encoding: GridNetworkEncoding, inputs: ScoreInputs) -> ir.Value:
    """The network of every offset once, which does not depend on a call; then rows as of a table."""
    own = {
        name: graph.cast(graph.external(name, inputs.weights), FLOAT) for name in encoding.weight_shapes(inputs.spec)
    }
    hidden = graph.matmul(
        graph.inline("grid_network_inputs", network_inputs(encoding), FLOAT),
        graph.transpose(own["grid_in.weight"], 1, 0),
    )
    hidden = graph.unary("Relu", graph.binary("Add", hidden, own["grid_in.bias"]))
    table = graph.unary("Sigmoid", graph.matmul(own["grid_out.weight"], graph.transpose(hidden, 1, 0)))
    table = graph.binary("Mul", table, graph.scalar(16.0, FLOAT))
    return of_pairs(graph, table, _rows(graph, encoding.offsets, inputs))


def grid_vectors(graph: GraphBuilder, encoding: GridVectorsEncoding, inputs: ScoreInputs) -> ir.Value:
    """Each query's products with every row of both tables, looked up by the offsets of rows and of columns."""
    queries = _inside(graph, encoding, inputs.position_ids, _OUTSIDE)
    keys = _inside(graph, encoding, inputs.key_position_ids, -_OUTSIDE)
    apart, terms = _between(graph, queries, keys), []
    for axis, (name, end) in enumerate(zip(encoding.weight_shapes(inputs.spec), encoding.position_ends, strict=True)):
        along = graph.op("Gather", apart, graph.scalar(axis, INT64), shape=shape_of(apart)[1:], axis=0)
        rows = graph.binary("Add", along, graph.scalar(end - 1, INT64))
        table = graph.transpose(_resampled(graph, encoding, inputs, axis, name), 1, 0)
        products = graph.cast(graph.matmul(inputs.q(), table), FLOAT)
        terms.append(pick(graph, products, rows))
    height, width = terms
    return graph.binary("Add", height, width)


def _resampled(
    graph: GraphBuilder, encoding: GridVectorsEncoding, inputs: ScoreInputs, axis: int, name: str
) -> ir.Value:
    """A table (2 side - 1, head_dim) in the graph's type, of the grid's own size."""
    table, matrices = graph.external(name, inputs.weights), resampling(encoding)
    if matrices is None:
        return table
    matrix = graph.inline(f"grid_resampling_{axis}", matrices[axis], FLOAT)
    return graph.cast(graph.matmul(matrix, graph.cast(table, FLOAT)), graph.dtype)


def _rows(graph: GraphBuilder, encoding: GridTableEncoding, inputs: ScoreInputs) -> ir.Value:
    """int64 (batch, sequence, total)."""
    queries = _inside(graph, encoding, inputs.position_ids, _OUTSIDE)
    keys = _inside(graph, encoding, inputs.key_position_ids, -_OUTSIDE)
    if encoding.offsets == "absolute":
        return _weighted(graph, graph.unary("Abs", _between(graph, queries, keys)), encoding.width)
    # the difference of two weighted sums is the sum of two weighted differences
    queries, keys = (_weighted(graph, each, 2 * encoding.width - 1) for each in (queries, keys))
    rows = graph.binary("Add", _between(graph, queries, keys), graph.scalar(encoding.cells // 2, INT64))
    return _with_prefix(graph, encoding, rows) if encoding.prefix_tokens else rows


def _inside(graph: GraphBuilder, encoding: GridPart, ids: ir.Value, outside: int) -> ir.Value:
    """(2, batch, n), ``outside`` in place of every coordinate that is no cell's."""
    ends = graph.inline("grid_ends", np.array(encoding.position_ends).reshape(2, 1, 1), INT64)
    below = graph.binary("Less", ids, graph.scalar(0, INT64), dtype=BOOL)
    past = graph.binary("GreaterOrEqual", ids, ends, dtype=BOOL)
    return graph.where(graph.binary("Or", below, past), graph.scalar(outside, INT64), ids)


def _between(graph: GraphBuilder, queries: ir.Value, keys: ir.Value) -> ir.Value:
    """(..., sequence, total): what queries (..., sequence) have more than keys (..., total)."""
    last = len(shape_of(queries)) - 1
    return graph.binary("Sub", graph.unsqueeze(queries, last + 1), graph.unsqueeze(keys, last))


def _weighted(graph: GraphBuilder, values: ir.Value, stride: int) -> ir.Value:
    """Row times stride plus column, (...) of (2, ...)."""
    shape = shape_of(values)
    strides = np.array([stride, 1]).reshape(2, *[1] * (len(shape) - 1))
    product = graph.binary("Mul", values, graph.inline("grid_strides", strides, INT64))
    return graph.op("ReduceSum", product, graph.ints(0), shape=shape[1:], keepdims=0)


def _with_prefix(graph: GraphBuilder, encoding: GridTableEncoding, rows: ir.Value) -> ir.Value:
    """The rows (batch, sequence, total), those of the first token in place."""
    _, sequence, total = shape_of(rows)

    def prefix(axis: int, size: str | int) -> ir.Value:
        slots = graph.op("Range", graph.scalar(0, INT64), graph.size(rows, axis), graph.scalar(1, INT64), shape=(size,))
        return graph.binary("Less", slots, graph.scalar(encoding.prefix_tokens, INT64), dtype=BOOL)

    query, key = graph.unsqueeze(prefix(1, sequence), 1), prefix(2, total)
    cells = [graph.scalar(encoding.cells + more, INT64) for more in range(3)]
    rows = graph.where(query, cells[0], graph.where(key, cells[1], rows))
    return graph.where(graph.binary("And", query, key, dtype=BOOL), cells[2], rows)
