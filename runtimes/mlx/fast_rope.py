"""Layer: runtimes (MLX). mx.fast.rope, by name only: mlx-lm's own rotation, for comparison with it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from portpe import schedules
from portpe.encodings import RotaryEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx.positions import Positions, Run


class FastRope:
    """Rotation by mx.fast.rope, which forms its angles in float32.

    An angle is off by up to a few halves of a last place of position * inv_freq, 2 ** -23 of the position in radians
    for the fastest pair. Measured on a CPU with mlx 0.32.4 (64 channels, base 10000, normal x, largest error of a
    float32 result): 2e-5 below position 256, 4e-4 at 4096, 4e-3 at 32768, 1.3e-2 at 131072, 8e-2 at a million. In
    16-bit types on a CPU, cos, sin, every product and the attention factor's product are rounded too; on Metal the
    sines are those of metal::fast, which promises 2 ** -13 near zero and less elsewhere. The tables of the other
    ways stay within 3e-7 everywhere.

    The attention factor multiplies x first, in float32. Raises SpecError for what mx.fast.rope cannot express:
    precision ``hf`` (given tables), the last channels, and, at a call, positions that do not count up by one.
    """

    def __init__(self, encoding: RotaryEncoding) -> None:
        if encoding.precision == "hf":
            raise SpecError("rotary.precision must be exact where rotation is fast_rope, got hf: it takes no tables")
        if encoding.channels == "last":
            raise SpecError("rotary.channels must be first where rotation is fast_rope, got last")
        if encoding.defers_rotation:
            raise SpecError("rotary.regime must be fixed where rotation is fast_rope, got per_sequence")
        if encoding.own_key_tables:
            raise SpecError("rotary.decay must be left out where rotation is fast_rope, which turns q and k alike")
        if encoding.axes is not None or encoding.blocks > 1 or encoding.offset or encoding.needs_positions:
            raise SpecError(
                "rotary.axes, blocks, offset and the like must be left out where rotation is fast_rope, got one of them"
            )
        with np.errstate(divide="ignore"):  # a frequency of 0 has an endless period, and turns nothing
            periods = encoding.sign / schedules.inv_freq(encoding)
        self.width, self.traditional = encoding.width, encoding.written == "interleaved"
        self.periods, self.factor = mx.array(periods.astype(np.float32)), schedules.magnitude(encoding)

    def __call__(self, q: mx.array, k: mx.array, positions: Positions) -> tuple[mx.array, mx.array]:
        """Turned q and k (B, heads, S, head_dim); positions count up by one in each row. Raises SpecError."""
        offset = _offset(positions)
        return self._turned(q, offset), self._turned(k, offset)

    def _turned(self, x: mx.array, offset: int | mx.array) -> mx.array:
        if self.factor != 1.0:
            scaled = (x[..., : self.width].astype(mx.float32) * self.factor).astype(x.dtype)
            x = scaled if x.shape[-1] == self.width else mx.concatenate([scaled, x[..., self.width :]], axis=-1)
        return mx.fast.rope(
            x, self.width, traditional=self.traditional, base=None, scale=1.0, offset=offset, freqs=self.periods
        )


def _offset(positions: Positions) -> int | mx.array:
    """The first position, by row where rows differ."""
    if isinstance(positions, Run):
        return positions.first
    steps = np.diff(positions, axis=1)
    if (steps != 1).any():
        raise SpecError(
            "position_ids must count up by one in each row where rotation is fast_rope,"
            f" got a step of {steps[steps != 1][0]}; use another rotation"
        )
    return int(positions[0, 0]) if len(positions) == 1 else mx.array(positions[:, 0].astype(np.int32))
