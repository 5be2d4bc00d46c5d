"""Layer: runtimes (MLX). From what q_proj sees to q, k and v: three projections, or MLA's through two latents.

``modules`` gives a layer its projections under the names of their tensors, and ``heads`` calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx import nn

from portpe.layer_parts import MlaProjection
from portpe.runtimes.mlx.norms import FeatureNorm
from portpe.spec import AttentionSpec


def modules(spec: AttentionSpec) -> dict[str, nn.Module]:
    """The modules that ``heads`` calls, by name."""
    if spec.mla is not None:
        return _latent_modules(spec, spec.mla)
    rows = {
        "q": spec.num_heads * spec.head_dim,
        "k": spec.num_kv_heads * spec.head_dim,
        "v": spec.num_kv_heads * spec.v_head_dim,
    }
    return {f"{name}_proj": nn.Linear(spec.hidden_size, out, getattr(spec.biases, name)) for name, out in rows.items()}


def heads(spec: AttentionSpec, layer: Mapping[str, Any], x: mx.array, hidden_states: mx.array) -> dict[str, mx.array]:
    """q, k and v (B, heads, S, dim) of x (B, S, hidden), clipped; v of ``hidden_states`` where the spec says so."""
    if spec.mla is not None:
        return _latent_heads(spec, spec.mla, layer, x)
    found = {}
    for name, count in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
        flat = layer[f"{name}_proj"](hidden_states if name == "v" and spec.values_see_input else x)
        if spec.clip_qkv is not None:
            flat = mx.clip(flat, -spec.clip_qkv, spec.clip_qkv)
        found[name] = _by_head(_times(flat, spec.value_scale) if name == "v" else flat, count)
    return found


def _latent_modules(spec: AttentionSpec, mla: MlaProjection) -> dict[str, nn.Module]:
    """DeepSeek-V2, section 2.1."""
    found: dict[str, nn.Module] = {}
    if mla.q_lora_rank is not None:
        found["q_a_proj"] = nn.Linear(spec.hidden_size, mla.q_lora_rank, mla.bias)
        found["q_a_layernorm"] = FeatureNorm(mla.norm, mla.q_lora_rank)
    found[mla.q_module] = nn.Linear(mla.q_lora_rank or spec.hidden_size, spec.num_heads * spec.head_dim, False)
    found["kv_a_proj_with_mqa"] = nn.Linear(spec.hidden_size, mla.kv_lora_rank + mla.qk_rope_head_dim, mla.bias)
    found["kv_a_layernorm"] = FeatureNorm(mla.norm, mla.kv_lora_rank)
    expanded = spec.num_heads * (spec.head_dim - mla.qk_rope_head_dim + spec.v_head_dim)
    found["kv_b_proj"] = nn.Linear(mla.kv_lora_rank, expanded, False)
    return found


def _latent_heads(spec: AttentionSpec, mla: MlaProjection, layer: Mapping[str, Any], x: mx.array) -> dict[str, Any]:
    query = x if mla.q_lora_rank is None else layer["q_a_layernorm"](layer["q_a_proj"](x))
    query = _times(layer[mla.q_module](query), mla.q_scale)
    latent, shared = mx.split(layer["kv_a_proj_with_mqa"](x), [mla.kv_lora_rank], axis=-1)
    latent = _times(layer["kv_a_layernorm"](latent), mla.kv_scale)
    expanded = _by_head(layer["kv_b_proj"](latent), spec.num_heads)
    own, value = mx.split(expanded, [spec.head_dim - mla.qk_rope_head_dim], axis=-1)
    shared = mx.repeat(shared[:, None], spec.num_heads, axis=1)  # one head's, for all of them
    return {"q": _by_head(query, spec.num_heads), "k": mx.concatenate([own, shared], axis=-1), "v": value}


def _by_head(flat: mx.array, count: int) -> mx.array:
    return flat.reshape(*flat.shape[:2], count, -1).transpose(0, 2, 1, 3)


def _times(x: mx.array, factor: float) -> mx.array:
    return x if factor == 1 else (x.astype(mx.float32) * factor).astype(x.dtype)
