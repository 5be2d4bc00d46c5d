"""Layer: exporters/onnx. MLA's queries, keys and values in tokens, through two latents (DeepSeek-V2, section 2.1).

Keys and values are expanded, and cached so. The part of k that all heads share is repeated for each before the
rotation: a form then rotates, caches and attends as it does for any other layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from portpe.exporters.onnx import norm
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of
from portpe.exporters.onnx.weights import ExternalWeight
from portpe.layer_parts import MlaProjection
from portpe.spec import AttentionSpec

Weights = Mapping[str, ExternalWeight]
Project = Callable[[ir.Value, str, bool], ir.Value]
"""A value (batch, sequence, in), the name of a projection and whether it has a bias, to (batch, sequence, out)."""


def queries(graph: GraphBuilder, hidden: ir.Value, mla: MlaProjection, weights: Weights, project: Project) -> ir.Value:
    """(batch, sequence, heads * head_dim)."""
    value = hidden
    if mla.q_lora_rank is not None:
        value = norm.normalize(graph, project(value, "q_a_proj", mla.bias), mla.norm, "q_a_layernorm", weights)
    return times(graph, project(value, mla.q_module, False), mla.q_scale)


def keys_and_values(
    graph: GraphBuilder, hidden: ir.Value, spec: AttentionSpec, mla: MlaProjection, weights: Weights, project: Project
) -> tuple[ir.Value, ir.Value]:
    """(batch, sequence, heads * head_dim) and (batch, sequence, heads * v_head_dim)."""
    heads, own, rope = spec.num_heads, spec.head_dim - mla.qk_rope_head_dim, mla.qk_rope_head_dim
    batch, sequence, _ = shape_of(hidden)
    latent = project(hidden, "kv_a_proj_with_mqa", mla.bias)
    if rope:
        latent, shared = graph.split(latent, [mla.kv_lora_rank, rope], axis=2)
    latent = norm.normalize(graph, latent, mla.norm, "kv_a_layernorm", weights)
    expanded = project(times(graph, latent, mla.kv_scale), "kv_b_proj", False)
    width = own + spec.v_head_dim
    expanded = graph.reshape(expanded, [0, 0, heads, width], (batch, sequence, heads, width))
    key, value = graph.split(expanded, [own, spec.v_head_dim], axis=3)
    if rope:
        shared = graph.unsqueeze(shared, 2)
        shared = graph.op("Expand", shared, graph.ints(1, 1, heads, 1), shape=(batch, sequence, heads, rope))
        key = graph.concat([key, shared], axis=3, size=spec.head_dim)
    return (
        graph.reshape(key, [0, 0, heads * spec.head_dim], (batch, sequence, heads * spec.head_dim)),
        graph.reshape(value, [0, 0, heads * spec.v_head_dim], (batch, sequence, heads * spec.v_head_dim)),
    )


def times(graph: GraphBuilder, value: ir.Value, factor: float) -> ir.Value:
    """The product in float32, in the graph's type; the value itself where the factor is 1."""
    if factor == 1:
        return value
    scaled = graph.binary("Mul", graph.cast(value, FLOAT), graph.scalar(factor, FLOAT))
    return graph.cast(scaled, graph.dtype)
