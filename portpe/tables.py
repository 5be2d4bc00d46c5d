"""Positions to cosines and sines: exact values, and the tables that an artefact carries.

A position p is hi * TABLE_STEP + lo. A two-level table holds the rows of every hi and of
every lo, and angle addition joins them: a million positions take a megabyte and not
half a gigabyte. An angle is formed in float64, never in the type of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe import biases, decays, schedules, temperatures
from portpe.axes import factors, on_every_axis
from portpe.encodings import (
    BiasEncoding,
    FixedRegime,
    LongropeSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
    Sizes,
)
from portpe.errors import SpecError
from portpe.positions import check_range, integer_positions
from portpe.spec import AttentionSpec

Exact = NDArray[np.float64]
Table = NDArray[np.float32]
Values = TypeVar("Values", NDArray[np.float64], NDArray[np.float32])

TABLE_STEP = 1024
SHORT, LONG = "short_", "long_"  # prefixes of the tables of a schedule that switches once, under a per_sequence regime
KEY = "key_"  # prefix of the tables by which keys are turned, where they are not those of queries
_SHORTEST = 2**20


def cos_sin(
    rotary: RotaryEncoding, positions: ArrayLike, seq_len: int | None = None, *, keys: bool = False
) -> tuple[Exact, Exact]:
    """The cosines and sines that turn queries and keys, attention factor and sign in them.

    Args:
        rotary: the encoding.
        positions: integers (..., sequence), without an upper end; (axes, ..., sequence) where a position has several
            coordinates. Tokens that are not turned whatever their position are the block's to know.
        seq_len: length of the sequence, for schedules that depend on it (see ``schedules.inv_freq``).
        keys: those of keys, which have their own under a decay: there both are multiplied by its scale for queries,
            and divided by it for keys.

    Returns:
        cos and sin, float64 (..., R/2), or (..., R) where the members of a pair have angles of their own, first
        members before second ones. The angle's error is at most 2 ** -52 of the angle in
        radians: 2e-9 at position ten million. With precision ``hf``: transformers' float32 numbers, widened.

    Raises:
        SpecError: positions are not integers, the schedule needs ``seq_len``, or float64 does not hold the scale of a
            decay there.
    """
    places = integer_positions(positions)
    if rotary.axes is not None and (places.ndim == 0 or len(places) != rotary.axes.count):
        raise SpecError(f"positions must be ({rotary.axes.count}, ...), one a coordinate, got shape {places.shape}")
    if rotary.precision == "hf":
        from portpe import hf_tables  # torch only where transformers' numbers are asked for

        cos, sin = hf_tables.cos_sin(rotary, places, seq_len)
        return cos.astype(np.float64), sin.astype(np.float64)
    angles = factors(rotary, places) * schedules.inv_freq(rotary, seq_len)
    magnitude: Exact | float = schedules.magnitude(rotary, seq_len)
    if rotary.decay is not None and places.size:
        decays.check(rotary, int(places.min()), int(places.max()), "float64")
        magnitude = magnitude * decays.scales(rotary, places, keys=keys)
    return np.cos(angles) * magnitude, np.sin(angles) * (rotary.sign * magnitude)


def cos_sin_by_row(
    rotary: RotaryEncoding, positions: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Exact, Exact]:
    """``cos_sin`` of positions (B, n), each batch row under the schedule of its own length, ``lengths`` (B,)."""
    rows = [cos_sin(rotary, row, int(length)) for row, length in zip(positions, lengths, strict=True)]
    return np.stack([cos for cos, _ in rows]), np.stack([sin for _, sin in rows])


def sinusoid(embedding: SinusoidalEncoding, positions: ArrayLike) -> Exact:
    """The rows that are added to hidden states, float64 (..., width); ``offset`` is added inside.

    Raises:
        SpecError: positions are not integers.
    """
    places = integer_positions(positions)
    if embedding.precision == "hf":
        from portpe import hf_tables

        return hf_tables.sinusoid(embedding, places).astype(np.float64)
    angles = (places + embedding.offset)[..., None] * schedules.sinusoidal(embedding)
    return arrange(embedding, np.cos(angles), np.sin(angles)) * embedding.scale


def relative_sinusoid(
    encoding: BiasEncoding, layer: Sizes, distances: ArrayLike, tables: Mapping[str, Table] | None = None
) -> Exact:
    """The sinusoid of distances i - j, negative ones too, that a bias reads: float64 (..., width).

    Args:
        encoding: one with a ``sinusoid``.
        layer: whose encoding it is.
        distances: integers (...), already clamped where the encoding clamps them.
        tables: with precision ``hf``, those made by ``table_set``; None makes the rows.

    Raises:
        SpecError: distances are not integers.
    """
    wave = encoding.sinusoid(layer)
    assert wave is not None
    places = integer_positions(distances)
    if getattr(encoding, "precision", "exact") == "exact":
        angles = places[..., None] * schedules.sinusoidal(wave)
        return arrange(wave, np.cos(angles), np.sin(angles))
    if tables is None:
        from portpe import hf_tables

        cos, sin = hf_tables.relative_sinusoid(encoding, wave, np.abs(places))
    else:
        cos, sin = combine(tables, np.abs(places), "relative_")
    return arrange(wave, cos, sin * np.sign(places)[..., None]).astype(np.float64)


def arrange(embedding: SinusoidalEncoding, cos: Values, sin: Values) -> Values:
    """Channels in the encoding's order, (..., width), from cosines and sines (..., frequencies)."""
    if embedding.order == "interleaved":
        return np.stack([sin, cos], axis=-1).reshape(*sin.shape[:-1], -1)[..., : embedding.width]
    first, second = (sin, cos) if embedding.order == "sin_cos" else (cos, sin)
    rows = np.concatenate([first, second[..., : embedding.width - first.shape[-1]]], axis=-1)
    missing = embedding.width - rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)]) if missing else rows


def default_end(spec: AttentionSpec) -> int:
    """How many positions a table covers where nobody says: the first position past it.

    Exact tables: 2 ** 20 or the context, whichever is more, in whole steps; the context alone where there is a
    decay. Tables of precision ``hf``, which have one full row a position: the context. The context is the
    length that a regime fixes, else the trained length times the schedule's factor.

    Raises:
        SpecError: an ``hf`` table, or one with a decay, is asked for and the spec states no length.
    """
    context = _context(spec)
    bounded = spec.rotary is not None and spec.rotary.decay is not None  # no type holds its scales far out
    if spec.precision != "hf" and not bounded:
        return _whole_steps(max(_SHORTEST, context))
    if context == 0 and _tabulates_positions(spec):
        whose = "precision hf" if spec.precision == "hf" else "a decay"
        raise SpecError(f"max_position_embeddings is required for tables of {whose}, got None; give --table-positions")
    return context if spec.precision == "hf" else _whole_steps(context)


def table_set(spec: AttentionSpec, end: int | None = None) -> dict[str, Table]:
    """The position tables of one layer, as every artefact carries them, in float32.

    Exact encodings have two levels. Rotary: ``cos_hi, sin_hi`` (rows of positions
    n * TABLE_STEP, the attention factor in them), ``cos_lo, sin_lo`` (TABLE_STEP rows), each
    (rows, R/2), the sign in both sines; under a decay its scales in all of them, and the same with ``key_`` before
    their names for keys; where a position has several coordinates, each column is
    looked up by its own; none for centred coordinates. Sinusoidal: the same under ``embedding_`` (rows, frequencies),
    in order of i, the scale in the hi rows and the offset in the lo rows. A sinusoid of the distance: the same under
    ``relative_``, for distances from 0 on. Query temperature: ``query_scale`` (rows,), one row a step of positions.
    ALiBi: ``slopes`` (heads,), the scale in them, positive. A learned encoding has none: its weight is the table.
    Precision ``hf``: full tables
    ``cos, sin`` (N, R/2), ``embedding`` (N, width), ``relative_cos, relative_sin`` (N, frequencies), and the owner's
    ``query_scale`` and ``slopes``, made by torch.

    Under a per_sequence regime a rotary schedule that switches once (LongRoPE) has the tables of both sides, with
    ``short_`` and ``long_`` before their names. One that follows every further token has none: its angles are formed
    in float64 at each call, and positions have no end.

    Args:
        spec: the layer.
        end: positions to cover (None: ``default_end``); exact tables round up to whole steps.

    Raises:
        SpecError: ``end`` is not positive, or a schedule depends on the length without a regime, or under one that
            precision ``hf`` has no tables for, or float32 does not hold the scales of a decay at some position.
    """
    end = default_end(spec) if end is None else end
    if end < 1 and _tabulates_positions(spec):
        raise SpecError(f"table_positions must be >= 1, got {end}")
    kinds = [encoding.kind for encoding in spec.bias]
    if repeated := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        raise SpecError(f"bias must hold at most one {repeated[0]} encoding to be tabulated, got {len(spec.bias)}")
    tables: dict[str, Table] = {}
    if spec.rotary is not None and spec.rotary.precision == "exact":
        for prefix, seq_len in sides(spec.rotary).items():
            tables |= rotary_levels(spec.rotary, end, seq_len, prefix)
        if spec.rotary.own_key_tables:
            tables |= rotary_levels(spec.rotary, end, prefix=KEY, keys=True)
    if spec.query_scale is not None:  # of either precision
        tables["query_scale"] = temperatures.table(spec.query_scale, end)
    if isinstance(spec.embedding, SinusoidalGridEncoding) and not spec.embedding.normalize:
        tables |= _sinusoidal_levels(spec.embedding.half, end)
    if isinstance(spec.embedding, SinusoidalEncoding) and spec.embedding.precision == "exact":
        tables |= _sinusoidal_levels(spec.embedding, end)
    for encoding in spec.bias:
        wave = encoding.sinusoid(spec)
        if wave is not None and getattr(encoding, "precision", "exact") == "exact":
            tables |= _sinusoidal_levels(wave, end, "relative_")
        if encoding.kind in biases.TABLES and getattr(encoding, "precision", "exact") == "exact":
            tables |= biases.TABLES[encoding.kind](encoding, spec)
    if spec.precision == "hf":
        from portpe import hf_tables

        tables |= hf_tables.table_set(spec, end)
    return tables


def combine(tables: Mapping[str, Table], positions: ArrayLike, prefix: str = "") -> tuple[Table, Table]:
    """The cos and sin of ``positions`` from a table set, in float32, as artefacts form them.

    Args:
        tables: what ``table_set`` made, two levels or full.
        positions: integers (...).
        prefix: ``embedding_`` for the levels of a sinusoidal encoding, ``relative_`` for a sinusoid of distances,
            ``key_`` for keys that have tables of their own.

    Returns:
        float32 (..., columns). From two levels the error is at most 2e-7 * max(1, A), A the attention
        factor: 1.45e-7 measured for A = 1, most for A just above 1, where float32 spaces A twice as
        wide as 1. Just above 2 it reaches 2.02e-7 of A; no schedule prescribes such a factor. Under a decay all four
        tables are scaled, and the error is at most 2.4e-7 of A times the pair's scale: each product has three
        roundings of 2**-24, the sum one, and the products are no larger together than the result's magnitude.

    Raises:
        SpecError: a position is negative or past the table.
    """
    places = integer_positions(positions)
    if f"{prefix}cos" in tables:
        cos, sin = tables[f"{prefix}cos"], tables[f"{prefix}sin"]
        check_range(places, len(cos))
        return cos[places], sin[places]
    cos_hi, sin_hi, cos_lo, sin_lo = (tables[prefix + name] for name in ("cos_hi", "sin_hi", "cos_lo", "sin_lo"))
    check_range(places, len(cos_hi) * TABLE_STEP)
    hi, lo = np.divmod(places, TABLE_STEP)
    cos = cos_hi[hi] * cos_lo[lo] - sin_hi[hi] * sin_lo[lo]
    sin = sin_hi[hi] * cos_lo[lo] + cos_hi[hi] * sin_lo[lo]
    return cos, sin


def combine_by_row(
    rotary: RotaryEncoding, tables: Mapping[str, Table], positions: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Table, Table]:
    """``combine`` of positions (B, n), each batch row from the tables of its own side of the switch.

    Raises SpecError: a position is negative or past the table.
    """
    is_long = on_the_long_side(rotary, lengths)[:, None, None]
    both = zip(combine(tables, positions, LONG), combine(tables, positions, SHORT), strict=True)
    cos, sin = (np.where(is_long, long, short) for long, short in both)
    return cos, sin


def end_of(spec: AttentionSpec, tables: Mapping[str, Table]) -> int | None:
    """The first position that some table of the layer has no row for; None where nothing ends."""
    levels = ("cos_hi", f"{SHORT}cos_hi", "embedding_cos_hi", "relative_cos_hi")
    ends = [len(tables[name]) * TABLE_STEP for name in levels if name in tables]
    ends += [len(tables[name]) for name in ("cos", f"{SHORT}cos", "embedding", "relative_cos") if name in tables]
    if spec.query_scale is not None and "query_scale" in tables:
        ends.append(temperatures.table_end(spec.query_scale, tables))
    if spec.embedding is not None and spec.embedding.position_end is not None:
        ends.append(spec.embedding.position_end)
    if spec.position_ends is not None:
        ends.append(max(spec.position_ends))
    return min(ends, default=None)


def sides(rotary: RotaryEncoding) -> dict[str, int | None]:
    """The prefix of each table set of an encoding, and the length that its schedule is taken at (None: its own).

    Empty where the frequencies follow every further token, or an angle the size of a grid.
    """
    if rotary.coordinates != "index":
        return {}
    if not rotary.defers_rotation:
        return {"": None}
    if isinstance(rotary.schedule, LongropeSchedule):
        original = rotary.schedule.original_max_position_embeddings
        return {SHORT: original, LONG: original + 1}
    return {}


def on_the_long_side(rotary: RotaryEncoding, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows, of these lengths, take the tables of ``LONG``."""
    return lengths > (sides(rotary)[SHORT] or 0)


def _tabulates_positions(spec: AttentionSpec) -> bool:
    """Whether the layer's tables have one row a position, or a distance."""
    waves = any(encoding.sinusoid(spec) is not None for encoding in spec.bias)
    return any(site is not None for site in (spec.rotary, spec.query_scale, spec.embedding)) or waves


def _context(spec: AttentionSpec) -> int:
    """The longest sequence the spec speaks of, 0 where it speaks of none."""
    lengths = [spec.max_position_embeddings or 0]
    if isinstance(spec.embedding, SinusoidalEncoding) and spec.embedding.position_end is not None:
        lengths.append(spec.embedding.position_end)
    if spec.rotary is not None:
        if isinstance(spec.rotary.regime, FixedRegime):
            return spec.rotary.regime.length
        schedule = spec.rotary.schedule
        trained = (
            getattr(schedule, "original_max_position_embeddings", None)
            or getattr(schedule, "max_position_embeddings", None)
            or spec.max_position_embeddings
            or 0
        )
        lengths.append(math.ceil(trained * getattr(schedule, "factor", 1.0)))
    return max(lengths)


def _whole_steps(end: int) -> int:
    return -(-end // TABLE_STEP) * TABLE_STEP


def _level_positions(end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(0, end, TABLE_STEP, dtype=np.int64), np.arange(TABLE_STEP, dtype=np.int64)


def rotary_levels(
    rotary: RotaryEncoding, end: int, seq_len: int | None = None, prefix: str = "", *, keys: bool = False
) -> dict[str, Table]:
    """The two levels of a rotary encoding, for positions below ``end``, under the schedule of a length; the offset is
    in the lo rows. ``keys``: those by which keys are turned. A scaled angle is a complex number like any other, so
    the addition of angles multiplies the scales of both levels.

    Raises SpecError: the schedule depends on the length and none is given, or float32 does not hold a scale.
    """
    decays.check(rotary, 0, end - 1, "float32")
    without_offset = rotary.model_copy(update={"offset": 0})
    hi, lo = _level_positions(end)
    frequencies, magnitude = schedules.inv_freq(rotary, seq_len), schedules.magnitude(rotary, seq_len)
    coarse = factors(without_offset, on_every_axis(rotary, hi)) * frequencies
    fine = factors(rotary, on_every_axis(rotary, lo)) * frequencies
    of_hi: Exact | float = magnitude
    of_lo: Exact | float = 1.0
    if rotary.decay is not None:
        of_hi = magnitude * decays.scales(without_offset, hi, keys=keys)
        of_lo = decays.steps(rotary, lo + rotary.offset, keys=keys)
    cos_hi, sin_hi = np.cos(coarse) * of_hi, np.sin(coarse) * (rotary.sign * of_hi)
    return _as_tables(prefix, cos_hi, sin_hi, np.cos(fine) * of_lo, np.sin(fine) * (rotary.sign * of_lo))


def _sinusoidal_levels(embedding: SinusoidalEncoding, end: int, prefix: str = "embedding_") -> dict[str, Table]:
    if embedding.position_end is not None:
        end = min(end, embedding.position_end)
    hi, lo = _level_positions(end)
    frequencies = schedules.sinusoidal(embedding)
    coarse, fine = hi[:, None] * frequencies, (lo + embedding.offset)[:, None] * frequencies
    scale = embedding.scale
    return _as_tables(prefix, np.cos(coarse) * scale, np.sin(coarse) * scale, np.cos(fine), np.sin(fine))


def _as_tables(prefix: str, cos_hi: Exact, sin_hi: Exact, cos_lo: Exact, sin_lo: Exact) -> dict[str, Table]:
    levels = {"cos_hi": cos_hi, "sin_hi": sin_hi, "cos_lo": cos_lo, "sin_lo": sin_lo}
    return {prefix + name: values.astype(np.float32) for name, values in levels.items()}
