"""Layer: runtimes (MLX). The rotation as whole-array operations: one form a pairing and size, chosen by measured cost.

Every form computes the products and sums of ``turn`` in float32 and casts once, so all give its bits; they differ in
what mlx spends on them. CPU time on a Linux machine, relative to ``turn``, for 32 + 8 heads of 64 channels:

| tokens | half by roll | half by flip | interleaved by complex | interleaved by flip |
|---|---|---|---|---|
| 1 | 0.74 | 0.95 | 0.42 | 0.79 |
| 16 | 0.63 | 0.76 | 1.29 | 0.89 |
| 128 | 0.68 | 0.48 | 2.9 | 0.94 |
| 512 | 1.17 | 0.73 | 2.0 | 0.75 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from portpe.runtimes.mlx.position_table import Angles

Pairing = Literal["half", "interleaved"]


def turn(x: mx.array, cos: mx.array, sin: mx.array, pairing: Pairing) -> mx.array:
    """Each pair (a, b) of x's last axis becomes (a cos - b sin, b cos + a sin), in float32, cast once to x's type.

    x (B, heads, S, R); cos and sin (1 | B, 1, S, R/2) float32, or (..., R) where the members of a pair have angles of
    their own, first members before second ones. Pair i is (i, i + R/2) with ``half``,
    (2i, 2i + 1) with ``interleaved`` (Su 2021, section 3.4.2). This is the definition; the forms below are faster.
    """
    wide = x.astype(mx.float32)
    half = x.shape[-1] // 2
    a, b = (wide[..., :half], wide[..., half:]) if pairing == "half" else (wide[..., 0::2], wide[..., 1::2])
    (cos_a, cos_b), (sin_a, sin_b) = ((part[..., :half], part[..., -half:]) for part in (cos, sin))
    first, second = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    if pairing == "half":
        turned = mx.concatenate([first, second], axis=-1)
    else:
        turned = mx.stack([first, second], axis=-1).reshape(x.shape)
    return turned.astype(x.dtype)


@dataclass(frozen=True)
class Form:
    """One way to turn x (B, heads, S, R): ``prepare`` makes of cos and sin (1 | B, 1, S, R/2), once a call, what
    ``turn`` takes beside x.
    """

    prepare: Callable[[Angles], tuple[Any, ...]]
    turn: Callable[..., mx.array]
    joins: bool = False
    """q and k are turned as one array: with few tokens, operations cost more than copies."""


def by_roll(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """As x C + roll(x) S with C = (cos, cos), S = (-sin, sin), both (..., R): the fewest operations for halves."""
    wide = x.astype(mx.float32)
    return (wide * cos + mx.roll(wide, x.shape[-1] // 2, -1) * sin).astype(x.dtype)


def by_flip(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """The same with pairs on the axis before the last, (..., 2, R/2): their exchange is a view, not a copy."""
    pairs = mx.unflatten(x.astype(mx.float32), -1, (2, -1))
    return mx.flatten((pairs * cos + pairs[..., ::-1, :] * sin).astype(x.dtype), -2)


def by_inner_flip(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """The same with pairs on the last axis, (..., R/2, 2)."""
    pairs = mx.unflatten(x.astype(mx.float32), -1, (-1, 2))
    return mx.flatten((pairs * cos + pairs[..., ::-1] * sin).astype(x.dtype), -2)


def by_complex(x: mx.array, turns: mx.array) -> mx.array:
    """Neighbours as complex numbers times cos + i sin (..., R/2): one multiplication, but a slow one of mlx's."""
    return (x.astype(mx.float32).view(mx.complex64) * turns).view(mx.float32).astype(x.dtype)


def _whole(angles: Angles) -> tuple[Any, ...]:
    cos, sin = angles
    xp: Any = _namespace(cos)
    return xp.concatenate([cos, cos], axis=-1), xp.concatenate([-sin, sin], axis=-1)


def _split(angles: Angles) -> tuple[Any, ...]:
    cos, sin = angles
    xp: Any = _namespace(cos)
    return xp.expand_dims(cos, -2), xp.stack([-sin, sin], axis=-2)


def _neighbours(angles: Angles) -> tuple[Any, ...]:
    cos, sin = angles
    xp: Any = _namespace(cos)
    return xp.expand_dims(cos, -1), xp.stack([-sin, sin], axis=-1)


def _complex(angles: Angles) -> tuple[Any, ...]:
    cos, sin = angles
    if isinstance(cos, mx.array):
        return (mx.stack([cos, sin], axis=-1).view(mx.complex64).squeeze(-1),)
    return (np.stack([cos, sin], axis=-1).view(np.complex64)[..., 0],)


def _whole_by_members(angles: Angles) -> tuple[Any, ...]:
    cos, sin = angles
    half = cos.shape[-1] // 2
    xp: Any = _namespace(cos)
    return cos, xp.concatenate([-sin[..., :half], sin[..., half:]], axis=-1)


def _neighbours_by_members(angles: Angles) -> tuple[Any, ...]:
    cos, sin = angles
    half = cos.shape[-1] // 2
    xp: Any = _namespace(cos)
    sides = xp.stack([cos[..., :half], cos[..., half:]], axis=-1)
    return sides, xp.stack([-sin[..., :half], sin[..., half:]], axis=-1)


def _namespace(array: Any) -> Any:
    return mx if isinstance(array, mx.array) else np


BY_ROLL, BY_FLIP = Form(_whole, by_roll, joins=True), Form(_split, by_flip)
BY_COMPLEX, BY_INNER_FLIP = Form(_complex, by_complex, joins=True), Form(_neighbours, by_inner_flip)

BY_MEMBERS: dict[Pairing, Form] = {
    "half": Form(_whole_by_members, by_roll, joins=True),
    "interleaved": Form(_neighbours_by_members, by_inner_flip),
}
"""The form of each pairing where the members of a pair have angles of their own."""

FORMS: dict[Pairing, tuple[tuple[int, Form], ...]] = {
    "half": ((16, BY_ROLL), (2**62, BY_FLIP)),
    "interleaved": ((4, BY_COMPLEX), (2**62, BY_INNER_FLIP)),
}
"""The form of each pairing, up to how many tokens."""


def form_for(pairing: Pairing, tokens: int) -> Form:
    """The form that costs least on the CPU for so many tokens."""
    return next(form for most, form in FORMS[pairing] if tokens <= most)


def in_channels(
    x: mx.array,
    width: int,
    channels: Literal["first", "last"],
    turned: Callable[..., mx.array],
    angles: tuple[Any, ...],
) -> mx.array:
    """Heads x with ``width`` of their channels turned; the others pass bit for bit."""
    rest = x.shape[-1] - width
    if rest == 0:
        return turned(x, *angles)
    if channels == "first":
        parts = [turned(x[..., :width], *angles), x[..., width:]]
    else:
        parts = [x[..., :rest], turned(x[..., rest:], *angles)]
    return mx.concatenate(parts, axis=-1)


def on_device(prepared: tuple[Any, ...]) -> tuple[mx.array, ...]:
    """What ``Form.prepare`` made, as mlx arrays."""
    return tuple(array if isinstance(array, mx.array) else mx.array(array) for array in prepared)
