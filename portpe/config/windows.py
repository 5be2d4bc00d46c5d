"""Which layers see a sliding window, and how wide: a family's rule, by layer.

``sliding_window`` w is transformers' own: the query at slot i sees slots i-w+1..i.
"""

from __future__ import annotations

from portpe.config.layer import FULL, SLIDING, WindowOf
from portpe.config.section import Section, shown
from portpe.errors import SpecError


def every_layer(default: int | None) -> WindowOf:
    """One ``sliding_window`` for all layers; null means none, absent means the family's default."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:  # noqa: ARG001
        if config.has("sliding_window"):
            window: int | None = config.integer("sliding_window")
        else:
            window = None if "sliding_window" in config.data else default
        return (FULL if window is None else SLIDING), window

    return window_of


def upper_layers(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """Qwen: with ``use_sliding_window``, the layers from ``max_window_layers`` on; ``layer_types`` goes first."""
    if not config.flag("use_sliding_window", False):
        config.get("sliding_window"), config.get("max_window_layers")
        kind = _listed_type(config, index, num_layers) or FULL
        if kind == SLIDING:
            raise SpecError(f"layer_types[{index}] must be {FULL!r} while use_sliding_window is false, got {SLIDING!r}")
        return FULL, None
    window = every_layer(4096)(config, index, num_layers)[1]
    first = config.integer("max_window_layers", 28, minimum=0)
    by_rule = SLIDING if window is not None and index >= first else FULL
    return _typed(_listed_type(config, index, num_layers) or by_rule, window, index)


def alternating(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """GPT-OSS: even layers slide over ``sliding_window`` (128), odd layers see all; ``layer_types`` goes first."""
    window = every_layer(128)(config, index, num_layers)[1]
    by_rule = FULL if index % 2 else SLIDING
    return _typed(_listed_type(config, index, num_layers) or by_rule, window, index)


def _typed(kind: str, window: int | None, index: int) -> tuple[str, int | None]:
    if kind == FULL:
        return FULL, None
    if window is None:
        raise SpecError(f"sliding_window is required and missing: layer {index} is of type {SLIDING!r}")
    return SLIDING, window


def _listed_type(config: Section, index: int, num_layers: int) -> str | None:
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list | tuple) or len(kinds) != num_layers:
        count = len(kinds) if isinstance(kinds, list | tuple) else shown(kinds)
        raise SpecError(f"layer_types must list a type for each of the {num_layers} layers, got {count}")
    kind = FULL if kinds[index] == "attention" else kinds[index]
    if kind not in (FULL, SLIDING):
        raise SpecError(f"layer_types[{index}] must be {FULL!r} or {SLIDING!r}, got {shown(kinds[index])}")
    return str(kind)
