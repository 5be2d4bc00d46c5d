"""Layer: exporters/onnx. Patches of an image: a table resampled in the graph to the image's own grid, and sinusoids.

No Resize: one graph serves a batch whose images differ in size. Distances are formed as whole numbers and divided once
(see ``portpe.grids``); the product of both axes' weights with the table is one MatMul.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from portpe import grids, schedules
from portpe.encodings import LearnedGridEncoding, SinusoidalGridEncoding
from portpe.exporters.onnx.graph import BOOL, FLOAT, INT64, Dim, GraphBuilder, shape_of


def addend(graph: GraphBuilder, encoding: LearnedGridEncoding, position_ids: ir.Value, table: ir.Value) -> ir.Value:
    """(batch, sequence, width) in float32; position_ids (2, batch, sequence), table (rows, width)."""
    _, batch, sequence = shape_of(position_ids)
    places, sizes = (
        [graph.unsqueeze(each, 2) for each in coordinates(graph, value)]
        for value in (position_ids, _sizes(graph, position_ids))
    )
    if encoding.square:
        sizes = [graph.binary("Max", sizes[0], sizes[1])] * 2
    by_row, by_column = (
        _axis_weights(graph, encoding, place, each, count)
        for place, each, count in zip(places, sizes, encoding.grid, strict=True)
    )
    rows, columns = encoding.grid
    product = graph.binary("Mul", graph.unsqueeze(by_row, 3), graph.unsqueeze(by_column, 2))
    on_grid = graph.reshape(product, [0, 0, rows * columns], (batch, sequence, rows * columns))
    weights = _with_prefix(graph, encoding, on_grid, position_ids)
    return graph.matmul(_refused(graph, weights, position_ids), graph.cast(table, FLOAT))


def coordinates(graph: GraphBuilder, value: ir.Value) -> list[ir.Value]:
    """Both coordinates (batch, n) of (2, batch, n)."""
    _, *shape = shape_of(value)
    parts = graph.split(value, [1, 1], axis=0)
    return [graph.op("Squeeze", part, graph.ints(0), shape=tuple(shape)) for part in parts]


def normalised(graph: GraphBuilder, encoding: SinusoidalGridEncoding, position_ids: ir.Value) -> list[ir.Value]:
    """The angles (batch, sequence, frequencies) of both coordinates, each a part of a turn of its image, in float32."""
    moved = graph.binary("Add", graph.cast(position_ids, FLOAT), graph.scalar(grids.start(encoding), FLOAT))
    turned = graph.binary("Mul", moved, graph.scalar(2 * math.pi, FLOAT))
    sizes = graph.binary("Add", graph.cast(_sizes(graph, position_ids), FLOAT), graph.scalar(grids.EPSILON, FLOAT))
    parts = _refused(graph, graph.binary("Div", turned, sizes), position_ids)
    frequencies = graph.inline("grid_frequencies", schedules.sinusoidal(encoding.half), FLOAT)
    return [graph.binary("Mul", graph.unsqueeze(part, 2), frequencies) for part in coordinates(graph, parts)]


def without_first(graph: GraphBuilder, value: ir.Value, position_ids: ir.Value, count: int) -> ir.Value:
    """(batch, sequence, width) with 0 for the first ``count`` tokens."""
    if not count:
        return value
    kept = graph.binary("GreaterOrEqual", _tokens(graph, position_ids), graph.scalar(count, INT64), dtype=BOOL)
    return graph.binary("Mul", value, graph.cast(kept, FLOAT))


def _tokens(graph: GraphBuilder, position_ids: ir.Value) -> ir.Value:
    """(sequence, 1): the place of each token in its sequence."""
    length, sequence = graph.size(position_ids, 2), shape_of(position_ids)[2]
    order = graph.op("Range", graph.scalar(0, INT64), length, graph.scalar(1, INT64), shape=(sequence,))
    return graph.unsqueeze(order, 1)


def _sizes(graph: GraphBuilder, position_ids: ir.Value) -> ir.Value:
    """(2, batch, 1): the grid of each image, the largest coordinate + 1."""
    _, batch, _ = shape_of(position_ids)
    largest = graph.op("ReduceMax", position_ids, graph.ints(2), shape=(2, batch, 1), keepdims=1)
    return graph.binary("Add", largest, graph.scalar(1, INT64))


def _axis_weights(
    graph: GraphBuilder, encoding: LearnedGridEncoding, places: ir.Value, size: ir.Value, count: int
) -> ir.Value:
    """(batch, sequence, count) of places (batch, sequence, 1) and the image's size (batch, 1, 1)."""
    past = grids.overhang(encoding)
    one, two = graph.scalar(1, INT64), graph.scalar(2, INT64)
    taps = graph.inline(f"taps_{past}_{count}", np.arange(-past, count + past), INT64)
    if encoding.align_corners:
        step = graph.binary("Max", graph.binary("Sub", size, one), one)
        start, each = graph.binary("Mul", places, graph.scalar(count - 1, INT64)), step
    elif encoding.resize == "nearest":
        each = step = graph.binary("Mul", size, two)
        start = graph.binary("Add", graph.binary("Mul", places, graph.scalar(2 * count, INT64)), one)
        start = graph.binary("Sub", start, size)
    else:
        centre = graph.binary("Add", graph.binary("Mul", places, two), one)
        start = graph.binary("Sub", graph.binary("Mul", centre, graph.scalar(count, INT64)), size)
        each = step = graph.binary("Mul", size, two)
        if encoding.antialias:
            step = graph.binary("Mul", graph.binary("Max", size, graph.scalar(count, INT64)), two)
        elif encoding.resize == "bilinear":
            last = graph.binary("Mul", step, graph.scalar(count - 1, INT64))
            start = graph.binary("Min", graph.binary("Max", start, graph.scalar(0, INT64)), last)
    apart = graph.unary("Abs", graph.binary("Sub", start, graph.binary("Mul", each, taps)))
    weights = _kernel(graph, encoding, graph.binary("Div", graph.cast(apart, FLOAT), graph.cast(step, FLOAT)))
    if encoding.antialias:
        shape = (*shape_of(weights)[:2], 1)
        total = graph.op("ReduceSum", weights, graph.ints(2), shape=shape, keepdims=1)
        return graph.binary("Div", weights, total)
    if not past:
        return weights
    return graph.matmul(weights, graph.inline(f"fold_{past}_{count}", grids.fold(count, past), FLOAT))


def _kernel(graph: GraphBuilder, encoding: LearnedGridEncoding, distance: ir.Value) -> ir.Value:
    def number(value: float) -> ir.Value:
        return graph.scalar(value, FLOAT)

    zero, one, two = number(0.0), number(1.0), number(2.0)
    if encoding.resize == "nearest":
        return graph.cast(graph.binary("Less", distance, number(0.5), dtype=BOOL), FLOAT)
    if encoding.resize == "bilinear":
        return graph.binary("Max", graph.binary("Sub", one, distance), zero)
    a = grids.sharpness(encoding)
    square = graph.binary("Mul", distance, distance)
    linear = graph.binary("Sub", graph.binary("Mul", distance, number(a + 2)), number(a + 3))
    near = graph.binary("Add", graph.binary("Mul", linear, square), one)
    to_two = graph.binary("Sub", distance, two)
    beyond = graph.binary("Mul", graph.binary("Sub", distance, one), number(a))
    far = graph.binary("Mul", beyond, graph.binary("Mul", to_two, to_two))
    outer = graph.where(graph.binary("Less", distance, two, dtype=BOOL), far, zero)
    return graph.where(graph.binary("LessOrEqual", distance, one, dtype=BOOL), near, outer)


def _with_prefix(
    graph: GraphBuilder, encoding: LearnedGridEncoding, on_grid: ir.Value, position_ids: ir.Value
) -> ir.Value:
    """(batch, sequence, table rows): the first tokens take the table's first rows, those after them nothing."""
    prefix, plain = encoding.prefix_tokens, encoding.plain_tokens
    if not prefix + plain:
        return on_grid
    batch, sequence, patches = shape_of(on_grid)
    kept = without_first(graph, on_grid, position_ids, prefix + plain)
    if not prefix:
        return kept
    tokens = _tokens(graph, position_ids)
    own = graph.inline(f"prefix_{prefix}", np.arange(prefix), INT64)
    first = graph.cast(graph.binary("Equal", tokens, own, dtype=BOOL), FLOAT)
    target = graph.concat([graph.sizes(on_grid, 0, 2), graph.ints(prefix)], axis=0, size=3)
    spread = graph.op("Expand", first, target, shape=(batch, sequence, prefix))
    width: Dim = prefix + patches if isinstance(patches, int) else patches
    return graph.concat([spread, kept], axis=2, size=width)


def _refused(graph: GraphBuilder, weights: ir.Value, position_ids: ir.Value) -> ir.Value:
    """The weights; a look-up of the lowest coordinate raises where it is below 0."""
    lowest = graph.op("ReduceMin", position_ids, graph.ints(0, 1, 2), shape=(1,), keepdims=0)
    below = graph.binary("Less", lowest, graph.scalar(0, INT64), dtype=BOOL)
    index = graph.where(below, graph.ints(1), graph.ints(0))
    one = graph.op("Gather", graph.inline("legal", np.ones(1), FLOAT), index, shape=(1,), axis=0)
    return graph.binary("Mul", weights, one)
