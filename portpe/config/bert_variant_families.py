"""Encoders of text with the positions of BERT or RoBERTa and an attention, or embeddings, of their own kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import norms
from portpe.config.bert_families import bert, roberta, usual_sizes
from portpe.config.embedding_sites import learned, on_layer_0, projected
from portpe.config.layer import Family, Layer, Size, Sizes, has
from portpe.config.section import Section
from portpe.encodings import LearnedEncoding
from portpe.errors import SpecError

_LENGTH = "max_position_embeddings"


def _luke(layer: Layer) -> str | None:
    aware = layer.config.flag("use_entity_aware_attention", True)
    return "queries of their own between words and entities" if aware else None


def _squeezebert(layer: Layer) -> dict[str, Any]:
    width = layer.config.integer("embedding_size", layer.hidden_size)
    if width != layer.hidden_size:
        raise SpecError(f"embedding_size must equal hidden_size = {layer.hidden_size}, got {width}")
    return learned(_LENGTH, 512)(layer)


def _grouped(layer: Layer) -> str | None:
    keys = ("q_groups", "k_groups", "v_groups")
    groups = max(layer.config.integer(key, 4) for key in keys)
    groups = max(groups, layer.config.integer("post_attention_groups", 1))
    return "projections in groups of channels" if groups > 1 else None


def _true_hidden_size(config: Section) -> int:
    """MobileBERT: what queries are made of, and with them the width of all heads."""
    bottleneck = config.flag("use_bottleneck", True)
    return config.integer("intra_bottleneck_size", 128) if bottleneck else config.integer("hidden_size", 512)


def _mobilebert_head(config: Section, _kind: str) -> int:
    width, heads = _true_hidden_size(config), config.integer("num_attention_heads", 4)
    if (stated := config.integer("true_hidden_size", width)) != width:
        raise SpecError(f"true_hidden_size must be {width} with use_bottleneck as it is, got {stated}")
    if width % heads:
        raise SpecError(f"num_attention_heads must divide {width}, what queries are made of, got {heads}")
    return width // heads


def _convbert_heads(config: Section, _index: int, _kind: str) -> int:
    """One of ``head_ratio`` heads is left: the others' share goes to a convolution."""
    return max(config.integer("num_attention_heads", 12) // config.integer("head_ratio", 2), 1)


def _convbert_head(config: Section, kind: str) -> int:
    return config.integer("hidden_size", 768) // _convbert_heads(config, 0, kind) // 2


def _nystroms(layer: Layer) -> str | None:
    """Landmarks stand for the sequence where they are fewer; the convolution is switched by its size."""
    config = layer.config
    landmarks, length = config.integer("num_landmarks", 64), config.integer("segment_means_seq_len", 64)
    if landmarks != length:
        return "landmarks in place of the sequence"
    absent = "conv_kernel_size" in config.data and not config.has("conv_kernel_size")
    return None if absent else "a convolution of its values"


def _canine(layer: Layer) -> dict[str, Any]:
    """CANINE: a row a character, as many as hash buckets; the last one read is max_position_embeddings - 1."""
    buckets = layer.config.integer("num_hash_buckets", 16384)
    length = layer.config.integer(_LENGTH, 16384)
    if length > buckets:
        raise SpecError(f"{_LENGTH} must be <= num_hash_buckets = {buckets}, the rows of the table, got {length}")
    return on_layer_0(layer, LearnedEncoding(rows=buckets, width=layer.hidden_size))


def _canine_layers(config: Section) -> int:
    """A shallow layer over characters, the deep ones over groups of them, a shallow one over characters."""
    return config.integer("num_hidden_layers", 12) + 2


def _canine_beyond(layer: Layer) -> str | None:
    return "attention within chunks of characters" if layer.index == 0 else None


def _blip_causal(layer: Layer) -> bool:
    layer.warn("is_decoder decides whether the layer is causal; transformers' models of retrieval call it two-way")
    return layer.config.flag("is_decoder", True)


def _blip2_queries(layer: Layer) -> dict[str, Any]:
    """BLIP-2: with text a table for it; queries alone have no positions."""
    return learned(_LENGTH, 512)(layer) if layer.config.flag("use_qformer_text_input", False) else {}


def _blip2_beyond(layer: Layer) -> str | None:
    return _QUERIES(layer) if layer.config.flag("use_qformer_text_input", False) else None


_QUERIES = has("queries before its text, which have no positions")
_LXMERT = Sizes(
    hidden=Size(("hidden_size",), 768),
    heads=Size(("num_attention_heads",), 12),
    layers=Size(("l_layers",), 9),
    head_dim=None,
    length=Size((_LENGTH,), 512),
)


def _qformer(model_type: str, **more: Any) -> Family:
    """A Q-Former: BERT's table for the text behind the queries, one norm over both."""
    harmless = frozenset({"cross_attention_frequency"})
    return bert(model_type, decodes=False, harmless=harmless, **{"beyond": _QUERIES} | more)


BERT_VARIANT_FAMILIES = (
    roberta("luke", decodes=False, beyond=_luke),
    roberta("ibert", decodes=False, fixed={"quant_mode": (False,)}),
    roberta(
        "lilt",
        padding=0,
        decodes=False,
        beyond=has("a second flow of attention over boxes, whose scores join"),
        harmless=frozenset({"max_2d_position_embeddings"}),
    ),
    bert("bros", beyond=has("scores of the boxes' distances"), harmless=frozenset({"bbox_scale"})),
    bert(
        "lxmert",
        _LXMERT,
        decodes=False,
        input_norm=norms.embedding_layer_norm(None, 1e-12),
        harmless=frozenset({"visual_loss_normalizer", "visual_pos_dim"}),
    ),
    bert(
        "mobilebert",
        usual_sizes(512, 4, 24, head_dim=_mobilebert_head),
        decodes=False,
        beyond=has("a bottleneck around it and norms that only scale and shift"),
        harmless=frozenset({"normalization_type", "use_bottleneck_attention", "layer_norm_eps"}),
    ),
    bert("squeezebert", site=_squeezebert, decodes=False, beyond=_grouped),
    bert(
        "convbert",
        Sizes(
            hidden=Size(("hidden_size",), 768),
            heads=_convbert_heads,
            layers=Size(("num_hidden_layers",), 12),
            head_dim=_convbert_head,
            length=Size((_LENGTH,), 512),
        ),
        projected("embedding_size", 768, always=False),
        decodes=False,
        beyond=has("a convolution beside its heads"),
    ),
    bert(
        "nystromformer",
        usual_sizes(length=510),
        learned(_LENGTH, 510, extra_rows=2),
        decodes=False,
        eps=1e-5,
        beyond=_nystroms,
    ),
    bert(
        "mra",
        site=learned(_LENGTH, 512, extra_rows=2),
        decodes=False,
        eps=1e-5,
        beyond=has("an approximation by blocks of two resolutions"),
    ),
    bert(
        "yoso",
        usual_sizes(length=4096),
        learned(_LENGTH, 4096, extra_rows=2),
        decodes=False,
        beyond=has("collisions of hashes in place of a softmax"),
        harmless=frozenset({"conv_window"}),
    ),
    bert(
        "canine",
        Sizes(
            hidden=Size(("hidden_size",), 768),
            heads=Size(("num_attention_heads",), 12),
            layers=_canine_layers,
            head_dim=None,
            length=Size((_LENGTH,), 16384),
        ),
        _canine,
        decodes=False,
        beyond=_canine_beyond,
    ),
    replace(bert("blip_text_model", usual_sizes(768, 8)), causal=_blip_causal),
    _qformer("blip_2_qformer", site=_blip2_queries, beyond=_blip2_beyond),
    _qformer("instructblip_qformer"),
    _qformer("instructblipvideo_qformer"),
)
