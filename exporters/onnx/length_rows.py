"""Layer: exporters/onnx. Cos and sin under a schedule that follows the length of each batch row, in the graph.

A schedule that switches once looks both table sets up. One that follows every token is evaluated in float64: products
of float32 would be off by 7e-3 at position 131072. Sine alone is asked for, since ONNX Runtime has had it in float64
for longer than cosine.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from portpe import length_laws
from portpe.encodings import RotaryEncoding
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.graph import BOOL, DOUBLE, FLOAT, INT64, GraphBuilder, shape_of
from portpe.tables import LONG, SHORT, sides


def lengths(graph: GraphBuilder, key_position_ids: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """(batch,): 1 + the largest key position that the mask keeps (see ``portpe.positions.sequence_lengths``)."""
    kept = graph.binary("Mul", key_position_ids, attention_mask)
    *axes, batch, _ = shape_of(kept)
    reduced = graph.ints(*(axis for axis in range(len(axes) + 2) if axis != len(axes)))
    largest = graph.op("ReduceMax", kept, reduced, shape=(batch,), keepdims=0)
    return graph.binary("Add", largest, graph.scalar(1, INT64))


def cos_sin(
    graph: GraphBuilder,
    encoding: RotaryEncoding,
    positions: ir.Value,
    row_lengths: ir.Value,
    tables: lookup.Tables,
) -> tuple[ir.Value, ir.Value]:
    """Cos and sin (batch, n, pairs) in float32 of positions (batch, n), magnitude and sign in them."""
    by_row = graph.unsqueeze(row_lengths, 1, 2)
    if sides(encoding):
        return _switched(graph, encoding, positions, by_row, tables)
    return _followed(graph, encoding, positions, by_row)


def _switched(
    graph: GraphBuilder, encoding: RotaryEncoding, positions: ir.Value, by_row: ir.Value, tables: lookup.Tables
) -> tuple[ir.Value, ir.Value]:
    """The long tables past the length of the switch, the short ones up to it."""
    last_short = sides(encoding)[SHORT]
    assert last_short is not None
    is_long = graph.binary("Greater", by_row, graph.scalar(last_short, INT64), dtype=BOOL)
    long, short = (lookup.cos_sin(graph, tables, positions, prefix=prefix) for prefix in (LONG, SHORT))
    cos, sin = (graph.where(is_long, *both) for both in zip(long, short, strict=True))
    return cos, sin


def _followed(
    graph: GraphBuilder, encoding: RotaryEncoding, positions: ir.Value, by_row: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Frequencies, angles and sines in float64, rounded to float32 once."""
    law = length_laws.of(encoding)
    lengths_64 = graph.cast(by_row, DOUBLE)
    one, magnitude = graph.scalar(1.0, DOUBLE), graph.scalar(encoding.magnitude, DOUBLE)
    ratio = graph.binary("Div", lengths_64, graph.scalar(float(law.trained), DOUBLE))
    if isinstance(law, length_laws.Rebased):
        grown = graph.binary("Mul", ratio, graph.scalar(law.factor, DOUBLE))
        stretch = graph.binary("Max", graph.binary("Sub", grown, graph.scalar(law.factor - 1, DOUBLE)), one)
        exponent = graph.binary("Mul", graph.unary("Log", stretch), _row(graph, "exponents", law.exponents))
        frequencies = graph.binary("Mul", _row(graph, "theta", law.theta), graph.unary("Exp", exponent))
    else:
        factor = graph.binary("Max", ratio, one)
        stretched = graph.binary("Div", _row(graph, "stretched", law.stretched), factor)
        frequencies = graph.binary("Add", _row(graph, "kept", law.kept), stretched)
        tenth = graph.binary("Mul", graph.unary("Log", factor), graph.scalar(0.1, DOUBLE))
        magnitude = graph.binary("Mul", graph.binary("Add", tenth, one), magnitude)
    places = graph.cast(graph.unsqueeze(_non_negative(graph, positions), 2), DOUBLE)
    angles = graph.binary("Mul", places, frequencies)
    quarter = graph.scalar(math.pi / 2, DOUBLE)
    cos, sin = graph.unary("Sin", graph.binary("Add", angles, quarter)), graph.unary("Sin", angles)
    if encoding.sign < 0:
        sin = graph.unary("Neg", sin)
    cos, sin = (graph.cast(graph.binary("Mul", part, magnitude), FLOAT) for part in (cos, sin))
    return cos, sin


def _row(graph: GraphBuilder, name: str, values: NDArray[np.float64]) -> ir.Value:
    return graph.inline(f"rotary_{name}", values, DOUBLE)


def _non_negative(graph: GraphBuilder, positions: ir.Value) -> ir.Value:
    """The positions themselves; a negative one asks for a row that does not exist, which raises on the CPU."""
    below = graph.cast(graph.binary("Less", positions, graph.scalar(0, INT64), dtype=BOOL), INT64)
    return graph.binary("Add", positions, lookup.rows(graph, graph.ints(0), below))
