"""Layer: runtimes (MLX). Which keys a query sees: by cache slot, bottom-right aligned, and by the caller's mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.runtimes.mlx.positions import Places, Positions, device, highest, lowest, rows
from portpe.spec import AttentionSpec

HIDDEN = float(np.finfo(np.float16).min)
"""An additive mask of at most this (float16's lowest number) hides a key, in every type: a sentinel made for one
type becomes -inf in another, and the same mask must mean the same in all of them."""


@dataclass(frozen=True)
class Mask:
    """``keep`` (bool) and ``added`` (float32), both broadcastable to (B, heads, S, T), or None.

    ``causal`` True with neither of them: mx.fast's own "causal", which is bottom-right aligned.
    ``may_hide_all``: a row may see no key at all; where slots alone hide, each query sees at least itself.
    """

    keep: mx.array | None = None
    added: mx.array | None = None
    causal: bool = False
    may_hide_all: bool = False

    def combined(self, bias: mx.array | None, dtype: mx.Dtype) -> mx.array | None:
        """Keep, addend and bias as the one mask that mx.fast takes: bool, or additive in ``dtype``.

        In 16-bit types each row is first shifted so that its largest visible entry is 0, which a softmax does not
        feel: the cast then spends its bits on differences, and a long distance cannot overflow to -inf.
        """
        parts = [part for part in (bias, self.added) if part is not None]
        if not parts:
            return self.keep
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        lowest = mx.finfo(dtype).min
        if self.keep is not None:
            total = mx.where(self.keep, total, -mx.inf)
        if dtype != mx.float32:
            top = mx.max(total, axis=-1, keepdims=True)
            total = total - mx.where(top == -mx.inf, 0.0, top)
        return mx.maximum(total, lowest).astype(dtype)


def compose(
    spec: AttentionSpec,
    mask: mx.array | str | None,
    query_slots: Places,
    key_slots: Places,
    *,
    left_padding: mx.array | None = None,
    as_array: bool = False,
    near: mx.array | None = None,
) -> Mask:
    """The caller's mask and the layer's own window as one.

    ``mask`` None hides nothing (in mlx-lm the model passes "causal", and None for a single token), "causal" hides
    later slots, a bool array keeps where it is True, a floating one is added. The layer's window applies in every
    case. Slots (S,) and (T,) count tokens in the order in which they came. ``left_padding`` (B,): slots before it
    are pads. ``near``: the keys that positions leave (chunks). ``as_array``: more than mx.fast's "causal" is to be
    done, so it must become an array.
    ``check`` has seen the mask.
    """
    causal = isinstance(mask, str)
    given = mask if isinstance(mask, mx.array) else None
    added = None
    keep = both(by_slot(spec, query_slots, key_slots, causal=causal), near)
    if left_padding is not None and given is None:
        keep = both(keep, device(key_slots)[None, None, None, :] >= left_padding.reshape(-1, 1, 1, 1))
    if given is not None and given.dtype == mx.bool_:
        keep = both(keep, given)
    elif given is not None:
        added = given.astype(mx.float32)
        keep = both(keep, added > HIDDEN)
    windowed = spec.window is not None and _reach(query_slots, key_slots) >= spec.window
    if causal and not as_array and left_padding is None and near is None and not windowed:
        # A ring out of order has one query, or a window that reaches in; one query has no later slot to hide.
        return Mask(causal=highest(key_slots) > lowest(query_slots))
    return Mask(keep, added, may_hide_all=given is not None or left_padding is not None)


def check(spec: AttentionSpec, mask: mx.array | str | None) -> None:
    """Refuse a mask of another kind; an integer one would be added, a 0 or 1 at a time. Raises SpecError."""
    if isinstance(mask, str) and mask != "causal":
        raise SpecError(f"mask must be None, 'causal' or an array, got {mask!r}")
    if isinstance(mask, str) and not spec.causal:
        raise SpecError("mask must be None or an array where causal is false, got 'causal'")
    if isinstance(mask, mx.array) and mask.dtype != mx.bool_ and not mx.issubdtype(mask.dtype, mx.floating):
        raise SpecError(f"mask must be bool (True = keep) or floating (added to the scores), got {mask.dtype}")
    if isinstance(mask, mx.array) and mask.dtype != mx.bool_ and spec.attention == "linear":
        raise SpecError(f"mask must be bool (True = keep) with linear attention, got {mask.dtype}")


def by_slot(spec: AttentionSpec, query_slots: Places, key_slots: Places, *, causal: bool) -> mx.array | None:
    """The keys that slots leave, bool (S, T), or None where they leave all: causal j <= i, window j > i - w,
    window_radius |i - j| <= r.
    """
    later = causal and highest(key_slots) > lowest(query_slots)
    windowed = spec.window is not None and _reach(query_slots, key_slots) >= spec.window
    if not later and not windowed and spec.window_radius is None:
        return None
    i, j = device(query_slots)[:, None], device(key_slots)[None, :]
    keep: mx.array | None = None
    if later:
        keep = both(keep, j <= i)
    if spec.window is not None and windowed:
        keep = both(keep, j > i - spec.window)
    if spec.window_radius is not None:
        keep = both(keep, mx.abs(i - j) <= spec.window_radius)
    return keep


def in_one_chunk(spec: AttentionSpec, queries: Positions, keys: Positions | None) -> mx.array | None:
    """The keys in each query's own chunk, bool (1 | B, 1, S, T), by positions (1 | B, S) and (1 | B, T); None: all."""
    if spec.chunk is None or keys is None:
        return None
    of_query, of_key = rows(queries) // spec.chunk, rows(keys) // spec.chunk
    return of_query[:, None, :, None] == of_key[:, None, None, :]


def _reach(query_slots: Places, key_slots: Places) -> int:
    """How many slots the last query looks back at most."""
    return highest(query_slots) - lowest(key_slots)


def both(a: mx.array | None, b: mx.array | None) -> mx.array | None:
    """The conjunction of two keeps, None for one that hides nothing."""
    if a is None or b is None:
        return a if b is None else b
    return mx.logical_and(a, b)


def kept_keys(mask: mx.array | str | None) -> NDArray[np.bool_] | None:
    """The keys (1 | B, T) that a caller's mask shows to any query, on the host; None where it hides none by itself."""
    if not isinstance(mask, mx.array):
        return None
    shown = mask if mask.dtype == mx.bool_ else mask.astype(mx.float32) > HIDDEN
    return np.asarray(mx.any(shown.reshape((1,) * (4 - shown.ndim) + shown.shape), axis=(1, 2)))


def from_attention_mask(spec: AttentionSpec, attention_mask: Any, length: int) -> mx.array | str | None:
    """Hugging Face's attention_mask (B, past + S), 1 = keep, as the ``mask`` argument of a call of ``length`` tokens.

    None or "causal" where nothing is padded, else bool (B, 1, S, T) with causality folded in.
    """
    kept = np.asarray(attention_mask) != 0
    if kept.all():
        return "causal" if spec.causal else None
    total = kept.shape[1]
    keep = kept[:, None, None, :]
    if spec.causal:
        keep = keep & (np.arange(total)[None, :] <= np.arange(total - length, total)[:, None])
    return mx.array(keep)
