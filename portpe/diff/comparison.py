"""Two specs compared field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from portpe.diff import bias, by_position, rotary
from portpe.diff.search import HORIZON, Found, Tensors, everywhere
from portpe.spec import AttentionSpec

_NO_NUMBERS = frozenset({"contract", "max_position_embeddings", "portpe_spec"})
_NEEDS_TWO_KEYS = frozenset({"attention", "scale", "softcap"})  # one key alone has the whole weight


@dataclass(frozen=True)
class Difference:
    """One field that differs.

    ``unit`` says what ``seen`` counts: a query's ``position``, a query's cache ``slot`` or a
    ``distance`` between query and key. ``seen`` has by type the first one whose numbers differ by
    more than the type's unit roundoff; it is empty where none within the horizon does. ``tensors`` says what that takes
    for granted of trained numbers (see ``search.Found``).
    """

    field: str
    left: Any
    right: Any
    unit: str = "position"
    seen: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tensors: Tensors = "none"

    @property
    def first_position(self) -> int | None:
        """Where it shows in float32; None where it changes no numbers."""
        return self.seen.get("float32")


@dataclass(frozen=True)
class Comparison:
    """All fields that differ, in the order of the spec. ``horizon``: positions searched at most."""

    differences: tuple[Difference, ...]
    horizon: int

    @property
    def same_numbers(self) -> bool:
        """Whether no difference shows within the horizon."""
        return all(difference.first_position is None for difference in self.differences)


def compare(left: AttentionSpec, right: AttentionSpec, horizon: int = HORIZON) -> Comparison:
    """Compare two layers field by field and, for positional encodings, number by number.

    Args:
        left: one spec.
        right: the other.
        horizon: positions from this one on are not searched.

    Returns:
        Every field that differs. Fields of one encoding share that encoding's first position.
    """
    leaves = [dict(_leaves(spec.to_dict())) for spec in (left, right)]
    found: dict[str, Found] = {}
    differences = []
    for name in dict.fromkeys([*leaves[0], *leaves[1]]):
        one, other = leaves[0].get(name), leaves[1].get(name)
        if one == other:
            continue
        site = name.split(".", maxsplit=1)[0]
        if site in _SITES:
            if site not in found:
                found[site] = _SITES[site](left, right, horizon)
            where = found[site]
        else:
            where = _field(name, one, other)
        differences.append(Difference(name, one, other, where.unit, where.seen, where.tensors))
    return Comparison(tuple(differences), horizon)


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and their values; lists of plain values stay whole."""
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list) and any(isinstance(one, dict) for one in data):
        items = [(str(i), one) for i, one in enumerate(data)]
    else:
        yield path, data
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else key)


def _field(name: str, one: Any, other: Any) -> Found:
    """A field that is no encoding's: its first position follows from what it does."""
    if name in _NO_NUMBERS:
        return Found("position")
    if name == "window":  # w keys, the query's own among them: slot w is the first to lose one
        return Found("slot", everywhere(min(value for value in (one, other) if value is not None)))
    if name == "chunk":  # position c is the first to lose keys
        return Found("position", everywhere(min(value for value in (one, other) if value is not None)))
    if name == "window_radius":
        return Found("distance", everywhere(1 + min(value for value in (one, other) if value is not None)))
    return Found("position", everywhere(1 if name in _NEEDS_TWO_KEYS else 0))


_SITES: dict[str, Callable[[AttentionSpec, AttentionSpec, int], Found]] = {
    "embedding": by_position.embedding,
    "rotary": rotary.first_position,
    "query_scale": by_position.query_scale,
    "bias": bias.first_distance,
}
