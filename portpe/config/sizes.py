"""The sizes of one layer from a config, checked under the config's own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from portpe.config.layer import Family, Layer, Size, Sizes
from portpe.config.section import Section, shown
from portpe.config.unknown_keys import UnknownKeys
from portpe.errors import SpecError


def num_layers(config: Section, family: Family) -> int:
    """How many layers the stack has."""
    rule = family.sizes.layers
    return rule(config) if callable(rule) else _size(config, rule)


def layer_of(
    config: Section, family: Family, index: int, *, warn: Callable[[str], None], unknown: UnknownKeys
) -> Layer:
    """The layer ``index`` of a config: sizes, type and window.

    Raises:
        SpecError: a size is not a positive integer, heads do not divide, a window is missing.
    """
    sizes = family.sizes
    layers = num_layers(config, family)
    _warn_of_defaults(config, (sizes.hidden, sizes.heads, sizes.layers), warn)
    hidden = sizes.hidden(config, index) if callable(sizes.hidden) else _size(config, sizes.hidden)
    kind, window = family.window(config, index, layers)
    heads = sizes.heads(config, index, kind) if callable(sizes.heads) else _size(config, sizes.heads)
    return Layer(
        config=config,
        index=index,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(config, sizes, heads, kind),
        head_dim=_head_dim(config, sizes, hidden, heads, kind),
        max_position_embeddings=_size(config, sizes.length) or None,
        type=kind,
        window=window,
        warn=warn,
        unknown=unknown,
    )


def _size(config: Section, size: Size) -> int:
    return config.integer(config.either(*size.keys), size.default)


def _warn_of_defaults(config: Section, sizes: Iterable[Any], warn: Callable[[str], None]) -> None:
    for size in sizes:
        if isinstance(size, Size) and not config.has(config.either(*size.keys)):
            warn(f"{size.keys[0]} is absent: {size.default}, the default of transformers' config class, is taken")


def _kv_heads(config: Section, sizes: Sizes, heads: int, kind: str) -> int:
    rule = sizes.kv_heads
    if callable(rule):
        key, kv_heads = "num_kv_heads", rule(config, heads, kind)
    else:
        key = "num_key_value_heads"
        null = key in config.data and not config.has(key)
        default = heads if rule is None or null else rule.default or heads
        kv_heads = config.integer(key, default)
        if rule is None and kv_heads != heads:
            raise SpecError(f"{key} must equal the {heads} query heads for this model_type, got {kv_heads}")
    if heads % kv_heads:
        raise SpecError(f"{_heads_key(sizes)} must be a multiple of {key} = {kv_heads}, got {heads}")
    return kv_heads


def _heads_key(sizes: Sizes) -> str:
    return "num_attention_heads" if callable(sizes.heads) else sizes.heads.keys[0]


def _head_dim(config: Section, sizes: Sizes, hidden: int, heads: int, kind: str) -> int:
    if callable(sizes.head_dim):
        return sizes.head_dim(config, kind)
    given = config.integer("head_dim") if config.has("head_dim") else None
    if given is not None and sizes.head_dim is not None:
        return given
    if given is None and sizes.head_dim and "head_dim" not in config.data:
        return sizes.head_dim
    hidden_key = "hidden_size" if callable(sizes.hidden) else config.either(*sizes.hidden.keys)
    heads_key = _heads_key(sizes) if callable(sizes.heads) else config.either(*sizes.heads.keys)
    if hidden % heads:
        raise SpecError(f"{hidden_key} must be a multiple of {heads_key} = {heads}, got {hidden}")
    if given is not None and given != hidden // heads:
        raise SpecError(
            f"head_dim must be {hidden_key} / {heads_key} = {hidden // heads} for this model_type, got {shown(given)}"
        )
    return hidden // heads
