"""Decoders whose layers differ, in base, window or having rotary embeddings at all: one row a model_type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from portpe.config import extras, norms, output_gates, projection_biases, scales, sites, windows
from portpe.config.layer import FULL, SLIDING, Family, Layer, of_key
from portpe.config.rope import Rope
from portpe.config.rows import COHERE, HALF, NO_BIAS, decoder, head_norms, rms, sizes
from portpe.config.section import Section
from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm

_GLOBAL = replace(HALF, theta=1e6)
_LOCAL = Rope(theta=10000.0, theta_keys=("rope_local_base_freq",), ignores_partial=True, top="theta")
_LOCAL_AND_GLOBAL = sites.by_type(full=_GLOBAL, sliding=_LOCAL)
_COHERE = Rope(pairing="interleaved", ignores_partial=True)
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}


def _one_way(layer: Layer) -> bool:
    return not layer.config.flag("use_bidirectional_attention", False)


def _gemma_scale(default: float) -> scales.ScaleOf:
    return scales.inverse_root("query_pre_attn_scalar", default)


def _gemma3n_scale(layer: Layer) -> float:
    """None; published configs hold Gemma 2's key for it nevertheless."""
    if layer.config.has("query_pre_attn_scalar"):
        layer.warn("query_pre_attn_scalar is not read: scores of Gemma 3n have no scale")
    return 1.0


def _others_keys(default: int) -> Callable[[Layer], str | None]:
    """Gemma 3n and 4: the last ``num_kv_shared_layers`` layers take keys and values from an earlier one."""

    def beyond(layer: Layer) -> str | None:
        shared = layer.config.integer("num_kv_shared_layers", default, minimum=0)
        return "keys and values of an earlier layer" if layer.index >= layer.num_layers - shared else None

    return beyond


def _global_head_dim(config: Section, kind: str) -> int:
    local, everywhere = config.integer("head_dim", 256), config.integer("global_head_dim", 512)
    return everywhere if kind == FULL and "per_layer_config" not in config.data else local


def _global_kv_heads(config: Section, heads: int, kind: str) -> int:  # noqa: ARG001
    heads_of_all = config.integer("num_key_value_heads", 4)
    shares_values = config.flag("attention_k_eq_v", False)
    of_global = config.integer("num_global_key_value_heads", heads_of_all)
    return of_global if kind == FULL and shares_values else heads_of_all


def _gemma4(model_type: str, length: int, window: int) -> Family:
    """Gemma 4: proportional frequencies on full layers, whose heads are wider; no scale."""
    return decoder(
        model_type,
        replace(sizes(2304, 8, 30, length), kv_heads=_global_kv_heads, head_dim=_global_head_dim),
        rms(1e-6),
        site=sites.by_type(
            full=replace(HALF, theta=1e6, absent=_PROPORTIONAL, top="none"),
            sliding=replace(HALF, top="none"),
        ),
        window=windows.last_is_full(windows.patterned(window, 6)),
        scale=scales.fixed(1.0),
        qk_norms=head_norms(1e-6),
        extras=extras.value_norm,
        beyond=_others_keys(0),
        fixed={"use_bidirectional_attention": (False, "vision")},
    )


def _twice_for_windows(config: Section, heads: int, kind: str) -> int:  # noqa: ARG001
    """MiMo-V2: sliding layers have twice the key/value heads."""
    return config.integer("num_key_value_heads", 4) * (1 if kind == FULL else 2)


def _mimo_extras(layer: Layer) -> dict[str, Any]:
    """Values have a width and a scale of their own; sliding layers have sinks."""
    config = layer.config
    found: dict[str, Any] = {"v_head_dim": config.integer("v_head_dim", 128)}
    if config.has("attention_value_scale") or "attention_value_scale" not in config.data:
        found["value_scale"] = config.positive("attention_value_scale", 0.707)
    return found | ({"sinks": True} if layer.type != FULL else {})


def _cohere2_moe_norm(layer: Layer) -> Norm:
    """An RMS norm where the config has an eps for it, else Cohere's layer norm."""
    eps = layer.config.positive("layer_norm_eps", 1e-5)
    if layer.config.has("rms_norm_eps"):
        return Norm(kind="rms", eps=layer.config.positive("rms_norm_eps"))
    return Norm(kind="layer", eps=eps)


def _cohere2_moe_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """Leading dense layers have a period of their own, which by default makes each of them full."""
    dense = config.integer("first_k_dense_replace", 0, minimum=0)
    periods = (
        config.integer("prefix_dense_sliding_window_pattern", 1),
        config.integer("sliding_window_pattern", 4),
    )
    number, period = (index, periods[0]) if index < dense else (index - dense, periods[1])

    def kind_of(_index: int, _num_layers: int) -> str:
        return FULL if (number + 1) % period == 0 else SLIDING

    return windows.hybrid_of_layers(kind_of, 4096)(config, index, num_layers)


def _cohere2_moe_site(layer: Layer) -> dict[str, Any]:
    """As Cohere 2; leading dense layers rotate although they are full."""
    kinds = layer.config.get("mlp_layer_types")
    listed = isinstance(kinds, list | tuple) and len(kinds) == layer.num_layers
    dense = (
        kinds[layer.index] == "dense"
        if listed
        else layer.index < layer.config.integer("first_k_dense_replace", 0, minimum=0)
    )
    rotates = dense and layer.config.integer("prefix_dense_sliding_window_pattern", 1) == 1
    if layer.config.get("rope_scaling"):
        layer.warn("rope_scaling is honoured as documented: transformers' own class for this model_type ignores it")
    return sites.by_type(full=_COHERE if rotates else None, sliding=_COHERE)(layer)


def _molmo2_norm(layer: Layer) -> Norm | None:
    """Before attention, or with ``norm_after`` behind it."""
    found = rms(1e-6)(layer)
    return None if layer.config.flag("norm_after", False) else found


def _molmo2_qk_norms(layer: Layer) -> tuple[Norm, Norm] | None:
    """Over each head as Qwen 3's, or over all heads as OLMo 2's."""
    kind = layer.config.text("qk_norm_type", "qwen3")
    if kind not in ("qwen3", "olmo"):
        raise SpecError(f"qk_norm_type must be 'qwen3' or 'olmo', got {kind!r}")
    return (head_norms(1e-6) if kind == "qwen3" else norms.all_heads_rms("rms_norm_eps", 1e-6))(layer)


def _molmo2_site(layer: Layer) -> dict[str, Any]:
    """The listed layers are scaled, the others keep the same base unscaled; all are, where there is no list."""
    found = sites.rotary(HALF)(layer)
    if layer.index in layer.config.numbers("rope_scaling_layers", tuple(range(layer.num_layers))):
        return found
    base = found["rotary"].schedule.rope_theta
    return {"rotary": RotaryEncoding(width=layer.head_dim, schedule=DefaultSchedule(rope_theta=base))}


def _flint_kind(index: int, num_layers: int) -> str:
    return FULL if index < 2 or index % 4 == 1 or index == num_layers - 1 else SLIDING


def _mimo_kind(config: Section, index: int) -> str:  # noqa: ARG001
    return FULL if index == 0 or index % 6 == 5 else SLIDING


_GEMMA2 = decoder(
    "gemma2",
    sizes(2304, 8, 26, 8192, kv_heads=4, head_dim=256),
    rms(1e-6, weight_offset=1.0),
    causal=_one_way,
    window=windows.patterned(4096, 2),
    scale=_gemma_scale(256),
    extras=extras.softcap("attn_logit_softcapping", 50.0),
    restates={"sliding_window_size": of_key("sliding_window", 4096)},
)

LAYERED_FAMILIES = (
    _GEMMA2,
    replace(_GEMMA2, model_type="vaultgemma", causal=lambda _layer: True),
    replace(_GEMMA2, model_type="t5_gemma_module", causal=lambda layer: layer.config.flag("is_decoder", False)),
    decoder(
        "gemma3_text",
        sizes(2304, 8, 26, 131072, kv_heads=4, head_dim=256),
        rms(1e-6, weight_offset=1.0),
        site=_LOCAL_AND_GLOBAL,
        causal=_one_way,
        window=windows.patterned(4096, 6, period_key="sliding_window_pattern"),
        radius=lambda window: window // 2,
        harmless=frozenset({"_sliding_window_pattern"}),
        scale=_gemma_scale(256),
        qk_norms=head_norms(1e-6, weight_offset=1.0),
        extras=extras.softcap("attn_logit_softcapping", None),
    ),
    decoder(
        "gemma3n_text",
        sizes(2048, 8, 35, 32768, kv_heads=2, head_dim=256),
        rms(1e-6),
        site=_LOCAL_AND_GLOBAL,
        window=windows.patterned(512, 5),
        scale=_gemma3n_scale,
        qk_norms=head_norms(1e-6),
        extras=extras.value_norm,
        beyond=_others_keys(15),
        harmless=frozenset({"altup_coef_clip", "altup_correct_scale"}),
    ),
    _gemma4("gemma4_text", 131072, 512),
    _gemma4("gemma4_unified_text", 262144, 1024),
    decoder(
        "olmo3",
        sizes(4096, 32, 32, 2048),
        norms.none,
        site=sites.by_type(full=replace(HALF, theta=500000.0), sliding=replace(HALF, theta=500000.0, top="theta")),
        window=windows.patterned(4096, 4),
        qk_norms=norms.all_heads_rms("rms_norm_eps", 1e-5),
    ),
    decoder(
        "ministral",
        sizes(4096, 32, 32, 131072, kv_heads=8),
        rms(1e-6),
        biases=NO_BIAS,
        window=windows.listed(4096, SLIDING),
    ),
    decoder(
        "cwm",
        sizes(6144, 48, 64, 131072, kv_heads=8, head_dim=128),
        rms(1e-5),
        rope=replace(
            HALF,
            theta=1e6,
            absent={
                "rope_type": "llama3",
                "rope_theta": 1000000.0,
                "factor": 16.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        biases=NO_BIAS,
        window=windows.patterned(8192, 4, full="first"),
    ),
    decoder(
        "mellum",
        sizes(2304, 32, 28, 131072, kv_heads=4, head_dim=128),
        rms(1e-6),
        site=sites.by_type(full=replace(HALF, theta=500000.0, top="none"), sliding=replace(HALF, top="none")),
        window=windows.listed(1024),
        qk_norms=head_norms(1e-6),
    ),
    decoder(
        "cohere2",
        sizes(8192, 64, 40, 8192, head_dim=None),
        norms.layer_norm("layer_norm_eps", 1e-5, bias=False),
        site=sites.by_type(full=None, sliding=_COHERE),
        window=windows.patterned(4096, 4, period_key="sliding_window_pattern", again="layer_switch"),
        fixed={**COHERE, "rotary_pct": (1.0,), "order_of_interleaved_layers": ("local_attn_first",)},
    ),
    decoder(
        "cohere2_moe",
        sizes(8192, 64, 40, 8192, head_dim=128),
        _cohere2_moe_norm,
        site=_cohere2_moe_site,
        window=_cohere2_moe_window,
        harmless=frozenset({"prefix_dense_intermediate_size"}),
    ),
    decoder(
        "smollm3",
        sizes(2048, 16, 36, 32768, kv_heads=4),
        rms(1e-6),
        site=sites.listed(replace(HALF, theta=2e6), "no_rope_layers", "no_rope_layer_interval", 4),
        window=windows.smollm3,
        harmless=frozenset({"max_window_layers"}),  # of the Qwen class that its config came from
    ),
    *(
        decoder(
            model_type,
            sizes(4096, 32, 32, 2048, kv_heads=32),
            norm,
            site=sites.none_on_full_where_windowed(HALF),
            biases=NO_BIAS,
            window=windows.patterned(4096, 4, period_key="sliding_window_pattern", letters=True),
            qk_norms=head_norms(1e-5),
            harmless=frozenset({"mtp_loss_scaling_factor"}),
        )
        for model_type, norm in (("exaone4", norms.none), ("exaone_moe", rms(1e-5)))
    ),
    decoder(
        "kolibri1",
        sizes(2560, 48, 50, 262144, kv_heads=4, head_dim=128),
        rms(1e-6),
        site=sites.none_on_full_where_windowed(HALF),
        biases=NO_BIAS,
        window=windows.patterned(513, 5),
        qk_norms=head_norms(1e-6),
    ),
    decoder(
        "flint",
        sizes(2048, 32, 49, 262144, kv_heads=4, head_dim=128),
        rms(1e-6),
        site=sites.by_type(full=None, sliding=HALF),
        window=windows.hybrid_of_layers(_flint_kind, 513),
        qk_norms=head_norms(1e-6),
        extras=extras.sinks,
    ),
    decoder(
        "molmo2_text",
        sizes(4096, 32, 36, 36864, kv_heads=8, head_dim=128),
        _molmo2_norm,
        site=_molmo2_site,
        biases=projection_biases.switched("attention_bias", False, "qkv"),
        qk_norms=_molmo2_qk_norms,
    ),
    decoder(
        "afmoe",
        sizes(2048, 16, 32, 16384, head_dim=128),
        rms(1e-5),
        site=sites.by_type(full=None, sliding=HALF),
        window=windows.patterned(1024, 4, period_key="global_attn_every_n_layers"),
        qk_norms=head_norms(1e-5),
        extras=output_gates.fixed("channel"),
    ),
    *(
        decoder(
            model_type,
            size,
            rms(eps),
            site=sites.theta_list(HALF, "layer_rope_theta"),
            window=windows.patterned(128, 4, full="first"),
            scale=scales.of_key("attention_multiplier", 1.0),
            extras=extras.sinks,
        )
        for model_type, size, eps in (
            ("granite_swa", sizes(2560, 20, 24, 8192, kv_heads=4), 1e-5),
            ("granitemoe_swa", sizes(4096, 32, 32, 2048), 1e-6),
        )
    ),
    decoder(
        "mimo_v2_flash",
        replace(sizes(4096, 64, 48, 131072, head_dim=192), kv_heads=_twice_for_windows),
        rms(1e-5),
        site=sites.by_type(
            full=Rope(theta=5e6, partial=0.334, top="none"),
            sliding=Rope(partial=0.334, top="none"),
        ),
        biases=projection_biases.switched("attention_bias", False, "qkv"),
        window=windows.hybrid(_mimo_kind, 129),
        extras=_mimo_extras,
    ),
)
