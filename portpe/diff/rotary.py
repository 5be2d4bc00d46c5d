"""From which position on two rotations differ.

Where frequencies are exact, |cos(p f) - cos(p g)| <= p |f - g| says below which position nothing can show, so the
search starts there and is exact up to its horizon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe import decays
from portpe.diff.search import BLOCK, HORIZON, ROUNDOFF, Floats, Found, everywhere
from portpe.encodings import (
    DynamicSchedule,
    DynamicYarnSchedule,
    LongropeSchedule,
    RotaryEncoding,
    Schedule,
)
from portpe.schedules import inv_freq, magnitude
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate


def first_position(left: AttentionSpec, right: AttentionSpec, horizon: int) -> Found:
    """The first position of a sequence whose cos or sin differ by more than a type's roundoff."""
    one, other = left.rotary, right.rotary
    if one is None or other is None or _frame(left) != _frame(right):
        plain = all(site is None or _leaves_position_0(site) for site in (one, other))
        return Found("position", everywhere(1 if plain else 0))  # position 0 turns nothing, but is scaled
    seen = {}
    for dtype, roundoff in ROUNDOFF.items():
        first = _first_position(left, right, roundoff, horizon)
        if first is not None:
            seen[dtype] = first
    return Found("position", seen)


def _leaves_position_0(rotary: RotaryEncoding) -> bool:
    """Whether position 0 is neither turned nor scaled."""
    centre = 0 if rotary.decay is None else rotary.decay.centre
    return rotary.magnitude == 1 and not rotary.turns_position_0 and centre == 0


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
    for start in range(_nothing_below(one, other, length, roundoff), rows, BLOCK):
        positions = np.arange(start, min(start + BLOCK, rows))
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
