"""Layer: exporters/onnx. Rows of a position table, by integer positions.

A position that no row serves has to raise. Gather wraps negative indices to the table's end without a word, so they
are mapped past it first: there Gather raises on CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.exporters.onnx.graph import BOOL, FLOAT, INT64, GraphBuilder, shape_of
from portpe.tables import TABLE_STEP

Tables = Mapping[str, NDArray[Any]]


def table(graph: GraphBuilder, tables: Tables, name: str) -> ir.Value:
    """The table as an inline float32 initializer of its own name. Raises SpecError where it is missing."""
    if name not in tables:
        raise SpecError(f"tables must hold {name}, got {', '.join(tables) or 'none'}")
    return graph.inline(name, tables[name], FLOAT)


def legal(graph: GraphBuilder, positions: ir.Value, end: int, limit: int | None = None) -> ir.Value:
    """The positions, with every one below 0 (or from ``limit`` on, where that is short of ``end``) moved to ``end``."""
    outside = graph.binary("Less", positions, graph.scalar(0, INT64), dtype=BOOL)
    if limit is not None and limit < end:
        past = graph.binary("GreaterOrEqual", positions, graph.scalar(limit, INT64), dtype=BOOL)
        outside = graph.binary("Or", outside, past)
    return graph.where(outside, graph.scalar(end, INT64), positions)


def rows(graph: GraphBuilder, source: ir.Value, indices: ir.Value) -> ir.Value:
    """(..., width): the row of ``source`` for each index."""
    return graph.op("Gather", source, indices, shape=(*shape_of(indices), *shape_of(source)[1:]), axis=0)


def cos_sin(
    graph: GraphBuilder, tables: Tables, positions: ir.Value, *, prefix: str = "", limit: int | None = None
) -> tuple[ir.Value, ir.Value]:
    """Cos and sin in float32, (..., pairs), from full tables where they are given, else from two-level ones.

    Two levels: position = hi * TABLE_STEP + lo, and the angles of both rows are added by
    cos(a + b) = cos a cos b - sin a sin b, sin(a + b) = sin a cos b + cos a sin b.
    """
    if f"{prefix}cos" in tables:
        cos, sin = (table(graph, tables, f"{prefix}{name}") for name in ("cos", "sin"))
        index = legal(graph, positions, tables[f"{prefix}cos"].shape[0], limit)
        return rows(graph, cos, index), rows(graph, sin, index)
    names = ("cos_hi", "sin_hi", "cos_lo", "sin_lo")
    cos_hi, sin_hi, cos_lo, sin_lo = (table(graph, tables, f"{prefix}{name}") for name in names)
    step = graph.scalar(TABLE_STEP, INT64)
    index = legal(graph, positions, tables[f"{prefix}cos_hi"].shape[0] * TABLE_STEP, limit)
    high = graph.binary("Div", index, step)
    low = graph.binary("Sub", index, graph.binary("Mul", high, step))  # Mod is missing in more importers than these
    cos_a, sin_a = rows(graph, cos_hi, high), rows(graph, sin_hi, high)
    cos_b, sin_b = rows(graph, cos_lo, low), rows(graph, sin_lo, low)
    cos = graph.binary("Sub", graph.binary("Mul", cos_a, cos_b), graph.binary("Mul", sin_a, sin_b))
    sin = graph.binary("Add", graph.binary("Mul", sin_a, cos_b), graph.binary("Mul", cos_a, sin_b))
    return cos, sin
