"""The calls that every runtime is judged on: which cache slots, which positions, which masks.

A case is laid out by the positions of its cache slots: the first ``past`` are cached keys, the rest are this call's
rows. Batch, heads, rows and past all have different sizes, so that no two axes can be confused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from portpe.encodings import QueryTemperature
from portpe.spec import AttentionSpec

Ids = NDArray[np.int64]

SAMPLED = 8  # (batch, row) pairs, heads, and cache slots that golden values keep
LONGEST_PAST = 8192  # cached slots of a case: a 131072-token cache of a large layer would take gigabytes
WIDEST_RADIUS = 256  # without a cache a window is crossed by a whole prefill, which is paid in full
FAR_POSITIONS = (131_071, 1_000_000)
QUICK = (
    *("prefill", "decode", "left_padded_decode", "arbitrary_positions", "crossing_trained_length"),
    *("position_131071", "last_position"),
)


@dataclass(frozen=True)
class Layout:
    """Where the keys of a call stand.

    ``key_position_ids`` (B, past + S), or (axes, B, past + S) where positions have several; ``attention_mask``
    (B, past + S), 1 = keep.
    """

    name: str
    key_position_ids: Ids
    attention_mask: Ids
    past: int

    @property
    def position_ids(self) -> Ids:
        return self.key_position_ids[..., self.past :]


@dataclass(frozen=True)
class Exclusion:
    """A case that is left out, and why."""

    case: str
    reason: str


def trained_length(spec: AttentionSpec) -> int:
    """The length that the encoding was trained at: a scaled schedule's original one."""
    schedule = spec.rotary.schedule if spec.rotary is not None else None
    for owner, name in (
        (schedule, "original_max_position_embeddings"),
        (schedule, "max_position_embeddings"),
        (spec, "max_position_embeddings"),
    ):
        if length := getattr(owner, name, None):
            return int(length)
    if spec.position_ends is not None:
        return math.prod(spec.position_ends)
    end = None if spec.embedding is None else spec.embedding.position_end
    return 2048 if end is None else end


def layouts(spec: AttentionSpec, end: int | None) -> tuple[list[Layout], list[Exclusion]]:
    """Every case of a spec, and those left out by name. ``end`` is the first position that no table serves."""
    found, excluded = [], []
    if spec.position_ends is not None:
        end = math.prod(spec.position_ends)  # cells are counted row by row
    for each in _causal(spec, end) if spec.causal else _bidirectional(spec, end):
        if isinstance(each, Exclusion):
            excluded.append(each)
            continue
        layout = each if each.key_position_ids.ndim == 3 or spec.position_axes == 1 else _on_axes(spec, each)
        layout = _unturned_at_0(spec, layout)
        if spec.position_ends is not None and (layout.key_position_ids.max((1, 2)) >= spec.position_ends).any():
            excluded.append(Exclusion(layout.name, f"its positions leave the grid {spec.position_ends}"))
        elif end is not None and layout.key_position_ids.max() >= end:
            reason = f"position {layout.key_position_ids.max()} is past the table, which ends at {end}"
            excluded.append(Exclusion(layout.name, reason))
        else:
            found.append(layout)
    return found, excluded


def _causal(spec: AttentionSpec, end: int | None) -> Iterator[Layout | Exclusion]:
    length = trained_length(spec)
    yield _run(spec, "prefill", batch=2, rows=7, past=0)
    yield _run(spec, "decode", batch=3, rows=1, past=13)
    yield _run(spec, "chunked_prefill", batch=2, rows=5, past=11)
    yield _left_padded(spec, "left_padded", rows=6, past=0)
    yield _left_padded(spec, "left_padded_decode", rows=1, past=9)
    yield _holes(spec, rows=5, past=8)
    yield _scattered(spec, rows=5, past=4, end=end)
    yield _spread_out(spec, past=2, end=end)
    yield _run(spec, "trained_length", batch=2, rows=3, past=5, last=length - 1)
    yield _run(spec, "past_trained_length", batch=3, rows=5, past=7, last=length + 3)
    if spec.rotation_by_length:  # one batch row on each side of the switch, and one past it, behind the same cache
        yield _run(spec, "crossing_trained_length", batch=3, rows=1, past=9, last=length)
    for position in FAR_POSITIONS:
        yield _run(spec, f"position_{position}", batch=2, rows=3, past=6, last=position)
    if end is not None:
        yield _run(spec, "last_position", batch=3, rows=2, past=5, last=end - 1)
    yield from _windows(spec)
    if spec.query_scale is not None:
        yield _run(spec, "temperature_step", batch=2, rows=5, past=7, last=_behind_a_step(spec.query_scale))
    if spec.chunk is not None:  # keys on both sides of the boundary, and queries too
        yield _run(spec, "chunk_boundary", batch=2, rows=5, past=7, last=2 * spec.chunk + 2)
        yield _run(spec, "chunk_start", batch=3, rows=1, past=6, last=2 * spec.chunk + 2)
    yield from _long_past(spec, length, end)


def _behind_a_step(temperature: QueryTemperature) -> int:
    """The second position of an interval, far enough from 0 for a call that begins in the interval before it."""
    intervals = math.ceil(24 / temperature.interval)
    return intervals * temperature.interval - temperature.offset + 1


def _windows(spec: AttentionSpec) -> Iterator[Layout | Exclusion]:
    """The window crossed by one token and by a chunk, never by a full prefill."""
    if spec.window is None:
        return
    if spec.window > LONGEST_PAST:
        reason = f"window {spec.window} is over {LONGEST_PAST} cached slots"
        yield from (Exclusion(name, reason) for name in ("window_decode", "window_chunk"))
        return
    yield _run(spec, "window_decode", batch=2, rows=1, past=spec.window + 5)
    yield _run(spec, "window_chunk", batch=1, rows=7, past=max(spec.window - 3, 2))


def _long_past(spec: AttentionSpec, length: int, end: int | None) -> Iterator[Layout | Exclusion]:
    """More cached keys than the trained length."""
    past = length + 3
    if length > LONGEST_PAST:
        yield Exclusion("long_past", f"trained length {length} is over {LONGEST_PAST} cached slots")
    elif end is not None and past + 2 > end:
        yield Exclusion("long_past", f"{past + 2} positions are past the table, which ends at {end}")
    else:
        yield _run(spec, "long_past", batch=1, rows=2, past=past)


def _bidirectional(spec: AttentionSpec, end: int | None) -> Iterator[Layout | Exclusion]:
    length = trained_length(spec)
    yield _run(spec, "prefill", batch=2, rows=7, past=0)
    yield _run(spec, "single_row", batch=3, rows=1, past=0)
    yield _right_padded(spec, rows=6)
    yield _left_padded(spec, "left_padded", rows=6, past=0)
    yield _holes(spec, rows=8, past=0)
    yield _scattered(spec, rows=9, past=0, end=end)
    yield _spread_out(spec, past=0, end=end)
    yield _run(spec, "trained_length", batch=2, rows=5, past=0, last=length - 1)
    yield _run(spec, "past_trained_length", batch=3, rows=7, past=0, last=length + 3)
    for position in FAR_POSITIONS:
        yield _run(spec, f"position_{position}", batch=2, rows=5, past=0, last=position)
    if end is not None:
        yield _run(spec, "last_position", batch=3, rows=5, past=0, last=end - 1)
    if spec.query_scale is not None:
        yield _run(spec, "temperature_step", batch=2, rows=7, past=0, last=_behind_a_step(spec.query_scale))
    if spec.position_axes == 2:
        yield _images(spec)
    if spec.rotary is not None and spec.position_axes > 1:
        yield _grid(spec, "grid", padded=False)
        yield _grid(spec, "grid_padded", padded=True)
    if spec.window_radius is not None:
        if spec.window_radius > WIDEST_RADIUS:
            yield Exclusion("window_radius", f"window_radius {spec.window_radius} is over {WIDEST_RADIUS} rows")
        else:
            yield _run(spec, "window_radius", batch=1, rows=spec.window_radius + 5, past=0)


def _sizes(spec: AttentionSpec, batch: int, rows: int, past: int) -> tuple[int, int, int]:
    """The sizes wanted, grown until batch, rows and past differ from each other and from the heads' counts.

    A single row and an empty past stay what they are.
    """
    taken = {spec.num_heads, spec.num_kv_heads}
    grown = []
    for wanted in (past, rows, batch):
        size = wanted if wanted < 2 else next(n for n in itertools.count(wanted) if n not in taken)
        taken.add(size)
        grown.append(size)
    past, rows, batch = grown
    return batch, rows, past


def _run(
    spec: AttentionSpec, name: str, *, batch: int, rows: int, past: int, last: int | None = None
) -> Layout | Exclusion:
    """Consecutive positions, from 0 or up to ``last``; a later batch row ends one earlier than the one before it."""
    batch, rows, past = _sizes(spec, batch, rows, past)
    total = past + rows
    slots = np.arange(total)[None].repeat(batch, 0)
    if last is not None:
        slots = slots + (last - total + 1) - np.arange(batch)[:, None]
        if slots.min() < 0:
            return Exclusion(name, f"position {last} is less than the call's {total + batch - 1} positions")
    return Layout(name, slots, np.ones_like(slots), past)


def _padded(spec: AttentionSpec, rows: int, past: int) -> tuple[Ids, Ids, int]:
    """Slot numbers (B, T), each batch row's count of pads (B, 1): none, then more, always at least one real key."""
    batch, rows, past = _sizes(spec, 3, rows, past)
    slots = np.arange(past + rows)[None].repeat(batch, 0)
    pads = (np.arange(batch) * 2) % (past + rows - 1)
    return slots, pads[:, None], past


def _left_padded(spec: AttentionSpec, name: str, *, rows: int, past: int) -> Layout:
    """Pads before the tokens; positions count the real ones, pads take 0."""
    slots, pads, past = _padded(spec, rows, past)
    mask = (slots >= pads).astype(np.int64)
    return Layout(name, np.maximum(slots - pads, 0), mask, past)


def _right_padded(spec: AttentionSpec, *, rows: int) -> Layout:
    """Pads after the tokens, as encoders take them."""
    slots, pads, past = _padded(spec, rows, 0)
    mask = (slots < slots.shape[1] - pads).astype(np.int64)
    return Layout("right_padded", slots * mask, mask, past)


def _scattered(spec: AttentionSpec, *, rows: int, past: int, end: int | None) -> Layout:
    """Positions with gaps and in no order, another set for each batch row."""
    batch, rows, past = _sizes(spec, 2, rows, past)
    total = past + rows
    limit = min(end or 700, 700)
    random = np.random.default_rng(20)
    drawn = [random.choice(limit, total, replace=limit < total) for _ in range(batch)]
    positions = np.stack(drawn).astype(np.int64)
    return Layout("arbitrary_positions", positions, np.ones_like(positions), past)


def _holes(spec: AttentionSpec, *, rows: int, past: int) -> Layout:
    """Keys hidden here and there, cached ones and this call's own: no count of pads says the same."""
    batch, rows, past = _sizes(spec, 3, rows, past)
    slots = np.arange(past + rows)[None].repeat(batch, 0)
    mask = np.ones_like(slots)
    for row in range(batch):
        mask[row, past + 1 + row % (rows - 1)] = 0
        if past:
            mask[row, 1 + row % (past - 1)] = 0
    return Layout("holes", slots, mask, past)


def _spread_out(spec: AttentionSpec, *, past: int, end: int | None) -> Layout:
    """Positions as far apart as a table goes, each a fixed ratio above the one before it.

    Few others stand between the trained length and the far positions: a table may be wrong there alone.
    """
    batch, rows, past = _sizes(spec, 1, SAMPLED, past)
    last = (2**20 if end is None else end) - 1
    edges = np.geomspace(min(64, (last + 1) ** 0.5), last + 1, 2 * rows + 1)
    apart = np.minimum(edges[1::2], last).astype(np.int64)
    positions = np.concatenate([np.arange(past), apart])[None].repeat(batch, 0)
    return Layout("spread_positions", positions, np.ones_like(positions), past)


def _grid(spec: AttentionSpec, name: str, *, padded: bool) -> Layout:
    """Cells of grids, row by row, no two sides alike and another shape for each batch row; tokens that are not turned
    before and behind them. ``padded``: the second grid is smaller, and pads fill its row up.
    """
    rotary, axes = spec.rotary, spec.position_axes
    first, last = (0, 0) if rotary is None else (rotary.prefix_tokens, rotary.suffix_tokens)
    taken = {spec.num_heads, spec.num_kv_heads}
    cells, rows = next((n, n + first + last) for n in (6, 12, 20, 30) if n + first + last not in taken)
    long = next(n for n in range(3, cells) if cells % n == 0 and n * n != cells)
    shapes = [(cells // long, long), (long, cells // long), (1, cells)]
    if padded:
        shapes[1] = (1, 2)
    positions = np.zeros((axes, len(shapes), rows), np.int64)
    mask = np.zeros((len(shapes), rows), np.int64)
    for batch, (height, width) in enumerate(shapes):
        sides = (height, width) if axes == 2 else (*[1] * (axes - 3), height, 1, width)
        filled = height * width
        positions[:, batch, first : first + filled] = np.indices(sides).reshape(axes, -1)
        mask[batch, : first + filled] = 1
        mask[batch, rows - last :] = 1
    return Layout(name, positions, mask, 0)


def _unturned_at_0(spec: AttentionSpec, layout: Layout) -> Layout:
    """The layout with position 0 for the first and the last tokens that a rotation leaves as they are."""
    rotary, ids = spec.rotary, layout.key_position_ids
    if rotary is None or not rotary.unturned_tokens:
        return layout
    ids = ids.copy()
    ids[..., : rotary.prefix_tokens] = 0
    ids[..., max(ids.shape[-1] - rotary.suffix_tokens, 0) :] = 0
    return replace(layout, key_position_ids=ids)


def _images(spec: AttentionSpec) -> Layout:
    """Two images, neither square: 3 x 5 patches, and 4 x 2 with pads behind. Tokens of a prefix stand at (0, 0)."""
    prefix = _prefix_tokens(spec)
    rows = []
    for height, width in ((3, 5), (4, 2)):
        patches = np.stack(np.divmod(np.arange(height * width), width))
        rows.append(np.pad(patches, ((0, 0), (prefix, 15 - height * width))))
    real = np.array([[prefix + 15], [prefix + 8]])
    mask = (np.arange(prefix + 15) < real).astype(np.int64)
    return Layout("images", np.stack(rows, axis=1), mask, 0)


def _prefix_tokens(spec: AttentionSpec) -> int:
    """How many tokens stand before the cells of an image."""
    return max(getattr(each, "prefix_tokens", 0) + getattr(each, "plain_tokens", 0) for each in spec.encodings)


def _on_axes(spec: AttentionSpec, layout: Layout) -> Layout:
    """The layout with a coordinate of its own on every axis: the first keeps the positions, each next one halves them
    and takes every third row as it stands, so that no two axes agree for long. In a grid that ends they are numbers of
    cells, row by row.
    """
    first = layout.key_position_ids
    if spec.position_ends is not None:
        prefix = np.arange(first.shape[1]) < _prefix_tokens(spec)
        return replace(layout, key_position_ids=np.stack(np.divmod(np.where(prefix, 0, first), spec.position_ends[1])))
    apart = [np.where(np.arange(first.shape[1]) % 3 == 0, first, first >> axis) for axis in range(spec.position_axes)]
    return replace(layout, key_position_ids=np.stack(apart))
