"""Layer: exporters/onnx. What each embedding-site encoding adds to hidden_states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from portpe.encodings import EmbeddingEncoding, LearnedEncoding, SinusoidalEncoding
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.graph import INT64, GraphBuilder, shape_of
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
    limit = None if encoding.rows is None else encoding.rows - encoding.offset
    if "embedding" in tables:  # as transformers makes it, columns in their final order
        index = lookup.legal(graph, position_ids, tables["embedding"].shape[0], limit)
        return lookup.rows(graph, lookup.table(graph, tables, "embedding"), index)
    cos, sin = lookup.cos_sin(graph, tables, position_ids, prefix="embedding_", limit=limit)
    if encoding.order == "interleaved":
        pairs = graph.concat([graph.unsqueeze(sin, 3), graph.unsqueeze(cos, 3)], axis=3, size=2)
        return graph.reshape(pairs, [0, 0, encoding.width], (*shape_of(position_ids), encoding.width))
    halves = [sin, cos] if encoding.order == "sin_cos" else [cos, sin]
    return graph.concat(halves, axis=2, size=encoding.width)


_ADDENDS: dict[str, Callable[[GraphBuilder, Any, ir.Value, lookup.Tables, Weights], ir.Value]] = {
    "learned": _learned,
    "sinusoidal": _sinusoidal,
}
