"""Layer: runtimes (MLX). mlx-lm's caches, known by what they offer: where each key that they return once stood.

A cache needs ``offset`` (an int, or (B,) by row) and ``update_and_fetch(keys, values)``. Masks and biases need to
know which token every returned key belongs to; a cache that reorders or drops keys is read accordingly, or refused.
mlx-lm itself is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import mlx.core as mx
import numpy as np

from portpe.errors import SpecError
from portpe.runtimes.mlx.positions import Places, Positions, Run
from portpe.spec import AttentionSpec


class Fetched(NamedTuple):
    """Keys and values (B, kv_heads, T, D) of a call, the slot of every key (T,) and of every query (S,); of these keys
    also what encodings cache besides, (B, numbers of a token, T) by name.
    """

    keys: mx.array
    values: mx.array
    key_slots: Places
    query_slots: Run
    states: Mapping[str, mx.array] = MappingProxyType({})


class PastCache:
    """Past keys and values handed over as arrays, with the protocol of mlx-lm's caches; and ``states``, what a spec's
    ``cached_states`` keep besides, (B, numbers of a token, past) in float32, which no cache of mlx-lm has a place for.
    """

    def __init__(self, keys: mx.array, values: mx.array, states: Mapping[str, mx.array] | None = None) -> None:
        self.keys, self.values, self.states = keys, values, dict(states or {})

    @classmethod
    def empty(cls, spec: AttentionSpec, batch: int = 1, dtype: mx.Dtype = mx.float32) -> Self:
        """One for a layer of this spec, before its first token."""
        key, value = (
            mx.zeros((batch, spec.num_kv_heads, 0, width), dtype) for width in (spec.head_dim, spec.v_head_dim)
        )
        return cls(key, value, {name: mx.zeros((batch, rows, 0)) for name, rows in spec.cached_states.items()})

    @property
    def offset(self) -> int:
        return int(self.keys.shape[2])

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append along the slots and return everything."""
        self.keys = mx.concatenate([self.keys, keys], axis=2)
        self.values = mx.concatenate([self.values, values], axis=2)
        return self.keys, self.values

    def update_states(self, states: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Append what new tokens have, (B, numbers of a token, S) by name, and return everything."""
        for name, new in states.items():
            self.states[name] = mx.concatenate([self.states[name], new], axis=2)
        return self.states


def check(cache: Any, spec: AttentionSpec) -> None:
    """Refuse, by name, a cache that this layer cannot be right with; the cache is not touched. Raises SpecError."""
    if cache is None:
        return
    name = type(cache).__name__
    if not spec.causal:
        raise SpecError(f"cache must be None where causal is false, got {name}")
    if not (hasattr(cache, "offset") and hasattr(cache, "update_and_fetch")):
        raise SpecError(f"cache must keep keys and values (offset, update_and_fetch), got {name}")
    if spec.cached_states and not hasattr(cache, "update_states"):
        names = ", ".join(spec.cached_states)
        raise SpecError(
            f"cache must keep {names} besides keys and values (update_states), got {name}; use PastCache.empty(spec)"
        )
    if isinstance(cache, PastCache):
        _check_states(cache, spec)
    if hasattr(cache, "max_size") and hasattr(cache, "left_padding"):
        raise SpecError(f"cache {name} reorders slots by row; use BatchKVCache, or RotatingKVCache row by row")
    if hasattr(cache, "max_size") and not (hasattr(cache, "_idx") and hasattr(cache, "keep")):
        raise SpecError(f"cache {name} rotates its slots and does not say how; use KVCache")
    if not isinstance(cache.offset, mx.array):
        _check_complete(cache, spec, int(cache.offset))


def _check_states(cache: PastCache, spec: AttentionSpec) -> None:
    """What encodings have cached must be of as many tokens as there are keys. Raises SpecError."""
    for name, rows in spec.cached_states.items():
        shape = (cache.keys.shape[0], rows, cache.keys.shape[2])
        found = None if name not in cache.states else tuple(cache.states[name].shape)
        if found != shape:
            raise SpecError(f"past_states.{name} must have shape {shape}, got {found or 'none'}")


def _check_complete(cache: Any, spec: AttentionSpec, first: int) -> None:
    """Every key that the next token, number ``first``, may see must still be there, and be the token's own."""
    if hasattr(cache, "max_size") and first <= cache.max_size and cache._idx != first:
        raise SpecError(
            f"cache {type(cache).__name__} was rewound to token {first} after its ring had passed over it; start it "
            "anew (a cold prefill), or use KVCache"
        )
    start, end = 0, getattr(cache, "start_position", 0)  # tokens start..end-1 are gone
    if hasattr(cache, "max_size"):  # the first ``keep`` tokens stay, and the last max_size - 1 - keep
        start, end = cache.keep, first - (cache.max_size - 1 - cache.keep)
    missing = max(start, 0 if spec.window is None else first - spec.window + 1)
    if missing < end:
        reach = "attention without a window" if spec.window is None else f"a window of {spec.window}"
        raise SpecError(
            f"cache {type(cache).__name__} has dropped token {missing}, which {reach} still needs at"
            f" token {first}; use KVCache or a larger one"
        )


def held(cache: Any) -> int | None:
    """How many slots are filled before a call, pads included; None where the cache does not say."""
    if cache is None:
        return 0
    if not isinstance(cache.offset, mx.array):
        return int(cache.offset)
    if not hasattr(cache, "left_padding"):
        return None
    return int(mx.max(cache.offset + cache.left_padding))


def next_positions(cache: Any, length: int) -> Positions:
    """The positions of the next ``length`` tokens: a run, or (B, length) by row; negative within left padding."""
    offset = 0 if cache is None else cache.offset
    if not isinstance(offset, mx.array):
        return Run(int(offset), length)
    return np.asarray(offset).astype(np.int64).reshape(-1, 1) + np.arange(length)


def extend(
    cache: Any, keys: mx.array, values: mx.array, states: Mapping[str, mx.array] = MappingProxyType({})
) -> Fetched:
    """Put a call's keys and values (B, kv_heads, S, D) and its ``states`` into the cache and fetch all of them.

    Raises SpecError.
    """
    length = keys.shape[2]
    if cache is None:
        return Fetched(keys, values, Run(0, length), Run(0, length), states)
    first = None if isinstance(cache.offset, mx.array) else int(cache.offset)
    states = cache.update_states(states) if states else states
    keys, values = (_dense(part, cache) for part in cache.update_and_fetch(keys, values))
    total = keys.shape[2]
    if first is None:  # rows differ in their offsets, but all stand in the same slots
        return Fetched(keys, values, Run(0, total), Run(total - length, length), states)
    slots = _slots(cache, first + length, length, total)
    return Fetched(keys, values, slots, Run(first, length), states)


def check_order(cache: Any, got: Fetched) -> None:
    """Refuse keys out of the order in which they came, for a bias that sums along it. Raises SpecError."""
    if not isinstance(got.key_slots, Run):
        raise SpecError(f"cache {type(cache).__name__} reorders keys, and a bias sums along their order; use KVCache")


def within(got: Fetched, window: int) -> Fetched:
    """Without the keys that lie before every query's window: what is not read need not be hidden."""
    needed = window - 1 + got.query_slots.length
    if not isinstance(got.key_slots, Run) or got.key_slots.length <= needed:
        return got
    states = {name: state[..., -needed:] for name, state in got.states.items()}
    keys, values = got.keys[..., -needed:, :], got.values[..., -needed:, :]
    return Fetched(keys, values, got.key_slots.last(needed), got.query_slots, states)


def _dense(part: Any, cache: Any) -> mx.array:
    """A quantised cache returns (packed, scales, biases): the numbers that they stand for."""
    if isinstance(part, mx.array):
        return part
    packed, scales, biases = part
    return mx.dequantize(packed, scales, biases, group_size=cache.group_size, bits=cache.bits)


def _slots(cache: Any, end: int, length: int, total: int) -> Places:
    """Which token each returned key belongs to, after an update to ``end`` tokens."""
    if hasattr(cache, "start_position"):  # keys before it were dropped at the front
        return Run(int(cache.start_position), total)
    if total == end:
        return Run(0, total)
    if not hasattr(cache, "max_size"):
        raise SpecError(
            f"cache {type(cache).__name__} returned {total} keys of {end} and does not say which; use KVCache"
        )
    keep = int(cache.keep)
    recent = np.arange(end - (total - keep), end)
    if length == 1:  # a ring from ``keep`` on, the newest key just before _idx
        recent = np.roll(recent, int(cache._idx) - total)
    return np.concatenate([np.arange(keep), recent])
