"""The encodings of families that add positions to their embeddings, as fields of AttentionSpec: on layer 0 alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from portpe.config.layer import Layer
from portpe.config.section import Section, shown
from portpe.encodings import EmbeddingEncoding, LearnedEncoding, SinusoidalEncoding
from portpe.errors import SpecError
from portpe.layer_parts import EmbeddingProjection

Site = Callable[[Layer], dict[str, Any]]
Offset = int | Callable[[Section], int]
_ROWS = "max_position_embeddings"


def learned(length_key: str, default: int, *, extra_rows: int = 0) -> Site:
    """A trained table over the hidden size. ``extra_rows`` stand before position 0 (OPT, BART: 2)."""

    def site(layer: Layer) -> dict[str, Any]:
        rows = layer.config.integer(length_key, default) + extra_rows
        _absolute_only(layer.config)
        return on_layer_0(layer, LearnedEncoding(rows=rows, width=layer.hidden_size, offset=extra_rows))

    return site


def padded(length: int = 512, padding: int | None = 1) -> Site:
    """RoBERTa: the table's rows include padding_idx and those before it; position 0 reads padding_idx + 1.

    ``padding`` is the family's default pad_token_id, None where it has none.
    """

    def site(layer: Layer) -> dict[str, Any]:
        rows = layer.config.integer(_ROWS, length)
        offset = padded_offset(layer.config, length, padding)
        _absolute_only(layer.config)
        return on_layer_0(layer, LearnedEncoding(rows=rows, width=layer.hidden_size, offset=offset))

    return site


def padded_offset(config: Section, length: int = 512, padding: int | None = 1) -> int:
    """The row that position 0 reads in a table of ``length`` rows (by default) whose row padding_idx is the pads'."""
    offset = after_padding(config, padding)
    rows = config.integer(_ROWS, length)
    if rows <= offset:
        raise SpecError(f"{_ROWS} must be > pad_token_id + 1 = {offset}, got {rows}")
    return offset


def after_padding(config: Section, default: int | None = 1) -> int:
    """The first row past padding_idx."""
    if not config.has("pad_token_id") and ("pad_token_id" in config.data or default is None):
        raise SpecError("pad_token_id must be an integer >= 0, got None; it places the first position")
    return config.integer("pad_token_id", default or 0, minimum=0) + 1


def projected(width_key: str, default: int, *, always: bool = True) -> Site:
    """A table over ``width_key``, projected to hidden_size before layer 0 (ALBERT, ELECTRA).

    ``always`` False: no projection stands where the two are equal.
    """

    def site(layer: Layer) -> dict[str, Any]:
        width = layer.config.integer(width_key, default)
        rows = layer.config.integer(_ROWS, 512)
        _absolute_only(layer.config)
        site = on_layer_0(layer, LearnedEncoding(rows=rows, width=width))
        if not site or (width == layer.hidden_size and not always):
            return site
        return site | {"embedding_projection": EmbeddingProjection(width=width, bias=True)}

    return site


def sinusoids(
    order: Literal["interleaved", "sin_cos", "cos_sin"],
    denominator: Literal["half", "half_minus_one"] = "half_minus_one",
    *,
    offset: Offset = 0,
    settings: Mapping[str, Any] = MappingProxyType({}),
    rows: tuple[str, int] | Callable[[Section], int] | None = None,
) -> Site:
    """Sines and cosines over the hidden size.

    ``rows``: the key and default of a table's length, or a rule for it; None where it has no end. ``settings``: other
    fields of the encoding.
    """

    def site(layer: Layer) -> dict[str, Any]:
        config = layer.config
        start = offset(config) if callable(offset) else offset
        end = config.integer(*rows) if isinstance(rows, tuple) else rows and rows(config)
        fixed = {"width": layer.hidden_size, "order": order, "denominator": denominator}
        return on_layer_0(layer, SinusoidalEncoding(**fixed, offset=start, rows=end, **settings))

    return site


def switched(key: str, default: bool, on: Site, off: Site) -> Site:
    """One site where the key is true, another where it is false."""
    return lambda layer: (on if layer.config.flag(key, default) else off)(layer)


def embed_scale(key: str, default: bool) -> Callable[[Layer], dict[str, Any]]:
    """sqrt(hidden size) as a multiplier of the token embeddings where the key is true."""

    def extras(layer: Layer) -> dict[str, Any]:
        scaled = layer.config.flag(key, default) and layer.index == 0
        return {"embed_scale": math.sqrt(layer.hidden_size)} if scaled else {}

    return extras


def on_layer_0(layer: Layer, encoding: EmbeddingEncoding) -> dict[str, Any]:
    """An encoding that is added once, before the first layer."""
    return {"embedding": encoding} if layer.index == 0 else {}


def _absolute_only(config: Section) -> None:
    kind = config.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise SpecError(f"position_embedding_type must be 'absolute', got {shown(kind)}; no other is supported")
