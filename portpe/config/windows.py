"""Which layers see a sliding window, and how wide: a family's rule, by layer.

``sliding_window`` w is transformers' own: the query at slot i sees slots i-w+1..i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from portpe.config.layer import FULL, SLIDING, WindowOf
from portpe.config.section import Section, shown
from portpe.errors import NoAttentionError, SpecError

# What stands in a layer in place of attention, by the names that configs have for it.
# Attention and a recurrence or a convolution side by side.
_BESIDE = {"attention": FULL, "hybrid": FULL, "hybrid_sliding": SLIDING}
NO_ATTENTION = ("linear_attention", "conv", "mamba", "recurrent", "moe", "mlp", "cross_attention")


def every_layer(default: int | None, key: str = "sliding_window") -> WindowOf:
    """One window for all layers; null means none, absent means the family's default."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:  # noqa: ARG001
        if config.has(key):
            window: int | None = config.integer(key)
        else:
            window = None if key in config.data else default
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


def switched(default: int) -> WindowOf:
    """Qwen3-MoE: one window for all layers where ``use_sliding_window`` is true."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        if config.flag("use_sliding_window", False):
            return every_layer(default)(config, index, num_layers)
        config.seen |= {"sliding_window", "max_window_layers"}
        return FULL, None

    return window_of


def alternate_lower_layers(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """Qwen2-MoE: with ``use_sliding_window`` even layers below ``max_window_layers``; ``layer_types`` goes first."""
    last = config.integer("max_window_layers", 28, minimum=0)
    kind, window = switched(4096)(config, index, num_layers)
    by_rule = SLIDING if kind == SLIDING and index % 2 == 0 and index < last else FULL
    return _typed(_listed_type(config, index, num_layers) or by_rule, window, index)


def patterned(
    default: int | None,
    period: int,
    *,
    period_key: str | None = None,
    again: str | None = None,
    letters: bool = False,
    full: Literal["first", "last"] = "last",
    window_key: str = "sliding_window",
) -> WindowOf:
    """One layer of each ``period`` sees all, its ``first`` or ``last``; the others slide. ``layer_types`` goes first.

    ``default`` is the window's and ``period`` the default of ``period_key``, a key of the config where it has one.
    ``again`` is a key that nothing reads and that states the period too; ``letters``: a string such as LLLG does as
    well. A key that contradicts the list is an error, but for the default that transformers writes beside any list.
    """

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        window = every_layer(default, window_key)(config, index, num_layers)[1]
        listed_type = _listed_type(config, index, num_layers)

        def by(key: str | None) -> str:
            if letters and key is not None and isinstance(config.get(key), str):
                return _of_letters(config, key, index, num_layers)
            count = period if key is None else config.integer(key, period)
            return FULL if index % count == (0 if full == "first" else count - 1) else SLIDING

        kind = listed_type or by(period_key)
        for key in (period_key, again):
            if key is None or not config.has(key) or by(key) == kind:
                continue
            written = key == period_key and config.get(key) == period  # by transformers' class, whatever the list
            if listed_type is None or not written:
                raise SpecError(
                    f"{key} must agree with {'layer_types' if listed_type else period_key}, by which layer {index} is "
                    f"of type {kind!r}, got {shown(config.get(key))}; mend one of them"
                )
        return _typed(kind, window, index, window_key)

    return window_of


def _of_letters(config: Section, key: str, index: int, num_layers: int) -> str:
    """EXAONE 4: a pattern that repeats, in which L slides and G sees all; the last layer sees all, whatever it says."""
    pattern = config.text(key)
    if not pattern or set(pattern) - {"L", "G"}:
        raise SpecError(f"{key} must be a number of layers or a pattern of the letters L and G, got {shown(pattern)}")
    return FULL if pattern[index % len(pattern)] == "G" or index == num_layers - 1 else SLIDING


def from_layer(first_key: str, first: int, default: int | None) -> WindowOf:
    """The layers from ``first_key`` on slide, where there is a window; ``layer_types`` goes first."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        window = every_layer(default)(config, index, num_layers)[1]
        start = config.integer(first_key, first, minimum=0)
        by_rule = SLIDING if window is not None and index >= start else FULL
        return _typed(_listed_type(config, index, num_layers) or by_rule, window, index)

    return window_of


def listed(default: int | None, kind: str = FULL) -> WindowOf:
    """What ``layer_types`` lists; without it every layer is of the one kind."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        window = every_layer(default)(config, index, num_layers)[1]
        by_rule = FULL if kind == SLIDING and window is None else kind
        return _typed(_listed_type(config, index, num_layers) or _attention(by_rule, index), window, index)

    return window_of


def hybrid(
    kind_of: Callable[[Section, int], str], default: int | None = None, window_key: str = "sliding_window"
) -> WindowOf:
    """Layers of several kinds, not all of them attention: ``layer_types`` goes first, then the family's rule.

    The rule takes the config and the layer's number and says ``full_attention``, ``sliding_attention`` or what
    stands there instead of attention. ``default`` None: no layer of the family slides.
    """

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        window = every_layer(default, window_key)(config, index, num_layers)[1]
        if default is None and window is not None:
            raise SpecError(f"{window_key} must be null for a model without sliding layers, got {window}")
        by_rule = kind_of(config, index)  # marks its keys as read
        kind = _listed_type(config, index, num_layers) or _attention(by_rule, index)
        return _typed(kind, window, index, window_key)

    return window_of


def hybrid_of_layers(kind_of: Callable[[int, int], str], default: int | None) -> WindowOf:
    """Full and sliding layers by number, of so many; ``layer_types`` goes first."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        window = every_layer(default)(config, index, num_layers)[1]
        return _typed(_listed_type(config, index, num_layers) or kind_of(index, num_layers), window, index)

    return window_of


def chosen_keys(rule: WindowOf, name: str = "indexed_attention") -> WindowOf:
    """Layers that ``layer_types`` lists under a name of their own see all keys that something else chooses among."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        kinds = config.get("layer_types")
        if not isinstance(kinds, list | tuple):
            return rule(config, index, num_layers)
        renamed = Section({**config.data, "layer_types": [FULL if kind == name else kind for kind in kinds]})
        found = rule(renamed, index, num_layers)
        config.seen |= renamed.seen
        return found

    return window_of


def last_is_full(rule: WindowOf) -> WindowOf:
    """Gemma 4: the last layer sees all, whatever it is listed as."""

    def window_of(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
        found = rule(config, index, num_layers)
        return (FULL, None) if index == num_layers - 1 else found

    return window_of


def smollm3(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """SmolLM3: with ``use_sliding_window`` the layers without rotary embeddings slide; ``layer_types`` goes first."""
    window = every_layer(None)(config, index, num_layers)[1]
    if not config.flag("use_sliding_window", False):
        window = None
    turned, every = config.get("no_rope_layers"), config.integer("no_rope_layer_interval", 4)
    of_list = isinstance(turned, list | tuple) and len(turned) == num_layers  # the site refuses another one
    rotates = bool(turned[index]) if of_list else (index + 1) % every != 0
    by_rule = FULL if window is None or rotates else SLIDING
    return _typed(_listed_type(config, index, num_layers) or by_rule, window, index)


def without_predictors(config: Section, values: Any, num_layers: int) -> Any:
    """A list with one a layer; those of layers that predict further tokens (``num_nextn_predict_layers``) go."""
    further = config.data.get("num_nextn_predict_layers")
    if isinstance(values, list | tuple) and isinstance(further, int) and len(values) == num_layers + further:
        return values[:num_layers]
    return values


def _typed(kind: str, window: int | None, index: int, window_key: str = "sliding_window") -> tuple[str, int | None]:
    if kind == FULL:
        return FULL, None
    if window is None:
        raise SpecError(f"{window_key} is required and missing: layer {index} is of type {SLIDING!r}")
    return SLIDING, window


def _attention(kind: str, index: int) -> str:
    if kind in NO_ATTENTION:
        raise NoAttentionError(f"layer {index} has no attention: it is of type {kind!r}; choose another with --layer")
    return kind


def _listed_type(config: Section, index: int, num_layers: int) -> str | None:
    key = config.either("layer_types", "layers_block_type")
    kinds = config.get(key)
    if kinds is None:
        return None
    kinds = without_predictors(config, kinds, num_layers)
    if not isinstance(kinds, list | tuple) or len(kinds) != num_layers:
        count = len(kinds) if isinstance(kinds, list | tuple) else shown(kinds)
        raise SpecError(f"{key} must list a type for each of the {num_layers} layers, got {count}")
    given = kinds[index]
    kind = _BESIDE.get(given, given) if isinstance(given, str) else given
    if isinstance(kind, str):
        _attention(kind, index)
    if kind not in (FULL, SLIDING):
        raise SpecError(f"{key}[{index}] must be {FULL!r} or {SLIDING!r}, got {shown(given)}")
    return str(kind)
