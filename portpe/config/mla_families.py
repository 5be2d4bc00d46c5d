"""Families with multi-head latent attention: one row a model_type. Defaults are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import extras, mla, norms, output_gates, sites, temperatures, windows
from portpe.config.layer import FULL, Family, Layer, Size, Sizes
from portpe.config.mla import Latents, Widths
from portpe.config.mrope import MRope
from portpe.config.rope import Rope
from portpe.config.section import Section

# Of the experts, the indexer of another model's keys, the embeddings: not of attention.
_HARMLESS = frozenset(
    {"routed_scaling_factor", "norm_topk_prob", "scale_emb", "scale_depth", "rope_interleave", "mlp_layer_types"}
)
_LINEAR = frozenset({"moe_renormalize", "linear_attn_config", "linear_head_dim", "linear_num_heads", "layer_types"})
_DEEPSEEK = Widths(q_lora_rank=1536, kv_lora_rank=512, nope=128, rope=64, value=128)
_ALWAYS_LATENT = replace(_DEEPSEEK, q_lora_required=True)
_DIRECT = replace(_DEEPSEEK, q_lora_rank=None)


def _sizes(hidden_size: int, num_heads: int, num_layers: int, context: int, **more: Any) -> Sizes:
    """The usual names; ``more`` replaces any of them."""
    usual = {
        "hidden": Size(("hidden_size",), hidden_size),
        "heads": Size(("num_attention_heads",), num_heads),
        "layers": Size(("num_hidden_layers",), num_layers),
        "length": Size(("max_position_embeddings",), context),
    }
    return Sizes(**(usual | more))


def _family(
    model_type: str,
    widths: Widths,
    sizes: Sizes,
    *,
    eps: float = 1e-6,
    latents: dict[str, Any] | None = None,
    **more: Any,
) -> Family:
    """A row. ``latents``: what ``mla.Latents`` does not have by itself."""
    site = Latents(widths, **(latents or {}))
    return Family(
        model_type,
        **{
            "sizes": replace(sizes, head_dim=widths.head_dim),
            "site": site,
            "scale": site.scale,
            "biases": mla.output_bias,
            "input_norm": norms.rms("rms_norm_eps", eps),
            "harmless": _HARMLESS,
            **more,
        },
    )


def _kimi_layers(config: Section, index: int) -> str:
    """Kimi Linear: which layers attend (1-based in ``linear_attn_config``); the others carry a state instead."""
    named = config.section("linear_attn_config")
    if named is not None and isinstance(full := named.get("full_attn_layers"), list | tuple):
        return FULL if index + 1 in full else "linear_attention"
    return FULL if index and index % 4 == 0 else "linear_attention"


def _bailing_layers(config: Section, index: int) -> str:
    """The last of each group attends."""
    return FULL if (index + 1) % config.integer("layer_group_size", 6) == 0 else "linear_attention"


def _axk2_beyond(layer: Layer) -> str:
    layer.config.seen |= {"index_topk"}
    return "queries and a gate from a normed latent beside the plain one, and an indexer that chooses keys"


_MISTRAL4 = Rope(
    others=temperatures.MINISTRAL_KEYS,
    absent={
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
)


def _mistral4_temperature(layer: Layer) -> dict[str, Any]:
    return {"query_scale": temperatures.ministral(layer, _MISTRAL4)}


def _longcat_layers(config: Section) -> int:
    """Each of its layers attends twice."""
    return 2 * config.integer("num_layers", 28)


_COMPLEX = Rope(contract="polar")
_GLM_DSA = Widths(2048, 512, nope=192, rope=64, value=256, q_lora_required=True)
_INDEXED: dict[str, Any] = {
    "latents": {"pairings": mla.rewritten},
    "beyond": mla.chooses_keys,
    "harmless": _HARMLESS | {"index_head_dim", "index_n_heads", "layer_types", "mlp_bias"},
    "fixed": {"rope_interleave": (True,)},
}


def _glm5_layers(config: Section, index: int) -> str:  # noqa: ARG001
    """The last of each four attends."""
    return FULL if index % 4 == 3 else "linear_attention"


def _pools_keys(layer: Layer) -> str:
    layer.config.get("index_topk")
    return "an indexer that chooses pools of keys"


_HY4_MROPE = Rope(axes=MRope("interleaved", (12, 10, 10)))
# Its config class states kv heads, and then sets them to the query heads.
_HY4: dict[str, Any] = {
    "eps": 1e-5,
    "beyond": mla.chooses_keys,
    "extras": lambda layer: extras.sinks(layer) | output_gates.fixed("channel")(layer),
    "harmless": _INDEXED["harmless"] | {"learnable_sink_init"},
}


def _own_kv_heads(config: Section, heads: int, _kind: str) -> int:
    config.get("num_key_value_heads")
    return heads


_LARGE4_ROPE = Rope(
    absent={
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2048.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": 1.0,
    }
)
_LARGE4 = Latents(replace(_DIRECT, nope=64), mla.rewritten, _LARGE4_ROPE)
_large4_turns = sites.listed(_LARGE4_ROPE, "no_rope_layers", "no_rope_layer_interval", 4)


def _large4_site(layer: Layer) -> dict[str, Any]:
    """Mistral Large 4: trained scales of the frequencies; a layer without rotation has no shared channels either."""
    found = _LARGE4(layer)
    changes: dict[str, Any] = {"eps": layer.config.positive("rms_norm_eps", 1e-5)}
    rotary = found["rotary"].model_copy(update={"log_scales": "learned"})
    if not _large4_turns(layer):
        rotary, changes = None, changes | {"qk_rope_head_dim": 0}
    return found | {"rotary": rotary, "mla": found["mla"].model_copy(update=changes)}


def _large4_beyond(layer: Layer) -> str:
    layer.config.seen |= {"index_topk", "kv_source_layers"}
    return "scales of its queries by head and position, an indexer, and maybe keys and values of another layer"


MLA_FAMILIES = (
    _family(
        "deepseek_v2",
        _DEEPSEEK,
        _sizes(4096, 32, 32, 2048),
        latents={"pairings": mla.interleaved, "rope": _COMPLEX},
    ),
    _family("deepseek_v3", replace(_DEEPSEEK, turns_head_dim=True), _sizes(7168, 128, 61, 4096)),
    _family("deepseek_v32", _ALWAYS_LATENT, _sizes(7168, 128, 61, 163840), **_INDEXED),
    _family("glm_moe_dsa", _GLM_DSA, _sizes(6144, 64, 78, 202752), eps=1e-5, **_INDEXED),
    _family("youtu", replace(_DEEPSEEK, turns_head_dim=True), _sizes(2048, 16, 32, 131072)),
    _family("axk1", replace(_ALWAYS_LATENT, turns_head_dim=True), _sizes(7168, 64, 61, 32768)),
    _family("sarvam_mla", _DIRECT, _sizes(4096, 64, 32, 4096), latents={"rope": Rope(yarn_names=("deepseek_yarn",))}),
    _family(
        "mistral4",
        Widths(1024, 256, nope=64, rope=64, value=128),
        _sizes(4096, 32, 36, 1048576),
        latents={"rope": _MISTRAL4, "whole_head": True},
        extras=_mistral4_temperature,
    ),
    _family("glm4_moe_lite", Widths(768, 512, nope=192, rope=64, value=256), _sizes(2048, 20, 47, 202752), eps=1e-5),
    _family(
        "minicpm3",
        Widths(768, 256, nope=64, rope=32, value=None),
        _sizes(2560, 40, 62, 32768),
        eps=1e-5,
        latents={"pairings": mla.half},
    ),
    _family(
        "longcat_flash",
        _ALWAYS_LATENT,
        _sizes(6144, 64, 28, 131072, layers=_longcat_layers),
        eps=1e-5,
        latents={"pairings": mla.rewritten, "rope": Rope(theta=10000000.0), "scaled": True},
        fixed={"mla_scale_q_lora": (True,), "mla_scale_kv_lora": (True,), "attention_method": ("MLA",)},
    ),
    _family(
        "kimi_linear",
        _DIRECT,
        _sizes(2304, 32, 27, 0, length=Size(("model_max_length", "max_position_embeddings"), 1048576)),
        eps=1e-5,
        latents={"rope": None},
        window=windows.hybrid(_kimi_layers),
        harmless=_HARMLESS | _LINEAR | {"rope_theta", "rope_scaling", "rope_parameters"},
        fixed={"mla_use_nope": (True,)},
    ),
    _family(
        "bailing_hybrid",
        _DIRECT,
        _sizes(2560, 32, 42, 262144),
        latents={"pairings": mla.rewritten, "rope": Rope(theta=6000000.0)},
        window=windows.hybrid(_bailing_layers),
        extras=output_gates.fixed("head"),
        harmless=_HARMLESS | _LINEAR | {"mtp_loss_scaling_factor"},
    ),
    _family(
        "axk2",
        Widths(384, 128, nope=64, rope=32, value=64, q_lora_required=True),
        _sizes(2048, 32, 48, 131072),
        latents={"pairings": mla.rewritten},
        beyond=_axk2_beyond,
        harmless=_INDEXED["harmless"] | {"gated_norm_rank", "index_topk"},
    ),
    _family(
        "hy_v4",
        Widths(1536, 512, nope=192, rope=64, value=256, q_lora_required=True),
        _sizes(2816, 32, 34, 262144, kv_heads=_own_kv_heads),
        latents={"pairings": mla.half},
        **_HY4,
    ),
    _family(
        "hy_v4_vl_text",
        Widths(2048, 512, nope=192, rope=64, value=256, q_lora_required=True),
        _sizes(6144, 64, 78, 262144, kv_heads=_own_kv_heads),
        latents={"pairings": mla.interleaved, "rope": _HY4_MROPE},
        **_HY4,
    ),
    _family(
        "glm5_next_text",
        Widths(1536, 512, nope=256, rope=0, value=256, q_lora_required=True),
        _sizes(4096, 64, 45, 1048576),
        eps=1e-5,
        latents={"rope": None},
        window=windows.chosen_keys(windows.hybrid(_glm5_layers)),
        beyond=_pools_keys,
        harmless=_INDEXED["harmless"] | _LINEAR | {"hc_sinkhorn_iters"},
        fixed={"qk_rope_head_dim": (0,)},
    ),
    _family(
        "mistral_large4_text",
        _LARGE4.widths,
        _sizes(6144, 64, 72, 1048576),
        eps=1e-5,
        site=_large4_site,
        scale=_LARGE4.scale,
        beyond=_large4_beyond,
        harmless=_INDEXED["harmless"] | {"final_logit_softcapping", "kv_source_layers"},
    ),
)
