"""Reformer: a table of positions made of two, one row beside another."""

from __future__ import annotations

import math
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.embedding_sites import learned, on_layer_0
from portpe.config.layer import Family, Layer, Size, Sizes, has
from portpe.config.section import Section, shown
from portpe.encodings import LearnedEncoding
from portpe.errors import SpecError

_LENGTH = "max_position_embeddings"


def _layers(config: Section) -> int:
    kinds = config.get("attn_layers")
    if kinds is None:
        return 6
    if not isinstance(kinds, list | tuple) or not kinds:
        raise SpecError(f"attn_layers must list 'local' or 'lsh' for each layer, got {shown(kinds)}")
    return len(kinds)


def _site(layer: Layer) -> dict[str, Any]:
    """Reformer: a row of one table beside a row of another, p // columns and p % columns; or one table, not factored.

    Both are one table of rows * columns rows.
    """
    config = layer.config
    factored = config.flag("axial_pos_embds", True)
    shape, widths = (_pair(config, key, absent) for key, absent in _AXIAL.items())
    if not factored:
        return learned(_LENGTH, 4096)(layer)
    if sum(widths) != layer.hidden_size:
        raise SpecError(f"axial_pos_embds_dim must sum up to hidden_size = {layer.hidden_size}, got {shown(widths)}")
    encoding = LearnedEncoding(rows=math.prod(shape), width=layer.hidden_size)
    return on_layer_0(layer, encoding)


def _pair(config: Section, key: str, absent: tuple[int, int]) -> tuple[int, ...]:
    given = config.get(key)
    if given is None:
        return absent
    whole = isinstance(given, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    if not whole or len(given) != 2 or min(given) < 1:
        raise SpecError(f"{key} must be two integers >= 1, got {shown(given)}")
    return tuple(given)


_AXIAL = {"axial_pos_shape": (64, 64), "axial_pos_embds_dim": (64, 192)}
_HARMLESS = frozenset(
    {
        *("axial_norm_std", "local_attn_chunk_length", "lsh_attn_chunk_length", "chunk_size_lm_head"),
        *("local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob"),
    }
)

REFORMER = Family(
    "reformer",
    Sizes(
        hidden=Size(("hidden_size",), 256),
        heads=Size(("num_attention_heads",), 12),
        layers=_layers,
        head_dim=lambda config, _kind: config.integer("attention_head_size", 64),
        length=Size((_LENGTH,), 4096),
    ),
    _site,
    projection_biases.fixed(""),
    causal=lambda layer: layer.config.flag("is_decoder", False),
    input_norm=norms.layer_norm("layer_norm_eps", 1e-12),
    beyond=has("chunks or hashes that choose keys, and no root of head_dim"),
    harmless=_HARMLESS,
)
