"""The positional encodings of a family, as fields of AttentionSpec: rotary or bias (``embedding_sites``: the rest)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from portpe.config import rope
from portpe.config.layer import FULL, Layer
from portpe.config.rope import Rope
from portpe.config.section import shown
from portpe.encodings import AlibiEncoding, DefaultSchedule, RotaryEncoding
from portpe.errors import SpecError

Site = Callable[[Layer], dict[str, Any]]


def rotary(settings: Rope) -> Site:
    """Rotary embeddings by the config's rope keys."""
    return lambda layer: {"rotary": rope.encoding(layer, settings)}


def by_type(*, full: Rope | None, sliding: Rope | None) -> Site:
    """Rotary embeddings that differ by layer type; None: layers of that type have none (NoPE)."""

    def site(layer: Layer) -> dict[str, Any]:
        for settings in (full, sliding):
            layer.config.seen |= set(settings.top_keys) if settings is not None else set()
        settings = full if layer.type == FULL else sliding
        return {} if settings is None else {"rotary": rope.encoding(layer, settings)}

    return site


def none_on_full_where_windowed(settings: Rope) -> Site:
    """EXAONE 4: with a ``sliding_window`` the full layers have no rotary embeddings, without one all layers have."""

    def site(layer: Layer) -> dict[str, Any]:
        windowed = layer.config.has("sliding_window") or "sliding_window" not in layer.config.data
        return by_type(full=None if windowed else settings, sliding=settings)(layer)

    return site


def listed(settings: Rope, key: str, interval_key: str, interval: int) -> Site:
    """SmolLM3, Llama 4: a list with 1 for a layer with rotary embeddings and 0 for one without.

    Without the list the last of each ``interval`` layers has none; an empty one, as Llama 4 is published with, is none.
    """

    def site(layer: Layer) -> dict[str, Any]:
        every = layer.config.integer(interval_key, interval)
        given = layer.config.get(key)
        turned = (layer.index + 1) % every != 0
        if given is not None and given != []:
            turned = _flag_of(layer, key, given)
            layer.warn(f"{key}[{layer.index}] = {given[layer.index]}: 1 is a layer with rotary embeddings, 0 without")
        layer.config.seen |= set(settings.top_keys)
        return {"rotary": rope.encoding(layer, settings)} if turned else {}

    return site


def theta_list(settings: Rope, key: str, turns: Callable[[int, int], bool] = lambda _index, _layers: True) -> Site:
    """Granite with a base for each layer: 0 is a layer without rotary embeddings.

    ``turns`` says by its number, of so many, whether a layer turns where there is no list.
    """

    def site(layer: Layer) -> dict[str, Any]:
        thetas = layer.config.get(key)
        layer.config.seen |= set(settings.top_keys)
        if thetas is None:
            turned = turns(layer.index, layer.num_layers)
            return {"rotary": rope.encoding(layer, settings)} if turned else {}
        theta = _entry(layer, key, thetas)
        if isinstance(theta, bool) or not isinstance(theta, int | float) or theta < 0:
            raise SpecError(f"{key}[{layer.index}] must be a number >= 0, got {shown(theta)}")
        if theta == 0:
            return {}
        found = rope.encoding(layer, settings)
        if found is None:
            return {}
        schedule = type(found.schedule)(**{**found.schedule.model_dump(), "rope_theta": float(theta)})
        return {"rotary": found.model_copy(update={"schedule": schedule})}

    return site


def no_encoding(layer: Layer) -> dict[str, Any]:  # noqa: ARG001
    """Attention without positions (NoPE)."""
    return {}


def switched(settings: Rope, key: str, default: bool) -> Site:
    """Rotary embeddings where a key is true (Zamba 2)."""

    def site(layer: Layer) -> dict[str, Any]:
        layer.config.seen |= set(settings.top_keys)
        return {"rotary": rope.encoding(layer, settings)} if layer.config.flag(key, default) else {}

    return site


def rotary_where(key: str, value: str, settings: Rope) -> Site:
    """Rotary embeddings where a key has a value, none where it is null or another (Granite's hybrids)."""

    def site(layer: Layer) -> dict[str, Any]:
        layer.config.seen |= set(settings.top_keys)
        given = layer.config.get(key)
        return {"rotary": rope.encoding(layer, settings)} if given == value else {}

    return site


def _entry(layer: Layer, key: str, values: Any) -> Any:
    """The layer's own of a list with one a layer."""
    if not isinstance(values, list | tuple) or len(values) != layer.num_layers:
        count = len(values) if isinstance(values, list | tuple) else shown(values)
        raise SpecError(f"{key} must list one for each of the {layer.num_layers} layers, got {count}")
    return values[layer.index]


def _flag_of(layer: Layer, key: str, values: Any) -> bool:
    value = _entry(layer, key, values)
    if value not in (0, 1):
        raise SpecError(f"{key}[{layer.index}] must be 1 or 0, got {shown(value)}")
    return bool(value)


def gptj_rotary(layer: Layer) -> dict[str, Any]:
    """GPT-J: the first ``rotary_dim`` channels, interleaved, base 10000 and no way to change it."""
    width = layer.config.integer("rotary_dim", 64)
    if width % 2:
        raise SpecError(f"rotary_dim must be even, got {width}; transformers would rotate {width + 1} channels")
    if width > layer.head_dim:
        raise SpecError(f"rotary_dim must be <= head_dim = {layer.head_dim}, got {width}")
    return {"rotary": RotaryEncoding(width=width, pairing="interleaved", schedule=DefaultSchedule())}


def alibi(contract: Literal["bloom", "mpt"], bias_max: float = 8.0) -> Site:
    """ALiBi on every layer."""
    return lambda _layer: {"bias": (AlibiEncoding(contract=contract, bias_max=bias_max),)}


def mpt_alibi(layer: Layer) -> dict[str, Any]:
    """MPT: ``attn_config.alibi_bias_max`` sets the slopes."""
    attention = layer.config.section("attn_config")
    bias_max = 8.0 if attention is None else attention.positive("alibi_bias_max", 8.0)
    if bias_max != 8:
        layer.warn(
            f"attn_config.alibi_bias_max = {bias_max} is honoured as documented: transformers' own class takes 8"
        )
    return alibi("mpt", bias_max)(layer)


def falcon(settings: Rope) -> Site:
    """Falcon: rotary, or with ``alibi`` a bias that is divided by sqrt(head_dim) with the scores."""

    def site(layer: Layer) -> dict[str, Any]:
        if not layer.config.flag("alibi", False):
            return rotary(settings)(layer)
        # transformers writes rope keys for every Falcon: under alibi they say nothing
        for key in ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"):
            layer.config.get(key)
        return {"bias": (AlibiEncoding(contract="falcon", scale=float(layer.head_dim**-0.5)),)}

    return site
