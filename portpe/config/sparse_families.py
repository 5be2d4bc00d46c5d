"""Decoders with experts and rotary embeddings of one kind on every layer: one row a model_type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import norms, projection_biases, scales, windows
from portpe.config.layer import Layer, Size, Sizes, no_norm, of_every_layer
from portpe.config.rope import Rope
from portpe.config.rows import HALF, NO_BIAS, decoder, head_norms, rms, sizes
from portpe.config.section import Section
from portpe.config.unknown_keys import OF_A_WHOLE_CONFIG
from portpe.errors import SpecError

_QKV_SWITCHED = projection_biases.switched("attention_bias", False, "qkv")
# MiniMax-M2's own, of residual sums that are weighted in MiniMax-Text-01: 1 is none.
_DEEPNORM = tuple(
    f"layernorm_{part}_{letter}"
    for part in ("full_attention", "linear_attention", "mlp")
    for letter in ("alpha", "beta")
)
_GRANITE_SCALE = scales.of_key("attention_multiplier", 1.0)


def _dbrx_kv_heads(config: Section, heads: int, _kind: str) -> int:  # noqa: ARG001
    attention = config.section("attn_config")
    found = 1 if attention is None else attention.integer("kv_n_heads", 1)
    if config.integer("num_key_value_heads", found) != found:
        raise SpecError(
            f"num_key_value_heads must be attn_config.kv_n_heads = {found}, got {config.get('num_key_value_heads')}"
        )
    return found


def _dbrx_extras(layer: Layer) -> dict[str, Any]:
    """``clip_qkv``, after the keys of attn_config are checked."""
    attention = layer.config.section("attn_config")
    if attention is None:
        return {}
    attention.seen |= {"kv_n_heads", "rope_theta", "attn_pdrop", "model_type"}
    clip = attention.real("clip_qkv", 0.0)
    if clip < 0:
        raise SpecError(f"attn_config.clip_qkv must be > 0, got {clip}")
    layer.unknown.refuse_unread(attention, harmless=OF_A_WHOLE_CONFIG)
    return {"clip_qkv": clip} if clip else {}


def _clips_norms(layer: Layer) -> str | None:
    """OLMoE clips q and k behind their norms; a block clips what the projections give."""
    return "queries and keys clipped behind their norms" if layer.config.get("clip_qkv") is not None else None


def _jetmoe_beyond(layer: Layer) -> str:  # noqa: ARG001
    return "queries and outputs of experts"


SPARSE_FAMILIES = (
    decoder(
        "mixtral",
        sizes(4096, 32, 32, 131072, kv_heads=8),
        rms(1e-5),
        rope=replace(HALF, theta=1e6),
        biases=NO_BIAS,
        window=windows.every_layer(None),
    ),
    decoder(
        "qwen2_moe",
        sizes(2048, 16, 24, 32768, kv_heads=16),
        rms(1e-6),
        biases=projection_biases.switched("qkv_bias", True, "qkv"),
        window=windows.alternate_lower_layers,
    ),
    decoder(
        "qwen3_moe",
        sizes(2048, 32, 24, 32768, kv_heads=4),
        rms(1e-6),
        qk_norms=head_norms(1e-6),
        window=windows.switched(4096),
    ),
    decoder(
        "olmoe",
        sizes(2048, 16, 16, 4096),
        rms(1e-5),
        qk_norms=norms.all_heads_rms("rms_norm_eps", 1e-5),
        beyond=_clips_norms,
    ),
    decoder(
        "flex_olmo",
        sizes(4096, 32, 32, 4096),
        no_norm,
        rope=replace(HALF, theta=500000.0),
        qk_norms=norms.all_heads_rms("rms_norm_eps", 1e-6),
    ),
    decoder("granitemoe", sizes(4096, 32, 32, 2048), rms(1e-6), scale=_GRANITE_SCALE),
    decoder("granitemoeshared", sizes(4096, 32, 32, 2048), rms(1e-6), scale=_GRANITE_SCALE),
    decoder(
        "glm4_moe",
        sizes(4096, 96, 46, 131072, kv_heads=8),
        rms(1e-5),
        rope=Rope(partial=0.5),
        biases=_QKV_SWITCHED,
        qk_norms=norms.when("use_qk_norm", False, head_norms(1e-5)),
    ),
    decoder(
        "ernie4_5_moe",
        sizes(2560, 20, 28, 131072, kv_heads=4),
        rms(1e-5),
        rope=Rope(pairing="interleaved", theta=500000.0, ignores_partial=True),
        biases=projection_biases.switched("use_bias", False, "qkvo"),
    ),
    decoder(
        "phimoe",
        sizes(4096, 32, 32, 131072, kv_heads=8),
        norms.layer_norm("rms_norm_eps", 1e-5),
        rope=replace(HALF, theta=1e6),
        window=windows.every_layer(None),
    ),
    decoder(
        "dots1",
        sizes(4608, 32, 62, 2048, kv_heads=32),
        rms(1e-6),
        qk_norms=head_norms(1e-6),
        window=windows.from_layer("max_window_layers", 62, 4096),
    ),
    decoder(
        "hy_v3",
        sizes(4096, 64, 80, 131072, kv_heads=8, head_dim=128),
        rms(1e-5),
        rope=replace(HALF, theta=11158840.0),
        qk_norms=head_norms(1e-5),
    ),
    decoder(
        "minimax_m2",
        sizes(3072, 48, 62, 196608, kv_heads=8, head_dim=128),
        rms(1e-6),
        rope=Rope(theta=5e6, width_key="rotary_dim"),
        biases=NO_BIAS,
        qk_norms=norms.all_heads_rms("rms_norm_eps", 1e-6),
        fixed={
            "use_qk_norm": (True,),
            "qk_norm_type": ("per_layer",),
            **dict.fromkeys(_DEEPNORM, (1.0,)),
        },
        restates={"attn_type_list": of_every_layer(1)},
    ),
    decoder(
        "solar_open",
        sizes(4096, 64, 48, 131072, kv_heads=8, head_dim=128),
        rms(1e-5),
        rope=replace(HALF, theta=1e6),
        biases=_QKV_SWITCHED,
    ),
    decoder(
        "dbrx",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 2048),
            heads=Size(("n_heads", "num_attention_heads"), 16),
            layers=Size(("n_layers", "num_hidden_layers"), 24),
            kv_heads=_dbrx_kv_heads,
            head_dim=None,
            length=Size(("max_seq_len",), 2048),
        ),
        norms.layer_norm(None, 1e-5, bias=False),
        rope=replace(HALF, theta_section="attn_config"),
        biases=NO_BIAS,
        extras=_dbrx_extras,
    ),
    decoder(
        "jetmoe",
        Sizes(
            hidden=Size(("hidden_size",), 2048),
            heads=Size(("num_attention_heads",), 32),
            layers=Size(("num_hidden_layers",), 12),
            kv_heads=Size(("num_key_value_heads",), 16),
            head_dim=lambda config, _kind: config.integer(config.either("kv_channels", "head_dim"), 128),
            length=Size(("max_position_embeddings",), 4096),
        ),
        rms(1e-6),
        biases=NO_BIAS,
        beyond=_jetmoe_beyond,
    ),
)
