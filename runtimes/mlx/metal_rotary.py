"""Layer: runtimes (MLX). The rotation as one Metal kernel that reads the position tables, for q and k in one launch.

Nobody has run it on a Metal device yet: its body is tested as C++ on a CPU. So it is never trusted unseen: before
its first use with a layout and a type it turns three small cases on the device at hand, and where a number differs
from the plain path by more than rounding (or the kernel does not build), the plain path stays, with the reason.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from portpe.runtimes.mlx.position_table import PositionTable
from portpe.runtimes.mlx.positions import Positions, rows
from portpe.runtimes.mlx.rotation_forms import Pairing, turn
from portpe.tables import TABLE_STEP

HEADS = 4  # of one token, turned by one thread: the angle is formed once for them

DTYPES = (mx.float32, mx.float16, mx.bfloat16)

# One thread turns pair x of token y for HEADS heads of a batch row, or passes one channel that is not turned. Heads
# of q come first, those of k after them. Inputs are read by their strides, for they are views of the projections;
# a name of an input stands only where it is indexed, because mlx puts small inputs into another address space.
_BODY = """
    const uint pairs = WIDTH / 2;
    const uint x = thread_position_in_grid.x;
    const uint token = thread_position_in_grid.y;
    const uint row = thread_position_in_grid.z / GROUPS;
    const uint head = (thread_position_in_grid.z % GROUPS) * HEADS;
    const uint tokens = q_shape[2];
    const bool turns = x < pairs;

    float c = 1.0f, s = 0.0f;
    uint a, b;
    if (turns) {
        const uint position = positions[(positions_shape[0] == 1 ? 0 : row) * tokens + token];
@ANGLE@
        a = FIRST + (HALF ? x : 2 * x);
        b = FIRST + (HALF ? x + pairs : 2 * x + 1);
    } else {
        const uint channel = x - pairs;
        a = b = channel < FIRST ? channel : channel + WIDTH;
    }

    for (uint h = head; h < head + HEADS && h < Q_HEADS + K_HEADS; ++h) {
        if (h < Q_HEADS) {
            const int64_t from = row * q_strides[0] + h * q_strides[1] + token * q_strides[2];
            const int64_t to = ((int64_t(row) * Q_HEADS + h) * tokens + token) * HEAD_DIM;
            const T qa = q[from + a * q_strides[3]], qb = q[from + b * q_strides[3]];
            if (turns) {
                q_out[to + a] = static_cast<T>(float(qa) * c - float(qb) * s);
                q_out[to + b] = static_cast<T>(float(qb) * c + float(qa) * s);
            } else {
                q_out[to + a] = qa;
            }
        } else {
            const uint n = h - Q_HEADS;
            const int64_t from = row * k_strides[0] + n * k_strides[1] + token * k_strides[2];
            const int64_t to = ((int64_t(row) * K_HEADS + n) * tokens + token) * HEAD_DIM;
            const T ka = k[from + a * k_strides[3]], kb = k[from + b * k_strides[3]];
            if (turns) {
                k_out[to + a] = static_cast<T>(float(ka) * c - float(kb) * s);
                k_out[to + b] = static_cast<T>(float(kb) * c + float(ka) * s);
            } else {
                k_out[to + a] = ka;
            }
        }
    }
"""

_TWO_LEVELS = """
        const uint hi = (position / STEP) * pairs + x, lo = (position % STEP) * pairs + x;
        c = cos_hi[hi] * cos_lo[lo] - sin_hi[hi] * sin_lo[lo];
        s = sin_hi[hi] * cos_lo[lo] + cos_hi[hi] * sin_lo[lo];
"""

_FULL = """
        c = cosines[int64_t(position) * pairs + x];
        s = sines[int64_t(position) * pairs + x];
"""


@dataclass(frozen=True)
class Layout:
    """What one kernel is made for: ``width`` channels from ``first`` on are turned, of ``head_dim``."""

    q_heads: int
    k_heads: int
    head_dim: int
    width: int
    first: int
    pairing: Pairing
    two_level: bool


def on_gpu() -> bool:
    """Whether mlx computes on a GPU by default."""
    return bool(mx.default_device().type == mx.gpu)


def why_not() -> str | None:
    """Why no Metal kernel can run here, or None."""
    if not mx.metal.is_available():
        return "mlx has no Metal device here"
    return None if on_gpu() else "mlx's default device is the CPU"


@functools.cache
def doubt(layout: Layout, dtype: mx.Dtype) -> str | None:
    """Why the kernel is not to be used with this layout and type on this machine, or None: asked of it once."""
    if dtype not in DTYPES:
        return f"the Metal kernel has no {dtype}"
    generator = np.random.default_rng(layout.head_dim)
    table = PositionTable(_some_tables(layout, generator))
    for batch, shared, tokens in ((1, True, 1), (2, False, 9), (3, True, 37)):
        positions = generator.integers(0, 3 * TABLE_STEP, (1 if shared else batch, tokens))
        positions[:, -5:] = [TABLE_STEP - 1, TABLE_STEP, 2 * TABLE_STEP - 1, 0, 3 * TABLE_STEP - 1][-tokens:]
        positions = generator.permuted(positions, axis=1)
        q, k = (
            _some_heads(generator, batch, heads, tokens, layout, dtype) for heads in (layout.q_heads, layout.k_heads)
        )
        try:
            found = rotate(q, k, positions, layout, table)
            mx.eval(found)
        except Exception as error:  # a kernel that does not build raises what it likes
            return f"the Metal kernel failed: {' '.join(str(error).split())}"
        cos, sin = (mx.expand_dims(part, 1) for part in table(mx.array(positions)))
        for name, x, turned in zip("qk", (q, k), found, strict=True):
            if (reason := _differs(x, turned, plain(x, cos, sin, layout))) is not None:
                return f"the Metal kernel differs from the plain path in {name} ({batch} x {tokens} tokens) {reason}"
    return None


def plain(x: mx.array, cos: mx.array, sin: mx.array, layout: Layout) -> mx.array:
    """What the kernel is to compute, by definition."""
    first, last = layout.first, layout.first + layout.width
    return mx.concatenate([x[..., :first], turn(x[..., first:last], cos, sin, layout.pairing), x[..., last:]], axis=-1)


def _differs(x: mx.array, found: mx.array, expected: mx.array) -> str | None:
    """By how much, where it is more than float32's roundings of angle and products and one of the type."""
    error = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32))
    largest = mx.max(mx.abs(x.astype(mx.float32)))
    bound = 2.0**-20 * largest + mx.finfo(x.dtype).eps * mx.abs(expected.astype(mx.float32))
    return None if bool(mx.all(error <= bound)) else f"by up to {float(mx.max(error)):.2g}"


def _some_tables(layout: Layout, generator: np.random.Generator) -> dict[str, Any]:
    """Unit vectors at random, which no formula makes: a row read in place of another is seen."""
    rows_of = {"_hi": 3, "_lo": TABLE_STEP} if layout.two_level else {"": 3 * TABLE_STEP}
    tables: dict[str, Any] = {}
    for level, count in rows_of.items():
        angles = generator.uniform(0, 2 * np.pi, (count, layout.width // 2))
        tables |= {f"cos{level}": np.cos(angles).astype(np.float32), f"sin{level}": np.sin(angles).astype(np.float32)}
    return tables


def _some_heads(
    generator: np.random.Generator, batch: int, heads: int, tokens: int, layout: Layout, dtype: mx.Dtype
) -> mx.array:
    """Heads (batch, heads, tokens, head_dim) as a view of (batch, tokens, heads, head_dim), as in the block."""
    flat = generator.standard_normal((batch, tokens, heads, layout.head_dim)).astype(np.float32)
    return mx.array(flat).astype(dtype).transpose(0, 2, 1, 3)


@functools.cache
def _kernel(two_level: bool) -> Any:
    angle, tables = (
        (_TWO_LEVELS, ["cos_hi", "sin_hi", "cos_lo", "sin_lo"]) if two_level else (_FULL, ["cosines", "sines"])
    )
    return mx.fast.metal_kernel(
        name="portpe_rotary_" + ("two_levels" if two_level else "full"),
        input_names=["q", "k", "positions", *tables],
        output_names=["q_out", "k_out"],
        source=_BODY.replace("@ANGLE@", angle.strip("\n")),
        ensure_row_contiguous=False,
    )


def rotate(
    q: mx.array, k: mx.array, positions: Positions, layout: Layout, table: PositionTable
) -> tuple[mx.array, mx.array]:
    """Turned q (B, heads, S, head_dim) and k (B, kv_heads, S, head_dim), in their own type, with a gradient."""
    places = mx.contiguous(rows(positions).astype(mx.int32))

    def forward(q: mx.array, k: mx.array) -> tuple[mx.array, mx.array]:
        return _launch(q, k, places, layout, table)

    rotation: Any = mx.custom_function(forward)

    def backward(_: Any, cotangents: tuple[mx.array, mx.array], __: Any) -> tuple[mx.array, mx.array]:
        """The rotation back, in plain operations."""
        cos, sin = (mx.expand_dims(part, 1) for part in table(places))
        q_back, k_back = (plain(part, cos, -sin, layout) for part in cotangents)
        return q_back, k_back

    rotation.vjp(backward)
    turned: tuple[mx.array, mx.array] = rotation(q, k)
    return turned


def _launch(
    q: mx.array, k: mx.array, places: mx.array, layout: Layout, table: PositionTable
) -> tuple[mx.array, mx.array]:
    batch, _, tokens, head_dim = q.shape
    groups = -(-(layout.q_heads + layout.k_heads) // HEADS)
    columns = head_dim - layout.width // 2
    constants = {
        "T": q.dtype,
        "Q_HEADS": layout.q_heads,
        "K_HEADS": layout.k_heads,
        "HEAD_DIM": head_dim,
        "WIDTH": layout.width,
        "FIRST": layout.first,
        "HALF": layout.pairing == "half",
        "STEP": TABLE_STEP,
        "HEADS": HEADS,
        "GROUPS": groups,
    }
    q_turned, k_turned = _kernel(layout.two_level)(
        inputs=[q, k, places, *table.arrays],
        template=list(constants.items()),
        grid=(columns, tokens, batch * groups),
        threadgroup=(min(columns, 32), min(tokens, 8), 1),
        output_shapes=[q.shape, k.shape],
        output_dtypes=[q.dtype, k.dtype],
    )
    return q_turned, k_turned
