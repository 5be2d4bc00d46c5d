"""Layer: exporters/onnx. Layer and RMS norms from primitives, in float32 whatever the graph's type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of
from portpe.exporters.onnx.weights import ExternalWeight
from portpe.layer_parts import Norm


def normalize(
    graph: GraphBuilder,
    value: ir.Value,
    norm: Norm,
    name: str,
    weights: Mapping[str, ExternalWeight],
    *,
    axes: Sequence[int] = (-1,),
) -> ir.Value:
    """The norm over ``axes``; its weight and bias broadcast against ``value``. The result has the graph's type."""
    parameters = {each: graph.external(f"{name}.{each}", weights) for each in _parameters(norm)}
    return _normalize(graph, value, norm, parameters, axes)


def normalize_tokens(
    graph: GraphBuilder, value: ir.Value, norm: Norm, name: str, weights: Mapping[str, ExternalWeight]
) -> ir.Value:
    """A q or k norm of (batch, sequence, heads, head_dim). Its weights lie as (heads, 1, head_dim) where each head
    has its own.
    """
    parameters = {each: graph.external(f"{name}.{each}", weights) for each in _parameters(norm)}
    for each, parameter in parameters.items():
        if len(shape := shape_of(parameter)) == 3:
            parameters[each] = graph.reshape(parameter, [0, -1], (shape[0], shape[2]))
    return _normalize(graph, value, norm, parameters, (2, 3) if norm.scope == "all_heads" else (3,))


def _parameters(norm: Norm) -> tuple[str, ...]:
    return ("weight",) * norm.affine + ("bias",) * norm.bias


def _normalize(
    graph: GraphBuilder, value: ir.Value, norm: Norm, parameters: Mapping[str, ir.Value], axes: Sequence[int]
) -> ir.Value:
    x = graph.cast(value, FLOAT)
    if norm.kind == "layer":
        x = graph.binary("Sub", x, _mean(graph, x, axes))
    variance = _mean(graph, graph.binary("Mul", x, x), axes)
    deviation = graph.unary("Sqrt", graph.binary("Add", variance, graph.scalar(norm.eps, FLOAT)))
    x = graph.binary("Div", x, deviation)
    if norm.affine:
        weight = graph.cast(parameters["weight"], FLOAT)
        if norm.weight_offset:
            weight = graph.binary("Add", weight, graph.scalar(norm.weight_offset, FLOAT))
        x = graph.binary("Mul", x, weight)
    if norm.bias:
        x = graph.binary("Add", x, graph.cast(parameters["bias"], FLOAT))
    return graph.cast(x, graph.dtype)


def head_axes(norm: Norm) -> tuple[int, ...]:
    """The axes of (batch, heads, sequence, head_dim) that a q or k norm runs over."""
    return (1, 3) if norm.scope == "all_heads" else (3,)


def _mean(graph: GraphBuilder, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    shape = list(shape_of(value))
    for axis in axes:
        shape[axis] = 1
    return graph.op("ReduceMean", value, graph.ints(*axes), shape=tuple(shape), keepdims=1)
