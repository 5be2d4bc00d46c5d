"""Families with T5's buckets of distances, by a table that all layers share or one of each: one row a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.embedding_sites import on_layer_0
from portpe.config.layer import NO_LENGTH, Family, Layer, Size, Sizes, never
from portpe.config.section import Section, shown
from portpe.encodings import BucketsEncoding, LearnedAxesEncoding, LearnedEncoding
from portpe.errors import SpecError

# Of T5's configs, what is not about self-attention; umt5's own checkpoints say scalable_attention, and nobody reads it.
_HARMLESS = frozenset({"scale_decoder_outputs", "scalable_attention"})
_HIDDEN, _HEADS = ("d_model", "hidden_size"), ("num_heads", "num_attention_heads")


def _buckets(*, bidirectional: bool) -> Callable[[Layer], dict[str, Any]]:
    def site(layer: Layer) -> dict[str, Any]:
        encoding = BucketsEncoding(
            num_buckets=layer.config.integer("relative_attention_num_buckets", 32),
            max_distance=layer.config.integer("relative_attention_max_distance", 128),
            bidirectional=bidirectional,
        )
        return {"bias": (encoding,)}

    return site


def _always(layer: Layer) -> bool:  # noqa: ARG001
    return True


def _unscaled(layer: Layer) -> float:  # noqa: ARG001
    """T5 initialises q_proj so that q.k needs no 1 / sqrt(head_dim)."""
    return 1.0


def _decoder_layers(default: int) -> Callable[[Section], int]:
    """``num_decoder_layers``, or as many as the encoder has."""

    def layers(config: Section) -> int:
        encoder = config.integer(config.either("num_layers", "num_hidden_layers"), default)
        return config.integer("num_decoder_layers", encoder)

    return layers


def _head_dim(config: Section, _kind: str) -> int:
    """``d_kv``, whatever the hidden size is."""
    return config.integer(config.either("d_kv", "head_dim"), 64)


def _square_head_dim(config: Section, kind: str) -> int:
    """Pix2Struct: projections are as wide as hidden_size, so ``d_kv`` has to divide it."""
    width, heads = config.integer("hidden_size", 768), config.integer(config.either(*_HEADS), 12)
    if _head_dim(config, kind) * heads != width:
        raise SpecError(f"d_kv must be hidden_size / num_heads = {width} / {heads}, got {_head_dim(config, kind)}")
    return width // heads


def _t5(
    model_type: str,
    part: str | None,
    sizes: tuple[int, int, int] = (512, 6, 8),
    *,
    hidden: tuple[str, ...] = _HIDDEN,
    head_dim: Callable[[Section, str], int] = _head_dim,
    harmless: frozenset[str] = frozenset(),
    **more: Any,
) -> Family:
    """One stack: the encoder two-way, the decoder causal. ``sizes``: hidden, layers, heads."""
    encodes = part == "encoder"
    keys = ("num_layers", "num_hidden_layers")
    return Family(
        model_type,
        Sizes(
            hidden=Size(hidden, sizes[0]),
            heads=Size(_HEADS, sizes[2]),
            layers=_decoder_layers(sizes[1]) if part == "decoder" else Size(keys, sizes[1]),
            head_dim=head_dim,
            length=Size(("n_positions",), 0),
        ),
        _buckets(bidirectional=encodes),
        projection_biases.fixed(""),
        part=part,
        scale=_unscaled,
        input_norm=norms.rms("layer_norm_epsilon", 1e-6),
        harmless=_HARMLESS | harmless,
        causal=never if encodes else _always,
        **more,
    )


def _both(model_type: str, sizes: tuple[int, int, int] = (512, 6, 8), **more: Any) -> tuple[Family, Family]:
    return _t5(model_type, "encoder", sizes, **more), _t5(model_type, "decoder", sizes, **more)


def _local(layer: Layer) -> dict[str, Any]:
    """LongT5's encoder: a token sees ``local_radius`` others on either side."""
    kind = layer.config.text("encoder_attention_type", "local")
    if kind != "local":
        raise SpecError(
            f"encoder_attention_type must be 'local', got {shown(kind)}; keys that are sums of blocks are not supported"
        )
    return {"window_radius": layer.config.integer("local_radius", 127)}


def _mpnet(layer: Layer) -> dict[str, Any]:
    """A trained table of positions behind padding_idx 1, and buckets whose table all layers share."""
    return _table_behind_padding(layer) | _buckets(bidirectional=True)(layer)


def _table_behind_padding(layer: Layer) -> dict[str, Any]:
    rows = layer.config.integer("max_position_embeddings", 512)
    if rows <= MPNET_OFFSET:
        raise SpecError(f"max_position_embeddings must be > {MPNET_OFFSET}, got {rows}; positions start there")
    encoding = LearnedEncoding(rows=rows, width=layer.hidden_size, offset=MPNET_OFFSET)
    return on_layer_0(layer, encoding)


def _mpnet_length(layer: Layer) -> int | None:
    rows = layer.max_position_embeddings
    return None if rows is None else rows - MPNET_OFFSET


MPNET_OFFSET = 2  # its padding_idx is 1, whatever pad_token_id says
_MPNET = Family(
    "mpnet",
    Sizes(
        hidden=Size(("hidden_size",), 768),
        heads=Size(("num_attention_heads",), 12),
        layers=Size(("num_hidden_layers",), 12),
        head_dim=None,
        length=Size(("max_position_embeddings",), 512),
    ),
    _mpnet,
    projection_biases.fixed("qkvo"),
    causal=never,
    trained_length=_mpnet_length,
    input_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12),
    fixed={"relative_attention_num_buckets": (32,)},
)


def _pix2struct_image(layer: Layer) -> dict[str, Any]:
    """Rows and columns of patches, which the model counts from 1: row 0 of its tables is a pad's."""
    count = layer.config.integer("seq_len", 4096)
    encoding = LearnedAxesEncoding(rows=(count, count), width=layer.hidden_size, offset=1)
    return on_layer_0(layer, encoding)


_PIX2STRUCT_IMAGE = Family(
    "pix2struct_vision_model",
    Sizes(
        hidden=Size(("hidden_size",), 768),
        heads=Size(("num_attention_heads",), 12),
        layers=Size(("num_hidden_layers",), 12),
        head_dim=_head_dim,
        length=NO_LENGTH,
    ),
    _pix2struct_image,
    projection_biases.fixed(""),
    scale=_unscaled,
    causal=never,
    input_norm=norms.rms("layer_norm_eps", 1e-6),
    harmless=frozenset({"relative_attention_num_buckets", "relative_attention_max_distance"}),  # read by nobody
)

BUCKET_FAMILIES = (
    *_both("t5"),
    *_both("mt5", (512, 8, 6)),
    *_both("umt5", (512, 8, 6)),
    *_both("pop2piano"),
    *_both("switch_transformers", (768, 12, 12)),
    _t5("longt5", "encoder", extras=_local),
    _t5("longt5", "decoder", harmless=frozenset({"encoder_attention_type", "local_radius"})),
    _t5("udop", "decoder", (1024, 24, 16), harmless=frozenset({"max_2d_position_embeddings", "relative_bias_args"})),
    _t5("pix2struct_text_model", None, (768, 12, 12), hidden=("hidden_size",), head_dim=_square_head_dim),
    _PIX2STRUCT_IMAGE,
    _MPNET,
)
