"""Layer: exporters/onnx. What each embedding-site encoding adds to hidden_states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from portpe.encodings import (
    EmbeddingEncoding,
    LearnedAxesEncoding,
    LearnedEncoding,
    LearnedGridEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
)
from portpe.exporters.onnx import grid, lookup
from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, shape_of
from portpe.exporters.onnx.weights import ExternalWeight

Weights = Mapping[str, ExternalWeight]


def addend(
    graph: GraphBuilder,
    encoding: EmbeddingEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,
    weights: Weights,
) -> ir.Value:
    """(batch, sequence, width), in float32 or in the graph's type."""
    return _ADDENDS[encoding.kind](graph, encoding, position_ids, tables, weights)


def _learned(
    graph: GraphBuilder,
    encoding: LearnedEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,  # noqa: ARG001 - every encoding has one signature
    weights: Weights,
) -> ir.Value:
    index = lookup.legal(graph, position_ids, encoding.rows - encoding.offset)
    if encoding.offset:
        index = graph.binary("Add", index, graph.scalar(encoding.offset, INT64))
    return lookup.rows(graph, graph.external("position_embedding.weight", weights), index)


def _sinusoidal(
    graph: GraphBuilder,
    encoding: SinusoidalEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,
    weights: Weights,  # noqa: ARG001 - every encoding has one signature
) -> ir.Value:
    limit = encoding.position_end
    if "embedding" in tables:  # as transformers makes it, columns in their final order
        index = lookup.legal(graph, position_ids, tables["embedding"].shape[0], limit)
        return lookup.rows(graph, lookup.table(graph, tables, "embedding"), index)
    cos, sin = lookup.cos_sin(graph, tables, position_ids, prefix="embedding_", limit=limit)
    return arranged(graph, encoding, cos, sin)


def arranged(graph: GraphBuilder, encoding: SinusoidalEncoding, cos: ir.Value, sin: ir.Value) -> ir.Value:
    """Channels in the encoding's order; an odd width drops the last cosine or ends with 0."""
    count, width, shape = encoding.frequencies, encoding.width, shape_of(cos)[:2]
    if encoding.order == "interleaved":
        pairs = graph.concat([graph.unsqueeze(sin, 3), graph.unsqueeze(cos, 3)], axis=3, size=2)
        return _first(graph, graph.reshape(pairs, [0, 0, 2 * count], (*shape, 2 * count)), width)
    first, second = (sin, cos) if encoding.order == "sin_cos" else (cos, sin)
    rows = graph.concat([first, _first(graph, second, min(count, width - count))], axis=2, size=min(2 * count, width))
    if width <= 2 * count:
        return rows
    pads = graph.ints(0, 0, 0, 0, 0, width - 2 * count)
    return graph.op("Pad", rows, pads, shape=(*shape, width))


def _first(graph: GraphBuilder, value: ir.Value, count: int) -> ir.Value:
    """The first channels."""
    size = shape_of(value)[2]
    assert isinstance(size, int)
    return value if size == count else graph.split(value, [count, size - count], axis=2)[0]


def _learned_axes(
    graph: GraphBuilder,
    encoding: LearnedAxesEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,  # noqa: ARG001 - every encoding has one signature
    weights: Weights,
) -> ir.Value:
    """Rows of the tables, added up in float32."""
    total = None
    for axis, rows in enumerate(encoding.rows):
        places = graph.op("Gather", position_ids, graph.scalar(axis, INT64), shape=shape_of(position_ids)[1:], axis=0)
        table = graph.external(f"position_embedding.axis_{axis}.weight", weights)
        index = lookup.legal(graph, places, rows - encoding.offset)
        if encoding.offset:
            index = graph.binary("Add", index, graph.scalar(encoding.offset, INT64))
        found = graph.cast(lookup.rows(graph, table, index), FLOAT)
        total = found if total is None else graph.binary("Add", total, found)
    assert total is not None
    return total


def _learned_grid(
    graph: GraphBuilder,
    encoding: LearnedGridEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,  # noqa: ARG001 - every encoding has one signature
    weights: Weights,
) -> ir.Value:
    return grid.addend(graph, encoding, position_ids, graph.external("position_embedding.weight", weights))


def _sinusoidal_grid(
    graph: GraphBuilder,
    encoding: SinusoidalGridEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,
    weights: Weights,
) -> ir.Value:
    half, places = encoding.half, grid.coordinates(graph, position_ids)
    if encoding.normalize:
        turned = grid.normalised(graph, encoding, position_ids)
        halves = [arranged(graph, half, graph.unary("Cos", angle), graph.unary("Sin", angle)) for angle in turned]
    else:
        halves = [_sinusoidal(graph, half, place, tables, weights) for place in places]
    ordered = halves if encoding.first == "row" else halves[::-1]
    both = graph.concat(ordered, axis=2, size=encoding.width)
    return grid.without_first(graph, both, position_ids, encoding.plain_tokens)


_ADDENDS: dict[str, Callable[[GraphBuilder, Any, ir.Value, lookup.Tables, Weights], ir.Value]] = {
    "learned": _learned,
    "learned_axes": _learned_axes,
    "learned_grid": _learned_grid,
    "sinusoidal": _sinusoidal,
    "sinusoidal_grid": _sinusoidal_grid,
}
