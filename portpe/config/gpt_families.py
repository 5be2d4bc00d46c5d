"""Causal decoders with positions in their embeddings, from GPT on: one row a model_type."""

from __future__ import annotations

import math
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.embedding_sites import after_padding, embed_scale, learned, sinusoids, switched
from portpe.config.layer import FULL, SLIDING, Family, Layer, Size, Sizes, has, one
from portpe.config.section import Section, shown
from portpe.errors import SpecError
from portpe.layer_parts import Norm

_LENGTH = "max_position_embeddings"
_ALL = projection_biases.fixed("qkvo")
_GPT_NORM = norms.layer_norm("layer_norm_epsilon", 1e-5)


def _sizes(hidden: int, heads: int, layers: int, length: int, **more: Any) -> Sizes:
    """GPT-2's names."""
    return Sizes(
        hidden=Size(("n_embd", "hidden_size"), hidden),
        heads=Size(("n_head", "num_attention_heads"), heads),
        layers=Size(("n_layer", "num_hidden_layers"), layers),
        head_dim=None,
        length=Size(("n_positions", _LENGTH), length),
        **more,
    )


def _usual(hidden: int, heads: int, layers: int, length: int, **more: Any) -> Sizes:
    return Sizes(
        hidden=Size(("hidden_size",), hidden),
        heads=Size(("num_attention_heads",), heads),
        layers=Size(("num_hidden_layers",), layers),
        length=Size((_LENGTH,), length),
        **{"head_dim": None} | more,
    )


def _xlm_sizes() -> Sizes:
    return Sizes(
        hidden=Size(("emb_dim", "hidden_size"), 2048),
        heads=Size(("n_heads", "num_attention_heads"), 16),
        layers=Size(("n_layers", "num_hidden_layers"), 12),
        head_dim=None,
        length=Size((_LENGTH,), 512),
    )


def _gpt2_scale(layer: Layer) -> float:
    """1 / sqrt(head_dim) unless switched off, and over the layer's number (from 1) where that is on."""
    scale = _switched_scale(layer)
    return scale / (layer.index + 1) if layer.config.flag("scale_attn_by_inverse_layer_idx", False) else scale


def _switched_scale(layer: Layer) -> float:
    return float(layer.head_dim**-0.5) if layer.config.flag("scale_attn_weights", True) else 1.0


def _one_kv_head(config: Section, num_heads: int, _kind: str) -> int:
    """One with ``multi_query``, else one a query head; transformers writes the number beside."""
    count = 1 if config.flag("multi_query", True) else num_heads
    if (stated := config.integer("num_key_value_heads", count)) != count:
        raise SpecError(f"num_key_value_heads must be {count} with multi_query as it is, got {stated}")
    return count


def _neo_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """GPT-Neo: ``attention_types`` [[kinds, times], ...], global and local in turn, local over ``window_size`` keys."""
    window = config.integer("window_size", 256)
    blocks = config.get("attention_types")
    try:
        listed = [kind for kinds, times in blocks for _ in range(times) for kind in kinds]
    except (TypeError, ValueError):
        listed = []
    kinds = ["global", "local"] * (num_layers // 2) if blocks is None else listed
    if len(kinds) != num_layers or set(kinds) - {"global", "local"}:
        raise SpecError(
            f"attention_types must list 'global' or 'local' for each of the {num_layers} layers, got {shown(blocks)}"
        )
    stated = config.get("attention_layers")
    if stated is not None and stated not in (kinds, tuple(kinds)):
        raise SpecError(f"attention_layers must agree with attention_types, got {shown(stated)}")
    return (SLIDING, window) if kinds[index] == "local" else (FULL, None)


def _ctrl_extras(layer: Layer) -> dict[str, Any]:
    return {"embed_scale": math.sqrt(layer.hidden_size)} if layer.index == 0 else {}


def _xlm_causal(layer: Layer) -> bool:
    return layer.config.flag("causal", False)


def _flaubert_norm(layer: Layer) -> Norm | None:
    before = layer.config.flag("pre_norm", False)
    return (norms.layer_norm if before else norms.embedding_layer_norm)("layer_norm_eps", 1e-12)(layer)


def _flaubert_embedding_norm(layer: Layer) -> Norm | None:
    closing = norms.embedding_layer_norm("layer_norm_eps", 1e-12)
    return closing(layer) if layer.config.flag("pre_norm", False) else None


def _trocr_norm(layer: Layer) -> Norm | None:
    closes = layer.config.flag("layernorm_embedding", True)
    return norms.embedding_layer_norm(None, 1e-5)(layer) if closes else None


def _xlm(model_type: str, **more: Any) -> Family:
    """XLM: a trained table, or the paper's sinusoids where ``sinusoidal_embeddings`` is true."""
    return Family(
        model_type,
        _xlm_sizes(),
        switched(
            "sinusoidal_embeddings",
            False,
            sinusoids("interleaved", "half", rows=(_LENGTH, 512)),
            learned(_LENGTH, 512),
        ),
        _ALL,
        causal=_xlm_causal,
        fixed={"is_encoder": (True,)},
        **more,
    )


def _musicgen(model_type: str) -> Family:
    """Cosines, then sines; transformers never applies ``scale_embedding``."""
    return Family(
        model_type,
        _usual(1024, 16, 24, 2048),
        sinusoids("cos_sin"),
        projection_biases.fixed(""),
        input_norm=norms.layer_norm(None, 1e-5),
        fixed={"scale_embedding": (False,)},
    )


def _kosmos(model_type: str, sizes: tuple[int, int, int], length: int, **more: Any) -> Family:
    """KOSMOS: fairseq's sinusoids behind padding_idx. ``sizes``: hidden, layers, heads."""
    return Family(
        model_type,
        Sizes(
            hidden=Size(("embed_dim", "hidden_size"), sizes[0]),
            heads=Size(("attention_heads", "num_attention_heads"), sizes[2]),
            layers=Size(("layers", "num_hidden_layers"), sizes[1]),
            head_dim=None,
            length=Size((_LENGTH,), length),
        ),
        sinusoids("sin_cos", offset=after_padding),
        _ALL,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
        extras=embed_scale("scale_embedding", True),
        **more,
    )


GPT_FAMILIES = (
    Family(
        "gpt2",
        _sizes(768, 12, 12, 1024),
        learned("n_positions", 1024),
        _ALL,
        scale=_gpt2_scale,
        input_norm=_GPT_NORM,
        harmless=frozenset({"reorder_and_upcast_attn"}),
    ),
    Family(
        "imagegpt",
        _sizes(512, 8, 24, 1024),
        learned("n_positions", 1024),
        _ALL,
        scale=_gpt2_scale,
        input_norm=norms.rms("layer_norm_epsilon", 1e-5),
        harmless=frozenset({"reorder_and_upcast_attn"}),
    ),
    Family(
        "gpt_bigcode",
        _sizes(768, 12, 12, 1024, kv_heads=_one_kv_head),
        learned("n_positions", 1024),
        _ALL,
        scale=_switched_scale,
        input_norm=_GPT_NORM,
        harmless=frozenset({"scale_attention_softmax_in_fp32"}),
    ),
    Family(
        "openai-gpt",
        _sizes(768, 12, 12, 512),
        learned("n_positions", 512),
        _ALL,
        harmless=frozenset({"layer_norm_epsilon"}),
    ),
    Family(
        "gpt_neo",
        Sizes(
            hidden=Size(("hidden_size",), 2048),
            heads=Size(("num_heads", "num_attention_heads"), 16),
            layers=Size(("num_layers", "num_hidden_layers"), 24),
            head_dim=None,
            length=Size((_LENGTH,), 2048),
        ),
        learned(_LENGTH, 2048),
        projection_biases.fixed("o"),
        window=_neo_window,
        scale=one,
        input_norm=_GPT_NORM,
    ),
    Family(
        "opt",
        _usual(768, 12, 12, 2048),
        learned(_LENGTH, 2048, extra_rows=2),
        projection_biases.switched("enable_bias", True, "qkvo"),
        input_norm=norms.opt_layer_norm,
        harmless=frozenset({"_remove_final_layer_norm"}),
        fixed={"scale_embeddings": (False,)},
    ),
    Family(
        "biogpt",
        _usual(1024, 16, 24, 1024),
        learned(_LENGTH, 1024, extra_rows=2),
        _ALL,
        input_norm=norms.layer_norm(None, 1e-5),
        extras=embed_scale("scale_embedding", True),
        harmless=frozenset({"layer_norm_eps"}),
    ),
    Family(
        "xglm",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 1024),
            heads=Size(("attention_heads", "num_attention_heads"), 16),
            layers=Size(("num_layers", "num_hidden_layers"), 24),
            head_dim=None,
            length=Size((_LENGTH,), 2048),
        ),
        sinusoids("sin_cos", offset=2),
        _ALL,
        input_norm=norms.layer_norm(None, 1e-5),
        extras=embed_scale("scale_embedding", True),
    ),
    Family(
        "ctrl",
        _sizes(1280, 16, 48, 256),
        sinusoids("sin_cos", "half", rows=("n_positions", 256), settings={"contract": "ctrl"}),
        _ALL,
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-6),
        extras=_ctrl_extras,
    ),
    _xlm("xlm", input_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12)),
    _xlm("flaubert", input_norm=_flaubert_norm, embedding_norm=_flaubert_embedding_norm),
    Family(
        "trocr",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 1024),
            heads=Size(("decoder_attention_heads", "num_attention_heads"), 16),
            layers=Size(("decoder_layers", "num_hidden_layers"), 12),
            head_dim=None,
            length=Size((_LENGTH,), 512),
        ),
        switched(
            "use_learned_position_embeddings",
            True,
            learned(_LENGTH, 512, extra_rows=2),
            sinusoids("sin_cos", offset=after_padding),
        ),
        _ALL,
        input_norm=_trocr_norm,
        extras=embed_scale("scale_embedding", False),
    ),
    _kosmos("kosmos_2_text_model", (2048, 24, 32), 2048, beyond=has("a norm before its output projection")),
    _kosmos("kosmos_2_5_text_model", (1536, 24, 16), 4096),
    _musicgen("musicgen_decoder"),
    _musicgen("musicgen_melody_decoder"),
)
