"""Families with a bias on the scores, BLOOM, MPT and Falcon, and Falcon's rotary sisters."""

from __future__ import annotations

from typing import Any

from portpe.config import norms, projection_biases, sites
from portpe.config.layer import Family, Layer, Size, Sizes
from portpe.config.rope import Rope
from portpe.config.section import Section, shown
from portpe.config.unknown_keys import OF_A_WHOLE_CONFIG
from portpe.errors import SpecError

# What transformers' MPT does not implement may only hold the value that it has there.
_MPT_ATTENTION_FIXED: dict[str, tuple[Any, ...]] = {
    "attn_type": ("multihead_attention",),
    "alibi": (True,),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
}
_MPT_ATTENTION_HARMLESS = OF_A_WHOLE_CONFIG | {"attn_impl", "attn_pdrop"}


def _mpt_attention(layer: Layer) -> Section:
    return layer.config.section("attn_config") or Section({}, "attn_config")


def _mpt_scale(layer: Layer) -> float:
    return _mpt_attention(layer).positive("softmax_scale", float(layer.head_dim**-0.5))


def _mpt_extras(layer: Layer) -> dict[str, Any]:
    """``clip_qkv`` (0 and null: no clip), after the keys of attn_config are checked."""
    attention = _mpt_attention(layer)
    clip = attention.real("clip_qkv", 0.0)
    if clip < 0:
        raise SpecError(f"attn_config.clip_qkv must be > 0, got {clip}")
    for key, allowed in _MPT_ATTENTION_FIXED.items():
        value = attention.get(key)
        if value is not None and value not in allowed and not layer.unknown.lets_pass(attention, key):
            raise SpecError(f"attn_config.{key} must be {shown(allowed[0])}, got {shown(value)}; no other is supported")
    attention.seen.add("alibi_bias_max")
    layer.unknown.refuse_unread(attention, harmless=_MPT_ATTENTION_HARMLESS)
    return {"clip_qkv": clip} if clip else {}


def _falcon_kv_heads(config: Section, num_heads: int, _kind: str) -> int:
    """Grouped in the new architecture, one with ``multi_query``, else one a query head."""
    given = config.integer("num_kv_heads", num_heads)
    if config.flag("new_decoder_architecture", False):
        config.get("multi_query")
        return given
    if config.flag("multi_query", True):
        return 1
    if given != num_heads:
        raise SpecError(f"num_kv_heads must equal num_attention_heads = {num_heads} without multi_query, got {given}")
    return num_heads


ALIBI_FAMILIES = (
    Family(
        "bloom",
        Sizes(
            hidden=Size(("hidden_size", "n_embed"), 64),
            heads=Size(("n_head", "num_attention_heads"), 8),
            layers=Size(("n_layer", "num_hidden_layers"), 2),
            head_dim=None,
            length=Size(("seq_length",), 0),
        ),
        sites.alibi("bloom"),
        projection_biases.fixed("qkvo"),
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5),
        harmless=frozenset({"apply_residual_connection_post_layernorm", "offset_alibi"}),
    ),
    Family(
        "mpt",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 2048),
            heads=Size(("n_heads", "num_attention_heads"), 16),
            layers=Size(("n_layers", "num_hidden_layers"), 24),
            head_dim=None,
            length=Size(("max_seq_len",), 2048),
        ),
        sites.mpt_alibi,
        projection_biases.fixed(""),
        scale=_mpt_scale,
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5, bias=False),
        extras=_mpt_extras,
        fixed={"no_bias": (True,), "norm_type": ("low_precision_layernorm", "layernorm")},
    ),
    Family(
        "falcon",
        Sizes(
            hidden=Size(("hidden_size", "n_embed"), 4544),
            heads=Size(("num_attention_heads",), 71),
            layers=Size(("num_hidden_layers",), 32),
            kv_heads=_falcon_kv_heads,
            head_dim=None,
            length=Size(("max_position_embeddings",), 2048),
        ),
        sites.falcon(Rope(ignores_partial=True)),
        projection_biases.switched("bias", False, "qkvo"),
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5),
        harmless=frozenset({"parallel_attn", "num_ln_in_parallel_attn", "apply_residual_connection_post_layernorm"}),
    ),
)
