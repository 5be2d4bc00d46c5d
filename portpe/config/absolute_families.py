"""Families whose positions are added to the embeddings: one row a model_type and part."""

from __future__ import annotations

from portpe.config import norms, projection_biases, sites
from portpe.config.layer import Family, Layer, Size, Sizes

_LENGTH = "max_position_embeddings"
_BERT_SIZES = Sizes(
    hidden=Size(("hidden_size",), 768),
    heads=Size(("num_attention_heads",), 12),
    layers=Size(("num_hidden_layers",), 12),
    head_dim=None,
    length=Size((_LENGTH,), 512),
)


def _gpt2_scale(layer: Layer) -> float:
    """1 / sqrt(head_dim) unless switched off, and over the layer's number (from 1) where that is on."""
    scale = float(layer.head_dim**-0.5) if layer.config.flag("scale_attn_weights", True) else 1.0
    return scale / (layer.index + 1) if layer.config.flag("scale_attn_by_inverse_layer_idx", False) else scale


def _roberta_length(layer: Layer) -> int | None:
    """RoBERTa's max_position_embeddings counts the table's rows: positions start after padding_idx."""
    length = layer.max_position_embeddings
    return None if length is None else length - sites.roberta_offset(layer.config)


def _decoder_switch(layer: Layer) -> bool:
    return layer.config.flag("is_decoder", False)


def _never(layer: Layer) -> bool:  # noqa: ARG001
    return False


def _whisper(part: str) -> Family:
    encoder = part == "encoder"
    other = "decoder" if encoder else "encoder"
    length = Size(("max_source_positions",), 1500) if encoder else Size(("max_target_positions",), 448)
    return Family(
        "whisper",
        Sizes(
            hidden=Size(("d_model", "hidden_size"), 384),
            heads=Size((f"{part}_attention_heads",), 6),
            layers=Size((f"{part}_layers",), 4),
            head_dim=None,
            length=length,
        ),
        sites.whisper_sinusoids if encoder else sites.learned(length.keys[0], length.default),
        projection_biases.fixed("qvo"),
        part=part,
        causal=_never if encoder else (lambda _layer: True),
        input_norm=norms.layer_norm(None, 1e-5),
        harmless=frozenset({f"{other}_attention_heads", "max_source_positions", "max_target_positions"}),
        fixed={"scale_embedding": (False,)},
    )


ABSOLUTE_FAMILIES = (
    Family(
        "gpt2",
        Sizes(
            hidden=Size(("n_embd", "hidden_size"), 768),
            heads=Size(("n_head", "num_attention_heads"), 12),
            layers=Size(("n_layer", "num_hidden_layers"), 12),
            head_dim=None,
            length=Size(("n_positions", _LENGTH), 1024),
        ),
        sites.learned("n_positions", 1024),
        projection_biases.fixed("qkvo"),
        scale=_gpt2_scale,
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5),
        harmless=frozenset({"reorder_and_upcast_attn"}),
    ),
    Family(
        "opt",
        Sizes(
            hidden=Size(("hidden_size",), 768),
            heads=Size(("num_attention_heads",), 12),
            layers=Size(("num_hidden_layers",), 12),
            head_dim=None,
            length=Size((_LENGTH,), 2048),
        ),
        sites.learned(_LENGTH, 2048, extra_rows=2),
        projection_biases.switched("enable_bias", True, "qkvo"),
        input_norm=norms.opt_layer_norm,
        harmless=frozenset({"_remove_final_layer_norm"}),
        fixed={"scale_embeddings": (False,)},
    ),
    Family(
        "bert",
        _BERT_SIZES,
        sites.learned(_LENGTH, 512),
        projection_biases.fixed("qkvo"),
        causal=_decoder_switch,
        input_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12),
        harmless=frozenset({"pooler_num_attention_heads", "pooler_size_per_head"}),
    ),
    Family(
        "roberta",
        _BERT_SIZES,
        sites.roberta_learned,
        projection_biases.fixed("qkvo"),
        causal=_decoder_switch,
        trained_length=_roberta_length,
        input_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12),
    ),
    Family(
        "albert",
        Sizes(
            hidden=Size(("hidden_size",), 4096),
            heads=Size(("num_attention_heads",), 64),
            layers=Size(("num_hidden_layers",), 12),
            head_dim=None,
            length=Size((_LENGTH,), 512),
        ),
        sites.albert_learned,
        projection_biases.fixed("qkvo"),
        causal=_never,
        input_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12),
        harmless=frozenset({"down_scale_factor"}),
        fixed={"inner_group_num": (1,)},
    ),
    _whisper("encoder"),
    _whisper("decoder"),
)
