"""Where families with latent attention, and those with a query temperature, keep the tensors of an attention layer."""

from __future__ import annotations

from dataclasses import replace

from portpe.config.weight_layout import WeightNames, separate

_MODULES = (
    *("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj"),
    *("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"),
)
_BAILING = "layers.{layer}.attention"
_ATTENTION, _INPUT_NORM = "layers.{layer}.self_attn", "layers.{layer}.input_layernorm"


def _latent(attention: str = _ATTENTION, input_norm: str = _INPUT_NORM, **others: str) -> WeightNames:
    """DeepSeek's names, under ``attention``; ``others`` join them."""
    names = {name: f"{attention}.{name}" for name in _MODULES}
    return WeightNames(("model.", ""), {**names, "input_norm": input_norm, **others})


def _llama(*prefixes: str, **norms: str) -> WeightNames:
    """Llama's names; ``norms`` are those of q and k."""
    own = {canonical: f"{_ATTENTION}.{name}" for canonical, name in norms.items()}
    return WeightNames((*prefixes, "model.", ""), separate(_ATTENTION, "o_proj", input_norm=_INPUT_NORM, **own))


_HUNYUAN = _llama(q_norm="query_layernorm", k_norm="key_layernorm")
_HY4 = replace(
    _latent(gate_proj=f"{_ATTENTION}.linear_gate", sinks=f"{_ATTENTION}.learnable_sink_param"),
    bare=frozenset({"sinks"}),
)

LATENT_ROWS: dict[str, WeightNames] = {
    "axk1": _latent(),
    "bailing_hybrid": _latent(_BAILING, gate_proj=f"{_BAILING}.g_proj", o_proj=f"{_BAILING}.dense"),
    "deepseek_v2": _latent(),
    "deepseek_v3": _latent(),
    "deepseek_v32": _latent(),
    "glm4_moe_lite": _latent(),
    "glm_moe_dsa": _latent(),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN,
    "hy_v4": _HY4,
    "hy_v4_vl_text": _HY4,
    "kimi_k2": _latent(),
    "kimi_linear": _latent(),
    "llama4_text": _llama("language_model.model."),
    "longcat_flash": _latent("layers.{half}.self_attn.{member}", "layers.{half}.input_layernorm.{member}"),
    "minicpm3": _latent(),
    "ministral3": _llama(),
    "mistral4": _latent(),
    "sarvam_mla": _latent(),
    "youtu": _latent(),
}
