"""Positions stay whole numbers until an angle or a table row is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe.encodings import LARGEST_INT
from portpe.errors import SpecError


def integer_positions(positions: ArrayLike) -> NDArray[np.int64]:
    """``positions`` as int64, any shape.

    A float type is refused rather than rounded: float16 has no 2049, bfloat16 no 257.

    Raises:
        SpecError: the type is not an integer one, or a value exceeds int64.
    """
    array = np.asarray(positions)
    if array.dtype.kind not in "iu" and array.size:
        raise SpecError(f"positions must be integers, got {array.dtype}")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise SpecError(f"positions must be < 2 ** 63, got {array.max()}")
    return array.astype(np.int64)


def sequence_lengths(key_position_ids: NDArray[np.int64], attention_mask: NDArray[Any]) -> NDArray[np.int64]:
    """The current length of each batch row, (B,): 1 + its largest key position that the mask keeps; 1 without any.

    It goes by position, not by slot, so that neither pads nor evicted keys change it; on several axes the largest
    coordinate counts, as in transformers.

    Args:
        key_position_ids: of the cached keys and this call's, (B, T) or (axes, B, T).
        attention_mask: (B, T), 0 where a slot holds a pad.
    """
    kept = np.where(np.asarray(attention_mask) != 0, key_position_ids, 0)
    lengths: NDArray[np.int64] = kept.max(axis=-1) + 1
    return lengths if lengths.ndim == 1 else lengths.max(axis=0)


def check_range(positions: NDArray[np.int64], end: int | None = None) -> None:
    """Refuse positions below 0, past what float64 counts, and from ``end`` on where a table ends. Raises SpecError."""
    if positions.size == 0:
        return
    if positions.min() < 0:
        raise SpecError(f"positions must be >= 0, got {positions.min()}")
    if positions.max() > LARGEST_INT:
        raise SpecError(f"positions must be at most 2^53 = {LARGEST_INT}, got {positions.max()}")
    if end is not None and positions.max() >= end:
        raise SpecError(f"positions must be < {end}, the end of the position table, got {positions.max()}")
