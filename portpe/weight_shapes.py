"""The trained tensors of a layer: their canonical names, in order, and their shapes."""

from __future__ import annotations

from portpe.layer_parts import MlaProjection, Norm
from portpe.spec import AttentionSpec


def weight_shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """The tensors that a block of this spec has, by canonical name, with their shapes.

    Projections are (out, in) as in torch's Linear. The order is that of the block.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    if spec.embedding is not None:
        shapes |= spec.embedding.weight_shapes(spec)
    for name, input_norm in spec.input_norms.items():
        shapes |= _norm_shapes(name, input_norm, spec.input_width)
    if spec.embedding_projection is not None:
        shapes["embedding_projection.weight"] = (spec.hidden_size, spec.embedding_projection.width)
        if spec.embedding_projection.bias:
            shapes["embedding_projection.bias"] = (spec.hidden_size,)
    shapes |= _qkv_shapes(spec) if spec.mla is None else _latent_shapes(spec, spec.mla)
    for name, norm, heads, width in (
        ("q_norm", spec.q_norm, spec.num_heads, spec.head_dim),
        ("k_norm", spec.k_norm, spec.num_kv_heads, spec.head_dim),
        ("v_norm", spec.v_norm, spec.num_kv_heads, spec.v_head_dim),
    ):
        if norm is not None:
            shapes |= _head_norm_shapes(name, norm, heads, width)
    for encoding in (spec.rotary, *spec.bias):
        if encoding is not None:
            shapes |= encoding.weight_shapes(spec)
    if spec.sinks:
        shapes["sinks"] = (spec.num_heads,)
    if spec.output_gate is not None:
        shapes["gate_proj.weight"] = (spec.gate_width, spec.hidden_size)
        if spec.output_gate.bias:
            shapes["gate_proj.bias"] = (spec.gate_width,)
    shapes["o_proj.weight"] = (spec.hidden_size, spec.num_heads * spec.v_head_dim)
    if spec.biases.o:
        shapes["o_proj.bias"] = (spec.hidden_size,)
    return shapes


def _qkv_shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    rows = {
        "q": spec.num_heads * spec.head_dim,
        "k": spec.num_kv_heads * spec.head_dim,
        "v": spec.num_kv_heads * spec.v_head_dim,
    }
    for name, out in rows.items():
        shapes[f"{name}_proj.weight"] = (out, spec.hidden_size)
        if getattr(spec.biases, name):
            shapes[f"{name}_proj.bias"] = (out,)
    return shapes


def _latent_shapes(spec: AttentionSpec, mla: MlaProjection) -> dict[str, tuple[int, ...]]:
    """Under the names of DeepSeek's checkpoints."""
    queries, unrotated = spec.num_heads * spec.head_dim, spec.head_dim - mla.qk_rope_head_dim
    down = {"kv_a_proj_with_mqa": mla.kv_lora_rank + mla.qk_rope_head_dim}
    shapes: dict[str, tuple[int, ...]] = {}
    if mla.q_lora_rank is not None:
        down = {"q_a_proj": mla.q_lora_rank, **down}
    for name, out in down.items():
        shapes[f"{name}.weight"] = (out, spec.hidden_size)
        if mla.bias:
            shapes[f"{name}.bias"] = (out,)
    if mla.q_lora_rank is not None:
        shapes["q_a_layernorm.weight"] = (mla.q_lora_rank,)
    shapes[f"{mla.q_module}.weight"] = (queries, mla.q_lora_rank or spec.hidden_size)
    shapes["kv_a_layernorm.weight"] = (mla.kv_lora_rank,)
    shapes["kv_b_proj.weight"] = (spec.num_heads * (unrotated + spec.v_head_dim), mla.kv_lora_rank)
    return shapes


def _norm_shapes(name: str, norm: Norm, *shape: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if norm.affine:
        shapes[f"{name}.weight"] = shape
    if norm.bias:
        shapes[f"{name}.bias"] = shape
    return shapes


def _head_norm_shapes(name: str, norm: Norm, heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    if norm.scope == "all_heads":
        return _norm_shapes(name, norm, heads * head_dim)
    if norm.per_head_weight:
        return _norm_shapes(name, norm, heads, head_dim)
    return _norm_shapes(name, norm, head_dim)
