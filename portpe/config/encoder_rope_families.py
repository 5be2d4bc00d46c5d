"""Text encoders with rotary embeddings: one row a model_type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import extras, norms, projection_biases, sites, windows
from portpe.config.bert_families import bert, usual_sizes
from portpe.config.layer import Layer, never, of_key, of_theta
from portpe.config.rope import Rope
from portpe.config.rows import GPT_OSS_YARN, HALF, NO_BIAS, decoder, one_kv_a_head, rms, sizes
from portpe.config.section import Section
from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.layer_parts import Norm

_ALL_BIASES = projection_biases.fixed("qkvo")
_MODERN_GLOBAL = Rope(theta=160000.0, theta_keys=("global_rope_theta",), ignores_partial=True)
_MODERN_LOCAL = Rope(theta=10000.0, theta_keys=("local_rope_theta",), ignores_partial=True)
_MODERN_SITE = sites.by_type(full=_MODERN_GLOBAL, sliding=_MODERN_LOCAL)
_MODERN_WINDOW = windows.patterned(
    128, 3, period_key="global_attn_every_n_layers", full="first", window_key="local_attention"
)
# ModernBERT's and mmBERT's words for what their class has no table for; the first is BERT's.
_FOSSILS = {"position_embedding_type": ("absolute", "sans_pos")}
_HEADS_OF_CLASSIFIERS = frozenset({"classifier_pooling", "classifier_bias", "deterministic_flash_attn"})
# nomic-embed's own names, beside those of transformers' class, and the one value that the class has for each.
_NOMIC_OFF = {
    **dict.fromkeys(("causal", "prenorm", "qkv_proj_bias", "rotary_emb_interleaved", "use_rms_norm"), (False,)),
    **dict.fromkeys(("parallel_block", "parallel_block_tied_norm", "scale_attn_by_inverse_layer_idx"), (False,)),
    **dict.fromkeys(("rotary_scaling_factor", "rotary_emb_scale_base"), ()),
    "reorder_and_upcast_attn": (False,),
    "rotary_emb_fraction": (1.0,),
    "scale_attn_weights": (True,),
}


def _modern_decoder_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """ModernBERT's decoder looks back over half of ``local_attention``, unless ``sliding_window`` says how far."""
    kind, window = _MODERN_WINDOW(config, index, num_layers)
    reach = config.integer("sliding_window", max(1, (window or 2) // 2))
    return kind, None if window is None else reach


def _roformer(layer: Layer) -> dict[str, Any]:
    """Su 2021: the sinusoids of a table turn queries and keys in adjacent pairs; nothing is added to the embeddings."""
    schedule = DefaultSchedule(rope_theta=10000.0)
    return {
        "rotary": RotaryEncoding(width=layer.head_dim, pairing="interleaved", schedule=schedule, contract="float64")
    }


def _roformer_norm(layer: Layer) -> Norm | None:
    """The norm that closes the embeddings stands before layer 0, unless a projection stands between."""
    norm = norms.embedding_layer_norm("layer_norm_eps", 1e-12)(layer)
    return norm if layer.config.integer("embedding_size", layer.hidden_size) == layer.hidden_size else None


def _turned_values(layer: Layer) -> str | None:
    return "values that are turned as the keys are" if layer.config.flag("rotary_value", False) else None


ENCODER_ROPE_FAMILIES = (
    decoder(
        "modernbert",
        one_kv_a_head(768, 12, 22, 8192),
        norms.no_norm_on_layer_0(norms.layer_norm_with_switched_bias("norm_eps", 1e-5, "norm_bias", False)),
        site=_MODERN_SITE,
        causal=never,
        window=_MODERN_WINDOW,
        radius=lambda window: window // 2,
        harmless=_HEADS_OF_CLASSIFIERS | {"norm_bias"},
        fixed=_FOSSILS,
        restates={"layer_norm_eps": of_key("norm_eps", 1e-5)},
    ),
    decoder(
        "modernbert-decoder",
        one_kv_a_head(768, 12, 22, 8192),
        norms.no_norm_on_layer_0(norms.layer_norm_with_switched_bias("norm_eps", 1e-5, "norm_bias", False)),
        site=_MODERN_SITE,
        window=_modern_decoder_window,
        harmless=_HEADS_OF_CLASSIFIERS | {"norm_bias"},
        fixed=_FOSSILS,
        restates={"layer_norm_eps": of_key("norm_eps", 1e-5)},
    ),
    decoder("eurobert", sizes(768, 12, 12, 8192), rms(1e-5), causal=never),
    decoder(
        "nomic_bert",
        replace(one_kv_a_head(768, 12, 12, 2048), head_dim=0),
        norms.embedding_layer_norm("layer_norm_eps", 1e-12),
        rope=replace(HALF, theta=1000.0),
        biases=NO_BIAS,
        causal=never,
        fixed=_NOMIC_OFF,
        restates={
            "n_embd": of_key("hidden_size"),
            "n_head": of_key("num_attention_heads"),
            "n_layer": of_key("num_hidden_layers"),
            "layer_norm_epsilon": of_key("layer_norm_eps"),
            "max_trained_positions": of_key("max_position_embeddings"),
            "rotary_emb_base": of_theta,
        },
        # how far the tables of its own code reach
        harmless=frozenset({"n_positions", "use_flash_attn"}),
    ),
    *(
        decoder(
            model_type,
            one_kv_a_head(hidden, heads, layers, length),
            norms.embedding_layer_norm("layer_norm_eps", eps),
            rope=replace(HALF, theta=theta),
            biases=_ALL_BIASES,
            causal=never,
        )
        for model_type, hidden, heads, layers, length, eps, theta in (
            ("jina_embeddings_v3", 1024, 16, 24, 8194, 1e-5, 20000.0),
            ("gte", 768, 12, 12, 8192, 1e-12, 160000.0),
        )
    ),
    decoder(
        "ultrabert",
        sizes(4096, 32, 32, 32768),
        rms(1e-6),
        site=sites.by_type(full=replace(HALF, theta=2560000.0, top="none"), sliding=replace(HALF, top="none")),
        causal=never,
        window=windows.patterned(128, 3),
        harmless=_HEADS_OF_CLASSIFIERS | {"prediction_head_size"},
    ),
    decoder(
        "openai_privacy_filter",
        sizes(640, 14, 8, 131072, kv_heads=2, head_dim=64),
        rms(1e-5),
        rope=Rope(pairing="interleaved", theta=150000.0, ignores_partial=True, absent=GPT_OSS_YARN),
        biases=projection_biases.switched("attention_bias", True, "qkvo"),
        causal=never,
        window=windows.every_layer(128),
        extras=extras.sinks,
    ),
    decoder(
        "esmc",
        sizes(2560, 40, 80, 2048),
        norms.layer_norm(None, 1e-5),
        causal=never,
        qk_norms=norms.all_heads_layer_norm(1e-5),
    ),
    bert("roformer", usual_sizes(length=1536), _roformer, input_norm=_roformer_norm, beyond=_turned_values),
)
