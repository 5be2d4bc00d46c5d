"""Two specs compared: which fields differ, and from which position on the numbers do.

A difference of cos, sin, an embedding or a bias shows in a type once it exceeds the type's unit
roundoff. Where frequencies are exact, |cos(p f) - cos(p g)| <= p |f - g| says below which position
nothing can show, so the search starts there and is exact up to its horizon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe import decays
from portpe.biases import buckets, slopes
from portpe.biases.functions import sandwich
from portpe.encodings import (
    AlibiEncoding,
    BucketsEncoding,
    DynamicSchedule,
    DynamicYarnSchedule,
    LongropeSchedule,
    RotaryEncoding,
    SandwichEncoding,
    Schedule,
)
from portpe.schedules import inv_freq, magnitude
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate
from portpe.temperatures import multipliers

Floats = NDArray[np.float64]

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
HORIZON = 2**20
_BLOCK = 4096  # positions evaluated at once
_NO_NUMBERS = frozenset({"contract", "max_position_embeddings", "portpe_spec"})
_NEEDS_TWO_KEYS = frozenset({"attention", "scale", "softcap"})  # one key alone has the whole weight


@dataclass(frozen=True)
class Difference:
    """One field that differs.

    ``unit`` says what ``seen`` counts: a query's ``position``, a query's cache ``slot`` or a
    ``distance`` between query and key. ``seen`` has by type the first one whose numbers differ by
    more than the type's unit roundoff; it is empty where none within the horizon does.
    """

    field: str
    left: Any
    right: Any
    unit: str = "position"
    seen: Mapping[str, int] = dataclasses.field(default_factory=dict)

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
    found: dict[str, tuple[str, Mapping[str, int]]] = {}
    differences = []
    for name in dict.fromkeys([*leaves[0], *leaves[1]]):
        one, other = leaves[0].get(name), leaves[1].get(name)
        if one == other:
            continue
        site = name.split(".", maxsplit=1)[0]
        if site in _SITES:
            if site not in found:
                found[site] = _SITES[site](left, right, horizon)
            unit, seen = found[site]
        else:
            unit, seen = _field(name, one, other)
        differences.append(Difference(name, one, other, unit, seen))
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


def _field(name: str, one: Any, other: Any) -> tuple[str, Mapping[str, int]]:
    """A field that is no encoding's: its first position follows from what it does."""
    if name in _NO_NUMBERS:
        return "position", {}
    if name == "window":  # w keys, the query's own among them: slot w is the first to lose one
        return "slot", _everywhere(min(value for value in (one, other) if value is not None))
    if name == "chunk":  # position c is the first to lose keys
        return "position", _everywhere(min(value for value in (one, other) if value is not None))
    if name == "window_radius":
        return "distance", _everywhere(1 + min(value for value in (one, other) if value is not None))
    return "position", _everywhere(1 if name in _NEEDS_TWO_KEYS else 0)


def _everywhere(first: int) -> dict[str, int]:
    return dict.fromkeys(ROUNDOFF, first)


# --- rotary ----------------------------------------------------------------------------------


def _rotary(left: AttentionSpec, right: AttentionSpec, horizon: int) -> tuple[str, Mapping[str, int]]:
    one, other = left.rotary, right.rotary
    if one is None or other is None or _frame(left) != _frame(right):
        plain = all(site is None or (site.magnitude == 1 and not site.turns_position_0) for site in (one, other))
        return "position", _everywhere(1 if plain else 0)  # position 0 turns nothing, but is scaled
    seen = {}
    for dtype, roundoff in ROUNDOFF.items():
        first = _first_position(left, right, roundoff, horizon)
        if first is not None:
            seen[dtype] = first
    return "position", seen


def _frame(spec: AttentionSpec) -> tuple[Any, ...]:
    """Which channels are paired, and what pairs read of a position: where it differs, numbers cannot be compared
    pair by pair.
    """
    assert spec.rotary is not None
    rotary = spec.rotary
    places = rotary.offset, rotary.coordinates, rotary.prefix_tokens, rotary.suffix_tokens
    pairs = rotary.pairing, rotary.written, rotary.blocks, rotary.axes
    return spec.head_dim, rotary.width, rotary.channels, *pairs, *places


def _first_position(left: AttentionSpec, right: AttentionSpec, roundoff: float, horizon: int) -> int | None:
    """The last position of the shortest sequence that shows a difference anywhere."""
    edges = sorted({1, *_edges(left), *_edges(right)})
    for start, end in zip(edges, [*edges[1:], horizon + 1], strict=True):
        if start > horizon:
            break
        stop = min(end, horizon + 1)
        if _grows(left, start) or _grows(right, start):
            length = _first_length(lambda n: _first_row(left, right, n, n, roundoff) is not None, start, stop)
            if length is not None:
                return length - 1
        else:
            row = _first_row(left, right, start, stop - 1, roundoff)
            if row is not None:
                return max(start - 1, row)
    return None


def _edges(spec: AttentionSpec) -> set[int]:
    """The sequence lengths at which the schedule becomes another one."""
    schedule = _following(spec)
    if isinstance(schedule, DynamicSchedule):
        return {schedule.max_position_embeddings + 1}
    if isinstance(schedule, LongropeSchedule | DynamicYarnSchedule):
        return {schedule.original_max_position_embeddings + 1}
    return set()


def _following(spec: AttentionSpec) -> Schedule | None:
    """The schedule, where it follows the length."""
    follows = spec.length_dependent or spec.rotation_by_length
    return spec.rotary.schedule if follows and spec.rotary is not None else None


def _grows(spec: AttentionSpec, length: int) -> bool:
    """Whether the schedule changes with every further token from this length on."""
    schedule = _following(spec)
    return not isinstance(schedule, LongropeSchedule) and any(length >= edge for edge in _edges(spec))


def _first_length(differs: Callable[[int], bool], start: int, stop: int) -> int | None:
    """The first length in [start, stop) that differs, where a longer one always differs too."""
    if not differs(stop - 1):
        return None
    low, high = start - 1, stop - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high


def _first_row(left: AttentionSpec, right: AttentionSpec, length: int, rows: int, roundoff: float) -> int | None:
    """The first of ``rows`` positions whose cos or sin differ, under the schedule of ``length``."""
    one, other = left.rotary, right.rotary
    assert one is not None
    assert other is not None
    for rotary in (one, other):
        if rotary.decay is not None:  # no table goes further
            rows = min(rows, decays.span(rotary, "float32")[1] + 1)
    for start in range(_nothing_below(one, other, length, roundoff), rows, _BLOCK):
        positions = np.arange(start, min(start + _BLOCK, rows))
        error = np.zeros(len(positions))
        tables = [_numbers(spec, positions, length) for spec in (left, right)]
        for key in ("cos", "sin", "key_cos", "key_sin"):  # keys have their own where one of the two has a decay
            mine, theirs = (table.get(key, table[key.removeprefix("key_")]) for table in tables)
            apart = np.abs(mine - theirs) / _size(one, other, positions, keys=key.startswith("key_"))
            error = np.maximum(error, apart.max(axis=1))
        over = np.flatnonzero(error > roundoff)
        if over.size:
            return int(positions[over[0]])
    return None


def _nothing_below(one: RotaryEncoding, other: RotaryEncoding, length: int, roundoff: float) -> int:
    """A position below which exact tables cannot differ by more than ``roundoff``."""
    if "hf" in (one.precision, other.precision) or one.decay or other.decay:
        return 0
    frequencies = [rotary.sign * inv_freq(rotary, length) for rotary in (one, other)]
    factors = [magnitude(rotary, length) for rotary in (one, other)]
    steepest = float(np.abs(frequencies[0] - frequencies[1]).max()) * max(factors)
    margin = roundoff - abs(factors[0] - factors[1])
    if margin <= 0:
        return 0  # the magnitudes alone show
    return HORIZON if steepest * HORIZON <= margin else int(margin / steepest)


def _size(one: RotaryEncoding, other: RotaryEncoding, positions: NDArray[np.int64], *, keys: bool) -> Floats | float:
    """What differences of cos and sin are measured by: under a decay the larger scale of a pair, on either side, since
    a small one meets a large one in a score.
    """
    scaled = [decays.scales(rotary, positions, keys=keys) for rotary in (one, other) if rotary.decay is not None]
    return np.maximum(scaled[0], scaled[-1]) if scaled else 1.0


def _numbers(spec: AttentionSpec, positions: NDArray[np.int64], length: int) -> dict[str, Floats]:
    rotary_alone = spec.model_copy(update={"embedding": None, "bias": ()})
    seq_len = length if _following(spec) is not None else None
    return tabulate(rotary_alone, positions, seq_len=seq_len)


# --- query temperature ---------------------------------------------------------------------------


def _query_scale(left: AttentionSpec, right: AttentionSpec, horizon: int) -> tuple[str, Mapping[str, int]]:
    """The first query whose multiplier differs by more than the type's roundoff; without a temperature it is 1."""
    seen: dict[str, int] = {}
    for start in range(0, horizon, _BLOCK):
        positions = np.arange(start, min(start + _BLOCK, horizon))
        one, other = (
            np.ones(len(positions)) if site is None else multipliers(site, positions)
            for site in (left.query_scale, right.query_scale)
        )
        error = np.abs(one / other - 1)
        for dtype, roundoff in ROUNDOFF.items():
            over = np.flatnonzero(error > roundoff)
            if dtype not in seen and over.size:
                seen[dtype] = max(int(positions[over[0]]), 1)  # with one key the softmax is 1, whatever its score
        if len(seen) == len(ROUNDOFF):
            break
    return "position", seen


# --- embedding and bias ------------------------------------------------------------------------


def _embedding(left: AttentionSpec, right: AttentionSpec, horizon: int) -> tuple[str, Mapping[str, int]]:
    one, other = left.embedding, right.embedding
    if one is None or other is None or one.kind != other.kind or one.width != other.width:
        return "position", _everywhere(0)
    ends = [site.position_end for site in (one, other) if site.position_end is not None]
    if ends and one.model_copy(update={"rows": None}) == other.model_copy(update={"rows": None}):
        return "position", _everywhere(min(ends))  # the same rows, until the shorter table ends
    if one.weight_shapes(left):
        return "position", _everywhere(0)
    seen: dict[str, int] = {}
    end = min([horizon, *ends])
    for start in range(0, end, _BLOCK):
        positions = np.arange(start, min(start + _BLOCK, end))
        tables = [tabulate(spec.model_copy(update={"rotary": None, "bias": ()}), positions) for spec in (left, right)]
        error = np.abs(tables[0]["embedding"] - tables[1]["embedding"]).max(axis=1)
        for dtype, roundoff in ROUNDOFF.items():
            over = np.flatnonzero(error > roundoff)
            if dtype not in seen and over.size:
                seen[dtype] = int(positions[over[0]])
        if len(seen) == len(ROUNDOFF):
            break
    return "position", seen


def _bias(left: AttentionSpec, right: AttentionSpec, horizon: int) -> tuple[str, Mapping[str, int]]:
    if len(left.bias) != 1 or len(right.bias) != 1 or left.num_heads != right.num_heads:
        return "distance", _everywhere(1)
    one, other = left.bias[0], right.bias[0]
    if isinstance(one, BucketsEncoding) and isinstance(other, BucketsEncoding):
        return "distance", _first_row_apart(one, other, causal=left.causal and right.causal)
    if isinstance(one, SandwichEncoding) and isinstance(other, SandwichEncoding):
        return "distance", _first_wave_apart(one, other, left.num_heads, horizon)
    if not (isinstance(one, AlibiEncoding) and isinstance(other, AlibiEncoding)):
        return "distance", _everywhere(1)
    ahead = not (left.causal and right.causal)  # keys after the query, where the two forms of ALiBi part
    if ahead and one.symmetric != other.symmetric:
        return "distance", _everywhere(1)
    steepest = float(np.abs(slopes(one, left.num_heads) - slopes(other, right.num_heads)).max())
    seen = {}
    for dtype, roundoff in ROUNDOFF.items():
        if steepest * horizon > roundoff:
            seen[dtype] = int(roundoff / steepest) + 1
    return "distance", seen


def _first_row_apart(one: BucketsEncoding, other: BucketsEncoding, *, causal: bool) -> Mapping[str, int]:
    """The first distance with another row of the table: rows are the same tensors' in both, as far as they go."""
    distances = np.arange(max(one.max_distance, other.max_distance) + 1)
    apart = np.zeros(len(distances), dtype=bool)
    for keys in (-distances,) if causal else (-distances, distances):
        rows = [buckets.distance_rows(each).of([distances[-1]], distances[-1] + keys)[0] for each in (one, other)]
        apart |= rows[0] != rows[1]
    return _everywhere(int(np.flatnonzero(apart)[0])) if apart.any() else {}


def _first_wave_apart(
    one: SandwichEncoding, other: SandwichEncoding, num_heads: int, horizon: int
) -> Mapping[str, int]:
    """The first distance whose bias differs by more than the type's roundoff of the largest, at distance 0."""
    seen: dict[str, int] = {}
    for start in range(0, horizon, _BLOCK):
        distances = np.arange(start, min(start + _BLOCK, horizon))
        biases = [sandwich(each, num_heads, distances) for each in (one, other)]
        error = np.abs(biases[0] - biases[1]).max(axis=0) / (4 * max(one.width, other.width))
        for dtype, roundoff in ROUNDOFF.items():
            over = np.flatnonzero(error > roundoff)
            if dtype not in seen and over.size:
                seen[dtype] = int(distances[over[0]])
        if len(seen) == len(ROUNDOFF):
            break
    return seen


_SITES: dict[str, Callable[[AttentionSpec, AttentionSpec, int], tuple[str, Mapping[str, int]]]] = {
    "embedding": _embedding,
    "rotary": _rotary,
    "query_scale": _query_scale,
    "bias": _bias,
}
