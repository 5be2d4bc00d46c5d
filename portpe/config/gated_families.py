"""Decoders whose attention has more than Llama's: a gate on its output, heads by layer, a mask or norm of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from portpe.config import extras, output_gates, scales, sites, windows
from portpe.config.layer import FULL, Layer, has
from portpe.config.rope import Rope
from portpe.config.rows import HALF, decoder, head_norms, rms, sizes
from portpe.config.section import Section, shown
from portpe.errors import SpecError
from portpe.layer_parts import Norm

_LFM3_FULL = {"rope_type": "proportional", "partial_rotary_factor": 0.5}


def _listed_heads(config: Section, index: int, _kind: str) -> int:
    """Laguna: a number of heads for each layer."""
    heads = config.integer("num_attention_heads", 48)
    listed = config.get("num_attention_heads_per_layer")
    if listed is None:
        return heads
    if not isinstance(listed, list | tuple) or index >= len(listed) or not isinstance(listed[index], int):
        raise SpecError(f"num_attention_heads_per_layer must list a number for layer {index}, got {shown(listed)}")
    return int(listed[index])


def _step_heads(config: Section, _index: int, kind: str) -> int:
    """Step 3.5: sliding layers have heads of their own number."""
    everywhere = config.integer("num_attention_heads", 64)
    other = config.section("attention_other_setting")
    sliding = everywhere if other is None else other.integer("num_attention_heads", everywhere)
    sliding = config.integer("num_sliding_attention_heads", sliding)
    return everywhere if kind == FULL or "per_layer_config" in config.data else sliding


def _step_site(layer: Layer) -> dict[str, Any]:
    """Step 3.5: bases and widths as lists with one a layer, and scaling on full layers; or a block a layer type."""
    config = layer.config
    if config.has("rope_parameters"):
        settings = Rope(top="none")
        return sites.by_type(full=settings, sliding=settings)(layer)
    scaling = config.section("rope_scaling")
    absent = None if scaling is None or layer.type != FULL else dict(scaling.data)
    theta = _of_layer(layer, "rope_theta", 10000.0)
    partial = _of_layer(layer, "partial_rotary_factors", 1.0)
    return sites.rotary(Rope(theta=theta, partial=partial, absent=absent, top="none"))(layer)


def _of_layer(layer: Layer, key: str, default: float) -> float:
    """The layer's own number of a list, or one for all layers."""
    values = windows.without_predictors(layer.config, layer.config.get(key), layer.num_layers)
    if not isinstance(values, list | tuple):
        return layer.config.positive(key, default)
    if len(values) != layer.num_layers:
        raise SpecError(f"{key} must list one for each of the {layer.num_layers} layers, got {len(values)}")
    return Section({key: values[layer.index]}).positive(key)


def _step_scale(layer: Layer) -> float:
    return float(layer.config.positive("query_pre_attn_scalar", layer.head_dim) ** -0.5)


def _lara_kind(config: Section, index: int) -> str:  # noqa: ARG001
    pattern = ("linear_attention", "sliding_attention", "linear_attention", FULL, "sliding_attention")
    return pattern[index % 5]


def _lfm3_kind(config: Section, index: int) -> str:  # noqa: ARG001
    if index % 4 == 2:
        return FULL
    return "sliding_attention" if index % 4 == 0 and index > 0 else "conv"


def _wide(config: Section, kind: str, key: str, local: int, global_key: str, everywhere: int) -> int:
    """A size that full layers have under another key."""
    narrow, wide = config.integer(key, local), config.integer(global_key, everywhere)
    return wide if kind == FULL and "per_layer_config" not in config.data else narrow


def _base_2_scale(layer: Layer) -> float:
    """TimesFM: 1 / (ln 2 sqrt(head_dim)), by its own digits, times the softplus of what it has trained."""
    return 1.442695041 / math.sqrt(layer.head_dim)


def _hrm_layers(config: Section) -> int:
    """HRM: two stacks, each layer of which runs again in every cycle, with a cache of its own."""
    listed = config.integer("num_hidden_layers", 16)
    of_stack = config.integer("num_layers_per_stack", listed)
    runs = of_stack * config.integer("H_cycles", 2) * (config.integer("L_cycles", 3) + 1)
    if config.has("num_layers_per_stack") and listed != runs:
        raise SpecError(f"num_hidden_layers must be num_layers_per_stack * cycles = {runs}, got {listed}")
    return runs


def _hrm_norm(layer: Layer) -> Norm:
    return Norm(kind="rms", eps=layer.config.positive("rms_norm_eps", 1e-6), affine=False)


def _hrm_gate(layer: Layer) -> dict[str, Any]:
    if layer.config.flag("prefix_lm", True):
        layer.warn("prefix_lm: tokens of an instruction see each other both ways only where a caller's mask says so")
    return output_gates.with_bias("attention_bias", "channel")(layer)


GATED_FAMILIES = (
    decoder(
        "laguna",
        replace(sizes(2048, 48, 40, 131072, kv_heads=8, head_dim=128), heads=_listed_heads),
        rms(1e-6),
        site=sites.by_type(full=Rope(theta=500000.0, partial=0.5, top="none"), sliding=Rope(top="none")),
        window=windows.listed(512),
        qk_norms=head_norms(1e-6),
        extras=output_gates.laguna,
    ),
    decoder(
        "lfm3",
        sizes(2048, 16, 24, 128000, kv_heads=4, head_dim=128),
        rms(1e-5, key="norm_eps"),
        site=sites.by_type(
            full=replace(HALF, theta=1e6, absent=_LFM3_FULL, top="none"), sliding=replace(HALF, top="none")
        ),
        window=windows.hybrid(_lfm3_kind, 256),
        qk_norms=head_norms(1e-5, key="norm_eps"),
        extras=output_gates.switched("use_attention_gate", True, "head"),
        harmless=frozenset({"use_sandwich_norm", "rms_norm_eps"}),
    ),
    decoder(
        "step3p5",
        replace(
            sizes(4096, 64, 45, 128000, head_dim=128),
            heads=_step_heads,
            kv_heads=lambda config, _heads, _kind: config.integer(
                config.either("num_key_value_heads", "num_attention_groups"), 8
            ),
        ),
        rms(1e-5, weight_offset=1.0),
        site=_step_site,
        window=windows.listed(None),
        scale=_step_scale,
        qk_norms=head_norms(1e-5, weight_offset=1.0),
        extras=output_gates.fixed("head"),
        fixed={"gating": (True,), "use_head_wise_attn_gate": (True,)},
        harmless=frozenset({"use_bidirectional_attention", "mtp_layer_types", "num_nextn_predict_layers"})
        | {"yarn_only_types"},
    ),
    decoder(
        "lara_mini",
        sizes(1024, 16, 34, 131072, kv_heads=4, head_dim=128),
        rms(1e-6),
        site=sites.by_type(full=None, sliding=HALF),
        window=windows.hybrid(_lara_kind, 512),
        qk_norms=head_norms(1e-6),
        harmless=frozenset({"linear_num_key_heads", "linear_num_value_heads"})
        | {"linear_key_head_dim", "linear_value_head_dim"},
    ),
    decoder(
        "doge",
        sizes(1024, 8, 32, 2048),
        rms(1e-6),
        window=windows.every_layer(None),
        beyond=has("a mask that it computes from its values"),
        harmless=frozenset({"keep_window_size"}),
    ),
    decoder(
        "embedding_gemma2_text",
        replace(
            sizes(512, 4, 24, 262144),
            kv_heads=lambda config, _heads, kind: _wide(
                config, kind, "num_key_value_heads", 2, "num_global_key_value_heads", 1
            ),
            head_dim=lambda config, kind: _wide(config, kind, "head_dim", 256, "global_head_dim", 512),
        ),
        rms(1e-6),
        site=sites.by_type(full=replace(HALF, theta=1e6, top="none"), sliding=replace(HALF, top="none")),
        causal=lambda _layer: False,
        window=windows.last_is_full(windows.patterned(512, 6, period_key="sliding_window_pattern")),
        scale=scales.fixed(1.0),
        qk_norms=head_norms(1e-6),
        extras=extras.value_norm,
    ),
    decoder(
        "timesfm2_5",
        sizes(1280, 16, 20, 16384, kv_heads=16, head_dim=80),
        rms(1e-6),
        qk_norms=head_norms(1e-6, when="after"),
        scale=_base_2_scale,
        beyond=has("a trained scale for each channel of its queries"),
        harmless=frozenset({"use_continuous_quantile_head", "infer_is_positive"}),
    ),
    decoder(
        "hrm_text",
        replace(sizes(1536, 12, 16, 2048, head_dim=128), layers=_hrm_layers, kv_heads=None),
        _hrm_norm,
        extras=_hrm_gate,
        harmless=frozenset({"embedding_scale"}),
    ),
)
