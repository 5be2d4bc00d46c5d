"""What differs between two specs, and the first position at which it shows in the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.spec import AttentionSpec
from portpe.tabulate import tabulate

Floats = NDArray[np.float64]
Rotation = tuple[Floats, NDArray[np.int64], Floats]

# A difference of cos, sin or bias shows in a type once it exceeds the type's unit roundoff.
THRESHOLDS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
BLOCK = 4096  # positions compared at once
HORIZON = 2**20  # positions compared at most
NO_NUMBERS = ("contract", "max_position_embeddings", "portpe_spec")
NEEDS_TWO_KEYS = ("scale", "softcap")  # with one key the softmax is 1, whatever its score
SITES = ("embedding", "rotary", "bias")


@dataclass(frozen=True)
class Difference:
    """One field that differs. ``numbers``: whether it changes any; ``matters``: from where, in words;
    ``seen``: the first position (or length) that shows it, by type, for a site's numbers.
    """

    name: str
    a: str
    b: str
    matters: str
    numbers: bool
    seen: Mapping[str, str] = field(default_factory=dict)


def differences(a: AttentionSpec, b: AttentionSpec) -> list[Difference]:
    """Every field that differs, then every site whose numbers do."""
    left, right = _leaves(a.to_dict()), _leaves(b.to_dict())
    rows = []
    for name in dict.fromkeys([*left, *right]):
        one, other = left.get(name, "-"), right.get(name, "-")
        if one != other:
            rows.append(_field(name, one, other))
    return rows + [row for site in SITES if (row := _site(site, a, b)) is not None]


def _leaves(data: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted names to values; lists of plain values stay whole."""
    if isinstance(data, dict):
        items: Iterator[tuple[str, Any]] = iter(data.items())
    elif isinstance(data, list) and any(isinstance(one, dict) for one in data):
        items = ((str(i), one) for i, one in enumerate(data))
    else:
        return {prefix: data}
    return {k: v for name, one in items for k, v in _leaves(one, f"{prefix}.{name}" if prefix else name).items()}


def _field(name: str, a: Any, b: Any) -> Difference:
    top = name.split(".", maxsplit=1)[0]
    if top in NO_NUMBERS:
        return Difference(name, _text(a), _text(b), "nowhere", numbers=False)
    if top in SITES:
        return Difference(name, _text(a), _text(b), "see below", numbers=False)
    if name in ("window", "window_radius"):
        first = min(value for value in (a, b) if isinstance(value, int))
        return Difference(name, _text(a), _text(b), f"slot {first + (name == 'window_radius')}", numbers=True)
    start = 1 if name in NEEDS_TWO_KEYS else 0
    return Difference(name, _text(a), _text(b), f"position {start}", numbers=True)


def _text(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _site(site: str, a: AttentionSpec, b: AttentionSpec) -> Difference | None:
    """How the numbers of one site differ, or None where neither spec's field does."""
    if getattr(a, site) == getattr(b, site):
        return None
    name = f"{site} numbers"
    kinds = (_kind(getattr(a, site)), _kind(getattr(b, site)))
    if "learned" in kinds or not all(getattr(spec, site) for spec in (a, b)):
        return Difference(name, *kinds, "position 0" if site == "embedding" else "position 1", numbers=True)
    if site == "rotary" and a.head_dim != b.head_dim:
        return Difference(name, *kinds, "position 1", numbers=True)
    if site == "bias" and a.num_heads != b.num_heads:
        return Difference(name, *kinds, "distance 1", numbers=True)
    if a.length_dependent or b.length_dependent:
        seen, unit = _first_lengths(a, b), "length"
    else:
        seen, unit = _first_positions(MEASURES[site], a, b), "distance" if site == "bias" else "position"
    if not seen:
        return Difference(name, *kinds, f"nowhere below {_horizon(a, b)}", numbers=False)
    first = next(iter(seen.values()))
    return Difference(name, *kinds, f"{unit} {first}", numbers=True, seen={k: f"{unit} {v}" for k, v in seen.items()})


def _kind(site: Any) -> str:
    if isinstance(site, tuple):
        return ", ".join(one.kind for one in site) or "-"
    if site is None:
        return "-"
    return f"{site.kind} ({site.schedule.kind})" if site.kind == "rotary" else str(site.kind)


def _horizon(a: AttentionSpec, b: AttentionSpec) -> int:
    return min(HORIZON, 8 * max(a.max_position_embeddings or BLOCK, b.max_position_embeddings or BLOCK))


def rotation(spec: AttentionSpec, positions: NDArray[np.int64], seq_len: int | None = None) -> Rotation:
    """The rotation of a head as (cos, partner, sin): channel c becomes cos*x[c] + sin*x[partner[c]].

    Each (P, head_dim) but ``partner`` (head_dim,). Channels that are not turned have cos 1 and sin 0.
    """
    rotary = spec.rotary
    assert rotary is not None
    numbers = tabulate(spec, positions, seq_len=seq_len)
    cos, sin, half = numbers["cos"], numbers["sin"], rotary.width // 2
    start = 0 if rotary.channels == "first" else spec.head_dim - rotary.width
    index = np.arange(half)
    first, second = (index, index + half) if rotary.pairing == "half" else (2 * index, 2 * index + 1)
    first, second = start + first[: cos.shape[1]], start + second[: cos.shape[1]]
    whole_cos, whole_sin = np.ones((len(positions), spec.head_dim)), np.zeros((len(positions), spec.head_dim))
    partner = np.arange(spec.head_dim, dtype=np.int64)
    whole_cos[:, first], whole_cos[:, second] = cos, cos
    whole_sin[:, first], whole_sin[:, second] = -sin, sin
    partner[first], partner[second] = second, first
    return whole_cos, partner, whole_sin


def _rotary_error(
    a: AttentionSpec, b: AttentionSpec, positions: NDArray[np.int64], seq_len: int | None = None
) -> Floats:
    """The largest difference of an entry of the two rotation matrices, at each position."""
    cos_a, partner_a, sin_a = rotation(a, positions, seq_len)
    cos_b, partner_b, sin_b = rotation(b, positions, seq_len)
    same = np.abs(sin_a - sin_b)
    other = np.maximum(np.abs(sin_a), np.abs(sin_b))
    sines = np.where(partner_a == partner_b, same, other)
    error: Floats = np.maximum(np.abs(cos_a - cos_b), sines).max(axis=1)
    return error


def _embedding_error(a: AttentionSpec, b: AttentionSpec, positions: NDArray[np.int64]) -> Floats:
    one, other = tabulate(a, positions)["embedding"], tabulate(b, positions)["embedding"]
    error: Floats = np.abs(one - other).max(axis=1)
    return error


def _bias_error(a: AttentionSpec, b: AttentionSpec, positions: NDArray[np.int64]) -> Floats:
    """By distance: the query at each position against a key at 0, up to what is constant along a row of keys."""

    def by_distance(spec: AttentionSpec) -> Floats:
        rows = [tabulate(spec, np.array([0, p]))["bias"][:, 1, :] for p in positions]
        bias = np.stack(rows)
        difference: Floats = bias[..., 0] - bias[..., 1]
        return difference

    error: Floats = np.abs(by_distance(a) - by_distance(b)).max(axis=1)
    return error


MEASURES: dict[str, Callable[..., Floats]] = {
    "rotary": _rotary_error,
    "embedding": _embedding_error,
    "bias": _bias_error,
}


def _first_positions(error: Callable[..., Floats], a: AttentionSpec, b: AttentionSpec) -> dict[str, int]:
    """By type: the first position whose numbers differ by more than the type's unit roundoff."""
    found: dict[str, int] = {}
    end = min(BLOCK if error is _bias_error else _horizon(a, b), _last(a), _last(b))
    step = 64 if error is _bias_error else BLOCK
    for start in range(0, end, step):
        positions = np.arange(start, min(start + step, end))
        errors = error(a, b, positions)
        for dtype, threshold in THRESHOLDS.items():
            over = np.flatnonzero(errors > threshold)
            if dtype not in found and over.size:
                found[dtype] = int(positions[over[0]])
        if len(found) == len(THRESHOLDS):
            break
    return found


def _last(spec: AttentionSpec) -> int:
    rows = None if spec.embedding is None else spec.embedding.rows
    return HORIZON if rows is None or spec.embedding is None else rows - spec.embedding.offset


def _first_lengths(a: AttentionSpec, b: AttentionSpec) -> dict[str, int]:
    """By type: the shortest sequence with a position whose rotation differs visibly."""

    def error(length: int) -> float:
        sample = np.unique(np.append(np.geomspace(1, length, 256).astype(np.int64) - 1, length - 1))
        return float(_rotary_error(a, b, sample, length).max())

    lengths = sorted({2**i for i in range(21)} | {edge + extra for edge in _edges(a, b) for extra in (0, 1)})
    errors = {length: error(length) for length in lengths}
    found: dict[str, int] = {}
    for dtype, threshold in THRESHOLDS.items():
        low = 0
        for length in lengths:
            if errors[length] > threshold:
                found[dtype] = _bisect(error, low, length, threshold)
                break
            low = length
    return found


def _edges(*specs: AttentionSpec) -> set[int]:
    """The lengths at which a schedule changes."""
    edges = set()
    for spec in specs:
        schedule = spec.rotary.schedule if spec.rotary is not None else None
        for name in ("max_position_embeddings", "original_max_position_embeddings"):
            if (length := getattr(schedule, name, None)) is not None:
                edges.add(length)
    return edges


def _bisect(error: Callable[[int], float], low: int, high: int, threshold: float) -> int:
    """The first length in (low, high] whose error exceeds the threshold; at ``low`` it does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if error(middle) > threshold else (middle, high)
    return high
