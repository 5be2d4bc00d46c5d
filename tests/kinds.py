"""Layer: tests. One small layer a kind of encoding and block, which the tests of every implementation go through."""

from __future__ import annotations

from typing import Any

from portpe.spec import AttentionSpec

PLAIN: dict[str, Any] = {
    "portpe_spec": 1,
    "hidden_size": 44,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 8,
    "v_head_dim": 10,
    "scale": 0.35,
    "max_position_embeddings": 60,
}
LAYER_NORM = {"kind": "layer", "eps": 1e-5, "bias": True}
RMS_NORM = {"kind": "rms", "eps": 1e-6}
YARN = {"kind": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 50}
LLAMA3 = {
    "kind": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 70,
}
LONGROPE = {
    "kind": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.2, 2.5, 4.0, 9.0],
    "original_max_position_embeddings": 40,
    "factor": 4.0,
}


def _rotary(schedule: dict[str, Any], width: int = 8, **more: Any) -> dict[str, Any]:
    return {"rotary": {"kind": "rotary", "width": width, "schedule": schedule, **more}}


def _bias(**more: Any) -> dict[str, Any]:
    return {"bias": [{"kind": "alibi", **more}]}


def _embedding(**more: Any) -> dict[str, Any]:
    return {"embedding": {"width": 44, **more}}


_MLA = {
    "projection": "mla",
    "num_kv_heads": 6,
    "head_dim": 14,
    "scale": 0.35,
    "mla": {"q_lora_rank": 18, "kv_lora_rank": 22, "qk_rope_head_dim": 6},
}
_MLA_ROTARY = {"width": 6, "channels": "last", "pairing": "interleaved"}
_MSCALE = {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}
_ALL_BIASES = {"biases": {"q": True, "k": True, "v": True, "o": True}}
_FIXED = {"regime": {"kind": "fixed", "length": 100}}
_BY_LENGTH = {"regime": {"kind": "per_sequence"}}
_DYNAMIC = {"kind": "dynamic", "factor": 3.0, "max_position_embeddings": 60}
_DYNAMIC_YARN = {"kind": "dynamic_yarn", "rope_theta": 500.0, "original_max_position_embeddings": 30}

_LINEAR = {"attention": "linear", "scale": 1.0}

_NO_LENGTH = {"max_position_embeddings": None}

# Each differs from PLAIN by what its name says; together they hold every kind, law, order and option of a spec.
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "sinusoidal_interleaved": {**_embedding(kind="sinusoidal"), "embed_scale": 6.6},
    "sinusoidal_sin_cos": _embedding(
        kind="sinusoidal", order="sin_cos", denominator="half_minus_one", offset=2, rows=1300
    ),
    "sinusoidal_cos_sin": {**_embedding(kind="sinusoidal", order="cos_sin"), "causal": False},
    "sinusoidal_odd": {
        "embedding": {"kind": "sinusoidal", "width": 21, "order": "sin_cos", "scale": 0.4},
        "embedding_projection": {"width": 21},
    },
    "sinusoidal_odd_padded": {
        "embedding": {
            "kind": "sinusoidal",
            "width": 21,
            "order": "cos_sin",
            "denominator": "half_minus_one",
            "scale": 1.5,
        },
        "embedding_projection": {"width": 21},
        "embedding_norm": LAYER_NORM,
        "input_norm": {"kind": "rms", "eps": 1e-6, "weight_offset": 1.0},
    },
    "sinusoidal_odd_interleaved": {
        "embedding": {"kind": "sinusoidal", "width": 21},
        "embedding_projection": {"width": 21},
        "embedding_norm": LAYER_NORM,
        "causal": False,
    },
    "learned": {**_embedding(kind="learned", rows=75, offset=2), "input_norm": LAYER_NORM, **_ALL_BIASES},
    "learned_projected": {
        "embedding": {"kind": "learned", "rows": 64, "width": 20},
        "embedding_projection": {"width": 20},
        "input_norm": LAYER_NORM,
        "causal": False,
        **_ALL_BIASES,
    },
    "learned_axes": {
        "embedding": {"kind": "learned_axes", "rows": [9, 10], "width": 44, "offset": 1},
        "causal": False,
        "embed_scale": 1.5,
        "input_norm": RMS_NORM,
        **_NO_LENGTH,
    },
    "grid_bicubic": {
        "embedding": {"kind": "learned_grid", "grid": [3, 5], "width": 44, "prefix_tokens": 2, "plain_tokens": 1},
        "causal": False,
        "embedding_norm": LAYER_NORM,
        "input_norm": LAYER_NORM,
        **_ALL_BIASES,
    },
    "grid_antialiased": {
        "embedding": {"kind": "learned_grid", "grid": [5, 4], "width": 44, "resize": "bilinear", "antialias": True},
        "causal": False,
    },
    "grid_corners": {
        "embedding": {
            "kind": "learned_grid",
            "grid": [4, 3],
            "width": 44,
            "prefix_tokens": 1,
            "resize": "bilinear",
            "align_corners": True,
        },
        "causal": False,
    },
    "grid_nearest": {
        "embedding": {
            "kind": "learned_grid",
            "grid": [4, 7],
            "width": 44,
            "resize": "nearest",
            "square": True,
            "prefix_tokens": 1,
        },
        "causal": False,
    },
    "grid_sinusoidal": {
        "embedding": {
            "kind": "sinusoidal_grid",
            "width": 44,
            "order": "sin_cos",
            "first": "column",
            "base": 500.0,
            "plain_tokens": 2,
        },
        "causal": False,
        "embed_scale": 2.0,
    },
    "grid_normalised": {
        "embedding": {"kind": "sinusoidal_grid", "width": 44, "normalize": True, "centred": True},
        "causal": False,
    },
    "grid_bilinear": {
        "embedding": {"kind": "learned_grid", "grid": [2, 6], "width": 44, "resize": "bilinear", "plain_tokens": 1},
        "causal": False,
    },
    "grid_query_key": {
        "embedding": {"kind": "sinusoidal_grid", "width": 44, "normalize": True},
        "embedding_to": "query_key",
        "causal": False,
        **_ALL_BIASES,
    },
    "sinusoidal_query_key": {
        "embedding": {"kind": "sinusoidal", "width": 44},
        "embedding_to": "query_key",
    },
    "rotary_default": _rotary({"kind": "default"}),
    "rotary_interleaved": _rotary({"kind": "default", "rope_theta": 10000.0}, width=6, pairing="interleaved"),
    "rotary_last": _rotary({"kind": "default"}, width=4, channels="last", pairing="interleaved"),
    "rotary_negative": _rotary({"kind": "default"}, sign=-1),
    "rotary_linear": _rotary({"kind": "linear", "factor": 4.0}),
    "rotary_ntk": _rotary({"kind": "ntk", "factor": 4.0}),
    "rotary_ntk_by_parts": _rotary({**YARN, "kind": "ntk_by_parts"}),
    "rotary_dynamic": _rotary(_DYNAMIC, **_FIXED),
    "rotary_yarn": {**_rotary({**YARN, "truncate": False}), "window": 9, "sinks": True, **_ALL_BIASES},
    "rotary_dynamic_yarn": _rotary(_DYNAMIC_YARN, **_FIXED),
    "rotary_longrope": _rotary(LONGROPE, **_FIXED),
    "rotary_dynamic_by_length": {**_rotary(_DYNAMIC, **_BY_LENGTH), **_bias(), "window": 9},
    "rotary_dynamic_yarn_by_length": {
        **_rotary(_DYNAMIC_YARN, width=6, pairing="interleaved", sign=-1, **_BY_LENGTH),
        "q_norm": {**LAYER_NORM, "when": "after"},
        "k_norm": {**LAYER_NORM, "when": "after"},
    },
    "rotary_longrope_by_length": {**_rotary(LONGROPE, **_BY_LENGTH), "sinks": True, **_ALL_BIASES},
    "rotary_longrope_encoder": {**_rotary(LONGROPE, **_BY_LENGTH), "causal": False},
    "rotary_llama3": _rotary(LLAMA3),
    "rotary_proportional": _rotary({"kind": "proportional", "partial_rotary_factor": 0.5}),
    "rotary_written_half": _rotary({"kind": "default"}, width=6, pairing="interleaved", pairing_out="half"),
    "rotary_written_interleaved": _rotary({"kind": "default"}, pairing="half", pairing_out="interleaved"),
    "mla": {**_MLA, **_rotary(_MSCALE, **_MLA_ROTARY, pairing_out="half", softmax_scale_multiplier=1.87)},
    "mla_direct": {
        **_MLA,
        **_rotary({"kind": "default"}, **_MLA_ROTARY),
        "mla": {"kv_lora_rank": 22, "qk_rope_head_dim": 6, "bias": True, "eps": 1e-5},
        "biases": {"o": True},
    },
    "mla_unshared": {**_MLA, "mla": {**_MLA["mla"], "qk_rope_head_dim": 0}},
    "mla_none": {**_MLA, "mla": {**_MLA["mla"], "q_scale": 1.5, "kv_scale": 1.4}, "window": 9},
    "mla_stepped": {
        **_MLA,
        **_rotary({"kind": "default"}, **_MLA_ROTARY, pairing_out="half"),
        "query_scale": {"kind": "stepped", "interval": 13, "beta": 0.3},
    },
    "chunks": {**_rotary({"kind": "default"}, pairing="interleaved"), "chunk": 6},
    "chunks_softcap": {**_rotary({"kind": "default"}), "chunk": 9, "softcap": 5.0, "head_dim": 8, "v_head_dim": 8},
    "stepped": {"query_scale": {"kind": "stepped", "interval": 7, "offset": 1, "beta": 0.4}},
    "stepped_hf": {
        **_rotary({"kind": "default"}, precision="hf"),
        "query_scale": {"kind": "stepped", "interval": 7, "offset": 1, "beta": 0.4, "precision": "hf"},
    },
    "logarithmic": {"query_scale": {"kind": "logarithmic", "interval": 11, "offset": 1, "beta": 0.2}},
    "power": {"query_scale": {"kind": "power", "interval": 17, "offset": 1, "exponent": 0.2}, "causal": False},
    "rotary_log_scales": _rotary(YARN, log_scales=[0.3, -0.2, 0.0, 0.5]),
    "rotary_decay": _rotary({"kind": "default"}, decay={"kind": "xpos", "centre": 37}),
    "rotary_decay_last": {
        **_rotary(
            YARN,
            width=6,
            channels="last",
            pairing="interleaved",
            offset=3,
            decay={"kind": "xpos", "scale_base": 700.0, "gamma": 0.7, "centre": 900},
        ),
        "v_head_dim": 8,
        "window": 9,
        "sinks": True,
        "q_norm": LAYER_NORM,
        "k_norm": LAYER_NORM,
    },
    "rotary_bidirectional": {**_rotary({"kind": "default"}), "causal": False, "window_radius": 3},
    "rotary_sections": _rotary(
        {**YARN, "truncate": False},
        width=6,
        pairing="interleaved",
        axes={"kind": "sectioned", "sections": [1, 2]},
    ),
    "rotary_every_third": {
        **_rotary({"kind": "default"}, axes={"kind": "interleaved", "sections": [2, 1, 1]}),
        "window": 9,
        "q_norm": RMS_NORM,
        "k_norm": RMS_NORM,
    },
    "rotary_over_channels": _rotary(
        {"kind": "default"}, axes={"kind": "sectioned", "sections": [1, 1, 2], "over": "channels"}
    ),
    "rotary_axial": {
        **_rotary({"kind": "default"}, axes={"kind": "axial", "order": [1, 0]}, blocks=2, offset=1, suffix_tokens=1),
        "causal": False,
    },
    "rotary_centred": {
        **_rotary(
            {"kind": "default", "rope_theta": 100.0}, axes={"kind": "axial"}, coordinates="centred", prefix_tokens=3
        ),
        "causal": False,
    },
    "rotary_tiled": {
        **_rotary({"kind": "default"}, pairing="interleaved", axes={"kind": "axial", "tiled": True}),
        "causal": False,
    },
    "alibi": {**_bias(), "clip_qkv": 4.0},
    "alibi_symmetric": {**_bias(symmetric=True, bias_max=4.0), "causal": False},
    "alibi_scaled": {**_bias(scale=0.35), "window": 11},
    "buckets": {"bias": [{"kind": "buckets", "bidirectional": False}], "scale": 1.0},
    "buckets_bidirectional": {
        "bias": [{"kind": "buckets", "num_buckets": 18, "max_distance": 23, "scale": 0.6}],
        "causal": False,
        "window_radius": 40,
    },
    "axis_buckets": {
        "bias": [
            {
                "kind": "axis_buckets",
                "axes": [
                    {"num_buckets": 14, "max_distance": 30},
                    {"num_buckets": 20, "max_distance": 70},
                    {"num_buckets": 9, "max_distance": 21, "bidirectional": False},
                ],
                "scale": 0.6,
            }
        ],
        "causal": False,
    },
    "axis_buckets_cached": {
        "bias": [{"kind": "axis_buckets", "axes": [{"num_buckets": 10}, {"num_buckets": 16, "max_distance": 40}]}],
        "window": 12,
    },
    "grid_table": {"bias": [{"kind": "grid_table", "height": 4, "width": 5}], "causal": False, **_NO_LENGTH},
    "grid_table_prefix": {
        "bias": [{"kind": "grid_table", "height": 5, "width": 6, "prefix_tokens": 1}],
        "causal": False,
        **_NO_LENGTH,
    },
    "grid_table_absolute": {
        "bias": [{"kind": "grid_table", "height": 7, "width": 5, "offsets": "absolute"}],
        "causal": False,
        **_NO_LENGTH,
    },
    "grid_vectors": {"bias": [{"kind": "grid_vectors", "height": 4, "width": 5}], "causal": False, **_NO_LENGTH},
    "grid_vectors_resampled": {
        "bias": [{"kind": "grid_vectors", "height": 6, "width": 5, "trained_on": [4, 7]}],
        "causal": False,
        **_NO_LENGTH,
    },
    "grid_network": {
        "bias": [{"kind": "grid_network", "height": 6, "width": 5, "extent": [4, 3], "units": 7}],
        "causal": False,
        **_NO_LENGTH,
    },
    "kerple": {"bias": [{"kind": "kerple"}]},
    "kerple_power": {"bias": [{"kind": "kerple", "form": "power"}], "causal": False},
    "fire": {"bias": [{"kind": "fire", "width": 9}]},
    "sandwich": {"bias": [{"kind": "sandwich", "width": 22, "base": 500.0}]},
    "shaw": {"bias": [{"kind": "shaw", "left": 4, "right": 2}], "causal": False},
    "shaw_values": {"bias": [{"kind": "shaw", "left": 5, "right": 0, "values": True}], "sinks": True},
    "shaw_descending": {
        "bias": [{"kind": "shaw", "left": 3, "right": 4, "descending": True}],
        "v_head_dim": 8,
        "window": 9,
    },
    "shaw_ended": {
        "bias": [{"kind": "shaw", "left": 3, "right": 2, "values": True, "beyond": "nothing"}],
        "causal": False,
    },
    "transformer_xl": {"bias": [{"kind": "transformer_xl"}]},
    "transformer_xl_conformer": {
        "bias": [{"kind": "transformer_xl", "order": "interleaved", "base": 900.0}],
        "causal": False,
        "num_kv_heads": 6,
        "v_head_dim": 8,
    },
    "transformer_xl_clamped": {"bias": [{"kind": "transformer_xl", "clamp": 6}], "softcap": 9.0, "window": 12},
    "distance_bank": {
        "bias": [{"kind": "distance_bank", "extent": 6, "width": 3}],
        "causal": False,
    },
    "distance_bank_clipped": {
        "bias": [{"kind": "distance_bank", "extent": 11, "width": 5, "clip": 1.7, "tempered": True}],
        "query_scale": {"kind": "logarithmic", "interval": 8, "offset": 1, "beta": 0.3},
        "window": 14,
    },
    "cope": {"bias": [{"kind": "cope", "rows": 5}]},
    "cope_window": {"bias": [{"kind": "cope", "rows": 9, "scaled_gates": False}], "window": 8, "sinks": True},
    "cope_bidirectional": {"bias": [{"kind": "cope", "rows": 6}], "causal": False, "v_head_dim": 8},
    "gated_buckets": {
        "bias": [{"kind": "gated_buckets", "num_buckets": 18, "max_distance": 23}],
        "hidden_size": 42,
        "causal": False,
        **_ALL_BIASES,
    },
    "forget": {"bias": [{"kind": "forget"}]},
    "forget_rotary": {
        **_rotary({"kind": "default"}, pairing="interleaved"),
        "bias": [{"kind": "forget"}],
        "window": 11,
        "sinks": True,
        "q_norm": RMS_NORM,
        "k_norm": RMS_NORM,
        "input_norm": LAYER_NORM,
    },
    "deberta": {"bias": [{"kind": "deberta", "span": 5}]},
    "deberta_v2": {
        "bias": [{"kind": "deberta", "span": 8, "max_distance": 14, "key_bias": True, "norm_eps": 1e-7}],
        "num_kv_heads": 6,
        "v_head_dim": 8,
        "causal": False,
    },
    "deberta_v3": {
        "bias": [{"kind": "deberta", "span": 6, "max_distance": 9, "share_projections": True, "norm_eps": 1e-7}],
        "num_kv_heads": 6,
        "causal": False,
        **_ALL_BIASES,
    },
    "norm_before": {
        **_rotary({"kind": "default"}),
        "q_norm": RMS_NORM,
        "k_norm": RMS_NORM,
        "v_norm": {**RMS_NORM, "affine": False},
        "softcap": 5.0,
    },
    "norm_after": {
        **_rotary({"kind": "default"}),
        "q_norm": {**LAYER_NORM, "when": "after"},
        "k_norm": {**LAYER_NORM, "when": "after"},
    },
    "norm_all_heads": {
        **_rotary({"kind": "default"}),
        "q_norm": {**RMS_NORM, "scope": "all_heads", "weight_offset": 1.0},
        "k_norm": {**RMS_NORM, "scope": "all_heads", "weight_offset": 1.0},
    },
    "norm_per_head": {
        **_rotary({"kind": "default"}, pairing="interleaved"),
        "q_norm": {"kind": "layer", "eps": 1e-5, "per_head_weight": True},
        "k_norm": {"kind": "layer", "eps": 1e-5, "per_head_weight": True},
        "v_norm": {"kind": "layer", "eps": 1e-5, "per_head_weight": True, "bias": True},
    },
    "gated": {
        **_rotary({"kind": "default"}, width=6),
        "q_norm": RMS_NORM,
        "k_norm": RMS_NORM,
        "v_head_dim": 8,
        "value_scale": 0.6,
        "output_gate": {"scope": "channel", "bias": True},
    },
    "gated_heads": {
        **_MLA,
        **_rotary({"kind": "default"}, **_MLA_ROTARY),
        "output_gate": {"scope": "head", "activation": "softplus"},
        "input_norm": RMS_NORM,
    },
    "linear_rotary": {**_LINEAR, **_rotary({"kind": "default"}, width=6, pairing="interleaved")},
    "linear_none": {**_LINEAR, "window": 9, "output_gate": {"scope": "head"}, **_ALL_BIASES},
    "linear_bidirectional": {
        **_LINEAR,
        **_rotary({"kind": "default"}, width=4, channels="last", axes={"kind": "axial"}, prefix_tokens=2),
        "causal": False,
        "window_radius": 3,
        "q_norm": RMS_NORM,
        "k_norm": RMS_NORM,
    },
    "rotary_hf": _rotary(YARN, precision="hf"),
    "transformer_xl_hf": {
        "bias": [{"kind": "transformer_xl", "order": "interleaved", "precision": "hf", "contract": "conformer"}],
    },
    "rotary_axes_hf": _rotary(YARN, precision="hf", axes={"kind": "interleaved", "sections": [2, 1, 1]}),
    "alibi_hf": _bias(precision="hf", contract="bloom"),
    "sinusoidal_hf": _embedding(kind="sinusoidal", order="sin_cos", denominator="half_minus_one", precision="hf"),
}


def make_spec(name: str, **changes: Any) -> AttentionSpec:
    """A small layer of this kind; its batch, head, channel and past sizes are all different."""
    return AttentionSpec.from_dict({**PLAIN, **KINDS[name], **changes})
