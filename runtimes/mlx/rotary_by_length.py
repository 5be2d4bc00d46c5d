"""Layer: runtimes (MLX). The rotary site under a schedule that follows each batch row's length: all keys, at each call.

Lengths are known on the host, so rows of one schedule share a table, and nothing is traced or compiled anew.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe import length_laws
from portpe import tables as position_tables
from portpe.encodings import RotaryEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx import rotation_forms
from portpe.runtimes.mlx.position_table import Angles, PositionTable, Tables
from portpe.runtimes.mlx.positions import Positions, Run, Slots, highest
from portpe.tables import LONG, SHORT, TABLE_STEP


class RotaryByLength(nn.Module):
    """Queries and all keys turned by the schedule of their row's length.

    A schedule that switches once has both tables from the start. For one that follows every token a table is made in
    float64 where a length has none yet; those of the last call are kept.
    """

    counts_pads = False

    def __init__(self, encoding: RotaryEncoding, tables: Tables, rotation: str = "auto") -> None:
        super().__init__()
        if rotation not in ("auto", "plain"):
            raise SpecError(f"rotation must be auto or plain under regime per_sequence, got {rotation!r}")
        self.encoding = encoding
        self._kept = _Kept()
        if position_tables.sides(encoding):
            self._kept.tables = {prefix: PositionTable(tables, prefix) for prefix in (SHORT, LONG)}

    def way(self, q: mx.array, k: mx.array) -> tuple[str, str | None]:  # noqa: ARG002 - the signature of a rotary site
        """``plain``, and why it is no other."""
        return "plain", "regime per_sequence turns all keys at each call, by tables of each row's own"

    def rotate_all(
        self, q: mx.array, k: mx.array, queries: Positions, keys: Positions, lengths: Slots | None
    ) -> tuple[mx.array, mx.array]:
        """Turned q (B, heads, S, head_dim) and k (B, kv_heads, T, head_dim).

        ``queries`` and ``keys`` are their checked positions, ``lengths`` (1 | B,) those of the rows.
        """
        assert lengths is not None
        end = 1 + max(highest(queries), highest(keys))
        tables = self._tables(lengths, end)
        return self._turned(q, queries, tables), self._turned(k, keys, tables)

    def _tables(self, lengths: Slots, end: int) -> list[PositionTable]:
        """The table of each row; of one alone where all rows share it."""
        if position_tables.sides(self.encoding):
            long = position_tables.on_the_long_side(self.encoding, lengths)
            rows = [self._kept.tables[LONG if each else SHORT] for each in long]
        else:
            settled = [length_laws.settled(self.encoding, int(length)) for length in lengths]
            self._kept.tables = {length: self._table(length, end) for length in set(settled)}
            rows = [self._kept.tables[length] for length in settled]
        return rows[:1] if all(row is rows[0] for row in rows) else rows

    def _table(self, length: int, end: int) -> PositionTable:
        """That of a settled length, for positions below ``end``: the last call's, or a new one."""
        kept = self._kept.tables.get(length)
        if kept is not None and kept.end >= end:
            return kept
        return PositionTable(position_tables.rotary_levels(self.encoding, max(end, TABLE_STEP), length))

    def _turned(self, x: mx.array, places: Positions, tables: list[PositionTable]) -> mx.array:
        form = rotation_forms.form_for(self.encoding.pairing, x.shape[0] * x.shape[2])
        angles = rotation_forms.on_device(form.prepare(_by_heads(places, tables)))
        encoding = self.encoding
        return rotation_forms.in_channels(x, encoding.width, encoding.channels, form.turn, angles)


class _Kept:
    """Tables by side, or by settled length; no part of the parameter tree."""

    def __init__(self) -> None:
        self.tables: dict[str | int, PositionTable] = {}


def _by_heads(places: Positions, tables: list[PositionTable]) -> Angles:
    """The cos and sin (1 | B, 1, n, width/2) of positions, each row from its table."""
    if len(tables) == 1:
        cos, sin = tables[0].look_up(places)
        return cos[:, None], sin[:, None]
    rows = (
        [places] * len(tables) if isinstance(places, Run) else np.broadcast_to(places, (len(tables), places.shape[1]))
    )
    found = [table.look_up(row if isinstance(row, Run) else row[None]) for row, table in zip(rows, tables, strict=True)]
    cos, sin = (mx.concatenate([mx.array(part) for part in parts], axis=0) for parts in zip(*found, strict=True))
    return cos[:, None], sin[:, None]
