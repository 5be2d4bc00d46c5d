"""Layer: reference. From what q_proj sees to q, k and v: three projections, or MLA's through two latents.

``modules`` gives a block its projections under the names of their tensors, and ``heads`` calls them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from portpe.layer_parts import MlaProjection
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.norms import Normalise
from portpe.spec import AttentionSpec


def modules(spec: AttentionSpec, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The modules that ``heads`` calls, by name, without values."""
    if spec.mla is not None:
        return _latent_modules(spec, spec.mla, dtype)
    rows = {
        "q": spec.num_heads * spec.head_dim,
        "k": spec.num_kv_heads * spec.head_dim,
        "v": spec.num_kv_heads * spec.v_head_dim,
    }
    return {
        f"{name}_proj": linear(spec.hidden_size, out, getattr(spec.biases, name), dtype) for name, out in rows.items()
    }


def heads(
    spec: AttentionSpec,
    block: nn.Module,
    x: Float[Tensor, "batch seq hidden"],
    hidden_states: Float[Tensor, "batch seq hidden"],
) -> dict[str, Tensor]:
    """q, k and v (B, heads, S, dim), clipped; v of ``hidden_states`` where the spec says so."""
    if spec.mla is not None:
        return _latent_heads(spec, spec.mla, block, x)
    found = {}
    for name, count in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
        seen = hidden_states if name == "v" and spec.values_see_input else x
        rows = project(block.get_submodule(f"{name}_proj"), seen)
        rows = rows if spec.clip_qkv is None else rows.clamp(-spec.clip_qkv, spec.clip_qkv)
        found[name] = _by_head(_times(rows, spec.value_scale) if name == "v" else rows, count)
    return found


def linear(width: int, out: int, bias: bool, dtype: torch.dtype) -> nn.Linear:
    """A projection without values."""
    return nn.Linear(width, out, bias=bias, dtype=dtype, device="meta")


def project(projection: nn.Module, x: Float[Tensor, "batch seq in"]) -> Float[Tensor, "batch seq out"]:
    """The projection, summed in the accumulation type whatever the device's kernels do, rounded once."""
    assert isinstance(projection, nn.Linear)
    accumulate = accumulation_dtype(x.dtype)
    bias = None if projection.bias is None else projection.bias.to(accumulate)
    return F.linear(x.to(accumulate), projection.weight.to(accumulate), bias).to(x.dtype)


def _latent_modules(spec: AttentionSpec, mla: MlaProjection, dtype: torch.dtype) -> dict[str, nn.Module]:
    """DeepSeek-V2, section 2.1.2 (keys and values) and 2.1.3 (the shared, rotated part)."""
    unrotated = spec.head_dim - mla.qk_rope_head_dim
    found: dict[str, nn.Module] = {}
    if mla.q_lora_rank is not None:
        found["q_a_proj"] = linear(spec.hidden_size, mla.q_lora_rank, mla.bias, dtype)
        found["q_a_layernorm"] = Normalise(mla.norm, (mla.q_lora_rank,), dtype)
    found[mla.q_module] = linear(mla.q_lora_rank or spec.hidden_size, spec.num_heads * spec.head_dim, False, dtype)
    found["kv_a_proj_with_mqa"] = linear(spec.hidden_size, mla.kv_lora_rank + mla.qk_rope_head_dim, mla.bias, dtype)
    found["kv_a_layernorm"] = Normalise(mla.norm, (mla.kv_lora_rank,), dtype)
    found["kv_b_proj"] = linear(mla.kv_lora_rank, spec.num_heads * (unrotated + spec.v_head_dim), False, dtype)
    return found


def _latent_heads(spec: AttentionSpec, mla: MlaProjection, block: nn.Module, x: Tensor) -> dict[str, Tensor]:
    query = x
    if mla.q_lora_rank is not None:
        query = block.get_submodule("q_a_layernorm")(project(block.get_submodule("q_a_proj"), x))
    query = _times(project(block.get_submodule(mla.q_module), query), mla.q_scale)
    both = project(block.get_submodule("kv_a_proj_with_mqa"), x)
    latent, shared = torch.split(both, [mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
    latent = _times(block.get_submodule("kv_a_layernorm")(latent), mla.kv_scale)
    expanded = _by_head(project(block.get_submodule("kv_b_proj"), latent), spec.num_heads)
    own, value = torch.split(expanded, [spec.head_dim - mla.qk_rope_head_dim, spec.v_head_dim], dim=-1)
    shared = shared.unsqueeze(1).expand(-1, spec.num_heads, -1, -1)  # one head's, for all of them
    return {"q": _by_head(query, spec.num_heads), "k": torch.cat((own, shared), dim=-1), "v": value}


def _by_head(rows: Float[Tensor, "batch seq width"], count: int) -> Float[Tensor, "batch heads seq dim"]:
    return rows.reshape(*rows.shape[:2], count, rows.shape[2] // count).transpose(1, 2)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else (x.to(accumulation_dtype(x.dtype)) * factor).to(x.dtype)
