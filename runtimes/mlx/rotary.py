"""Layer: runtimes (MLX). The rotary site: queries and keys turned by cos and sin of their positions.

``rotation`` names the way:

* ``auto``: the Metal kernel where there is a Metal device and the kernel has passed its check there, else ``plain``.
* ``plain``: whole-array operations, in the form that costs least (``rotation_forms``).
* ``compiled``: the same through mx.compile. On a CPU a block takes the time that ``plain`` takes to 1 or 2 %, and its
  first use waits seconds for a C++ compiler, so nothing chooses it by itself.
* ``metal``: the kernel (``metal_rotary``), or SpecError where it cannot be used.
* ``fast_rope``: mx.fast.rope (``fast_rope``), which is not exact.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args

import mlx.core as mx
import numpy as np
from mlx import nn

from portpe import decays
from portpe.axes import deal
from portpe.encodings import RotaryEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx import metal_rotary, rotation_forms
from portpe.runtimes.mlx.axis_table import AxisTable, CentredAngles
from portpe.runtimes.mlx.fast_rope import FastRope
from portpe.runtimes.mlx.position_table import FEW, Angles, PositionTable, Tables
from portpe.runtimes.mlx.positions import Positions, Run, Slots, highest, lowest
from portpe.runtimes.mlx.rotary_by_length import RotaryByLength
from portpe.runtimes.mlx.rotation_forms import BY_COMPLEX, BY_FLIP, Form, Pairing, turn
from portpe.tables import KEY

Rotation = Literal["auto", "plain", "compiled", "metal", "fast_rope"]
ROTATIONS: tuple[str, ...] = get_args(Rotation)
Table = PositionTable | AxisTable | CentredAngles
COMPILED: dict[Pairing, Form] = {"half": BY_FLIP, "interleaved": BY_COMPLEX}
"""The form of each pairing that costs least once compiled, whatever the size."""


class Rotary(nn.Module):
    """Turns ``width`` channels of each head, the first or the last; the others pass bit for bit.

    They come out in the order of ``written``. Where they come in another one, they are brought into it first.
    """

    def __init__(
        self,
        table: Table,
        width: int,
        channels: Literal["first", "last"],
        pairing: Pairing,
        rotation: Rotation = "auto",
        fast: FastRope | None = None,
        by_members: bool = False,
        written: Pairing | None = None,
        blocks: int = 1,
        unturned: tuple[int, int] = (0, 0),
        key_table: Table | None = None,
        check: Callable[[mx.Dtype, Positions], None] | None = None,
    ) -> None:
        """``blocks``: half pairing within each of so many parts. ``unturned``: how many first and last tokens stay.
        ``key_table``: that of keys, where they are not turned by the one of queries. ``check`` refuses positions whose
        numbers a type does not hold.
        """
        super().__init__()
        self.table, self.width, self.channels, self.pairing = table, width, channels, written or pairing
        self.given = pairing
        self.key_table, self.check = key_table, check
        self.rotation, self.fast, self.by_members = rotation, fast, by_members
        self._kept, self._kept_keys = _Kept(), _Kept()
        self.blocks, self.unturned = blocks, unturned
        self.no_compiler = why_not_compile() if rotation == "compiled" else None
        if rotation == "metal" and (reason := self._why_not_metal()) is not None:
            raise SpecError(f"rotation must be auto or plain here, got 'metal': {reason}")

    @property
    def counts_pads(self) -> bool:
        """Whether positions must count up through left padding, where others take 0: no table is read."""
        return self.fast is not None

    # --- the definition ---

    def cos_sin(self, positions: mx.array, *, keys: bool = False) -> tuple[mx.array, mx.array]:
        """The cos and sin (1 | B, 1, S, width/2) float32 of positions (1 | B, S); those of keys, or of queries."""
        table = self.key_table if keys and self.key_table is not None else self.table
        cos, sin = self._but_for_the_unturned(*table(positions))
        return mx.expand_dims(cos, 1), mx.expand_dims(sin, 1)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        """Turned x (B, heads, S, head_dim), in its own type."""
        return self._part(self._as_written(x), turn, (cos, sin, self.pairing))

    # --- the ways that a block takes ---

    def rotate(self, q: mx.array, k: mx.array, positions: Positions) -> tuple[mx.array, mx.array]:
        """Turned q (B, heads, S, head_dim) and k (B, kv_heads, S, head_dim) at checked positions.

        Raises SpecError: the way was named, and cannot do it, or a position is refused.
        """
        if self.check is not None:
            self.check(q.dtype, positions)
        q, k = self._as_written(q), self._as_written(k)
        if self.fast is not None:
            return self.fast(q, k, positions)
        if isinstance(self.table, PositionTable) and self._why_not_metal() is None and self.way(q, k)[0] == "metal":
            return metal_rotary.rotate(q, k, positions, self._layout(q, k), self.table)
        return self._by_form(q, k, positions)

    def rotate_all(
        self, q: mx.array, k: mx.array, queries: Positions, keys: Positions, lengths: Slots | None = None
    ) -> tuple[mx.array, mx.array]:
        """Turned q (B, heads, S, head_dim) and k (B, kv_heads, T, head_dim), each at checked positions of its own;
        ``lengths`` do not matter.
        """
        del lengths
        return self._alone(q, queries), self._alone(k, keys)

    def _alone(self, x: mx.array, places: Positions) -> mx.array:
        form = self._form(x.shape[0] * x.shape[2])
        return self._part(self._as_written(x), form.turn, self._angles(form, places, self.table, self._kept))

    def way(self, q: mx.array, k: mx.array) -> tuple[str, str | None]:
        """The way that a call with such q and k takes, and why it is another than the first choice.

        Raises SpecError: ``metal`` was named, and the kernel is not right here.
        """
        if self.rotation == "compiled":
            return ("plain", self.no_compiler) if self.no_compiler else ("compiled", None)
        if self.rotation not in ("auto", "metal"):
            return self.rotation, None
        reason = self._why_not_metal() or metal_rotary.doubt(self._layout(q, k), q.dtype)
        if reason is None:
            return "metal", None
        if self.rotation == "metal":
            raise SpecError(f"rotation must be auto or plain here, got 'metal': {reason}")
        return "plain", reason

    def _why_not_metal(self) -> str | None:
        if not isinstance(self.table, PositionTable):
            return "the Metal kernel reads one coordinate a position from a table, and here it is otherwise"
        if self.blocks > 1 or any(self.unturned):
            return "the Metal kernel turns halves of all tokens, and here blocks or tokens are apart"
        if self.key_table is not None:
            return "the Metal kernel turns q and k by one table, and here keys have their own"
        return metal_rotary.why_not()

    def _by_form(self, q: mx.array, k: mx.array, positions: Positions) -> tuple[mx.array, mx.array]:
        compiled = self.rotation == "compiled" and self.no_compiler is None
        form = COMPILED[self.pairing] if compiled and not self.by_members else self._form(q.shape[0] * q.shape[2])
        angles = self._angles(form, positions, self.table, self._kept)
        turned = _compiled(form) if compiled else form.turn
        if self.key_table is not None:
            of_keys = self._angles(form, positions, self.key_table, self._kept_keys)
            return self._part(q, turned, angles), self._part(k, turned, of_keys)
        if compiled or not form.joins:
            return self._part(q, turned, angles), self._part(k, turned, angles)
        both = self._part(mx.concatenate([q, k], axis=1), turned, angles)
        q_turned, k_turned = mx.split(both, [q.shape[1]], axis=1)
        return q_turned, k_turned

    def _form(self, tokens: int) -> Form:
        """The form in plain operations that costs least."""
        if self.by_members:
            return rotation_forms.BY_MEMBERS[self.pairing]
        return rotation_forms.form_for(self.pairing, tokens)

    def _angles(self, form: Form, positions: Positions, table: Table, kept: _Kept) -> tuple[mx.array, ...]:
        """What the form takes beside x. A short run is cut from a prepared block, which serves what follows it too:
        decoding asks for one position after the other.
        """
        runs = isinstance(table, PositionTable | AxisTable) and not any(self.unturned)
        start = positions.first - positions.first % FEW if isinstance(positions, Run) and runs else None
        if start is None or not isinstance(positions, Run) or positions.stop > start + FEW:
            return rotation_forms.on_device(form.prepare(self._by_heads(positions, table)))
        if kept.form is not form or kept.start != start:
            end = table.end
            block = form.prepare(self._by_heads(Run(start, FEW if end is None else min(FEW, end - start)), table))
            kept.form, kept.start, kept.block = form, start, block
        return tuple(mx.array(part[:, :, positions.first - start : positions.stop - start]) for part in kept.block)

    def _by_heads(self, positions: Positions, table: Table) -> Angles:
        """The cos and sin (1 | B, 1, S, width/2) of checked positions."""
        cos, sin = self._but_for_the_unturned(*table.look_up(positions))
        return cos[:, None], sin[:, None]

    def _but_for_the_unturned(self, cos: Any, sin: Any) -> Angles:
        """(1 | B, S, columns) with an angle of 0 for the first and the last tokens that are not turned."""
        if not any(self.unturned):
            return cos, sin
        first, last = self.unturned
        row = np.arange(cos.shape[1])[:, None]
        stays = (row < first) | (row >= len(row) - last)
        if isinstance(cos, np.ndarray):
            return np.where(stays, np.float32(1), cos), np.where(stays, np.float32(0), sin)
        return mx.where(mx.array(stays), 1.0, cos), mx.where(mx.array(stays), 0.0, sin)

    def _part(self, x: mx.array, turned: Callable[..., mx.array], angles: tuple[Any, ...]) -> mx.array:
        if self.blocks > 1:
            turned = functools.partial(_by_blocks, turned, self.blocks)
        return rotation_forms.in_channels(x, self.width, self.channels, turned, angles)

    def _as_written(self, x: mx.array) -> mx.array:
        """Heads x with their rotated channels in the order in which they come out."""
        if self.given == self.pairing:
            return x
        split = (-1, 2) if self.given == "interleaved" else (2, -1)
        return self._part(x, lambda part: mx.flatten(mx.unflatten(part, -1, split).swapaxes(-1, -2), -2), ())

    def _layout(self, q: mx.array, k: mx.array) -> metal_rotary.Layout:
        first = 0 if self.channels == "first" else q.shape[-1] - self.width
        return metal_rotary.Layout(
            q.shape[1], k.shape[1], q.shape[-1], self.width, first, self.pairing, self.table.two_level
        )


def _by_blocks(turned: Callable[..., mx.array], blocks: int, x: mx.array, *angles: Any) -> mx.array:
    """Halves within each of ``blocks`` parts of the last axis: laid side by side, turned as halves, and laid back."""
    parts = mx.unflatten(x, -1, (blocks, 2, -1)).swapaxes(-3, -2)
    whole = turned(parts.reshape(x.shape), *angles)
    return mx.unflatten(whole, -1, (2, blocks, -1)).swapaxes(-3, -2).reshape(x.shape)


class _Kept:
    """The last block of angles made on the host, its form and first position; no part of the parameter tree."""

    def __init__(self) -> None:
        self.form: Form | None = None
        self.start = -1
        self.block: tuple[Any, ...] = ()


def why_not_compile() -> str | None:
    """Why mx.compile would do nothing, or None."""
    if os.environ.get("MLX_DISABLE_COMPILE"):
        return "MLX_DISABLE_COMPILE is set"
    if sys.platform == "linux" and not metal_rotary.on_gpu() and shutil.which("g++") is None:
        return "mx.compile needs g++ on this machine's PATH, and there is none"
    return None


@functools.cache
def _compiled(form: Form) -> Callable[..., mx.array]:
    """The form through mx.compile, traced again for every shape: a shapeless trace can return stale values."""
    function: Callable[..., mx.array] = mx.compile(form.turn)
    return function


def rotary(
    encoding: RotaryEncoding, tables: Tables, rotation: Rotation = "auto", *, late: bool = False
) -> Rotary | RotaryByLength:
    """RoPE (Su 2021): the schedule, the attention factor and the sign are in the tables already.

    ``late``: all keys are turned at each call, at positions of their own, in plain operations. Raises SpecError.
    """
    if rotation not in ROTATIONS:
        raise SpecError(f"rotation must be one of {', '.join(ROTATIONS)}, got {rotation!r}")
    if encoding.defers_rotation:
        return RotaryByLength(encoding, tables, rotation)
    if late:
        if rotation not in ("auto", "plain"):
            raise SpecError(f"rotation must be auto or plain where each call turns all keys, got {rotation!r}")
        rotation = "plain"
    fast = FastRope(encoding) if rotation == "fast_rope" else None
    return Rotary(
        _table(encoding, tables),
        encoding.width,
        encoding.channels,
        encoding.pairing,
        rotation,
        fast,
        encoding.angles_of_pairs == 2,
        encoding.written,
        encoding.blocks,
        (encoding.prefix_tokens, encoding.suffix_tokens),
        PositionTable(tables, KEY) if encoding.own_key_tables else None,
        functools.partial(_check_scales, encoding) if encoding.own_key_tables else None,
    )


def _check_scales(encoding: RotaryEncoding, dtype: mx.Dtype, positions: Positions) -> None:
    decays.check(encoding, lowest(positions), highest(positions), str(dtype).rpartition(".")[2])


def _table(encoding: RotaryEncoding, tables: Tables) -> Table:
    if encoding.coordinates == "centred":
        return CentredAngles(encoding)
    levels = PositionTable(tables)
    return levels if encoding.axes is None else AxisTable(levels, deal(encoding))


SITES: dict[str, Callable[..., Rotary | RotaryByLength]] = {"rotary": rotary}
