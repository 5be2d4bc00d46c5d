"""Layer: runtimes (MLX). Where the tokens and the keys of one call stand: given, or as they follow from the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from portpe.errors import SpecError
from portpe.interface import who_needs_key_positions
from portpe.positions import sequence_lengths
from portpe.runtimes.mlx import caches, masks, positions
from portpe.runtimes.mlx.positions import Positions, Run, Slots
from portpe.spec import AttentionSpec


@dataclass(frozen=True)
class CallPositions:
    """Positions of one call.

    ``counted``: of its tokens as they follow from the cache, negative in left padding; ``looked_up``: as checked, pads
    0. ``key_ids``: (1 | B, past + S) of all keys, checked, where they are asked for and the caller knows them.
    """

    spec: AttentionSpec
    counted: Positions
    looked_up: Positions
    key_ids: Slots | None

    @classmethod
    def of(
        cls, spec: AttentionSpec, end: int | None, length: int, cache: Any, position_ids: Any, key_position_ids: Any
    ) -> CallPositions:
        """Those of a call of ``length`` tokens. ``end``: the first position that no table serves.

        Raises:
            SpecError: positions that are missing, of another count, or that no table row serves.
        """
        counted, looked_up = _tokens(spec, end, length, cache, position_ids)
        return cls(spec, counted, looked_up, _keys(spec, end, length, cache, position_ids, key_position_ids))

    def keys(self, got: caches.Fetched) -> Positions | None:
        """Positions (1 | B, T) of the keys that the cache returned, where they are asked for; negative in padding."""
        if not self.spec.needs_key_positions:
            return None
        slots, counted = got.key_slots, self.counted
        if self.key_ids is not None:
            return self.key_ids[..., positions.host(slots)]
        if isinstance(counted, Run) and isinstance(slots, Run):
            return Run(counted.first + slots.first - got.query_slots.first, slots.length)
        first = counted.first if isinstance(counted, Run) else counted[:, :1]
        return np.atleast_2d(first + (positions.host(slots) - got.query_slots.first))

    def lengths(self, got: caches.Fetched, mask: mx.array | str | None) -> Slots | None:
        """The current length of each row (1 | B,), where the rotation follows it."""
        if not self.spec.rotation_by_length:
            return None
        places = self.keys(got)
        assert places is not None
        keys = np.atleast_2d(positions.host(places))
        kept = masks.kept_keys(mask)
        return sequence_lengths(keys, np.ones_like(keys) if kept is None else kept)


def _tokens(
    spec: AttentionSpec, end: int | None, length: int, cache: Any, position_ids: Any
) -> tuple[Positions, Positions]:
    if position_ids is None and spec.rotary is not None and spec.rotary.needs_positions:
        raise SpecError("position_ids are required for a grid or for tokens that are not turned, got None")
    if position_ids is not None:
        ids = positions.given("position_ids", position_ids, spec.position_axes)
        if ids.shape[-1] != length:
            raise SpecError(f"position_ids must have {length} columns, one a token, got {ids.shape[-1]}")
        counted: Positions = ids
    else:
        counted = caches.next_positions(cache, length)
    looked_up = counted
    if position_ids is None and hasattr(cache, "left_padding"):
        looked_up = np.maximum(np.atleast_2d(positions.host(counted)), 0)
    positions.check(spec, looked_up, end)
    return counted, looked_up


def _keys(spec: AttentionSpec, end: int | None, length: int, cache: Any, position_ids: Any, given: Any) -> Slots | None:
    if not spec.needs_key_positions or (position_ids is None and given is None):
        return None
    past = caches.held(cache)
    if given is None:
        if past != 0:
            who = who_needs_key_positions(spec)
            raise SpecError(f"key_position_ids are required where position_ids and a cache meet {who}")
        return positions.given("position_ids", position_ids, spec.position_axes)
    ids = positions.given("key_position_ids", given, spec.position_axes)
    if past is not None and ids.shape[-1] != past + length:
        raise SpecError(f"key_position_ids must have {past + length} columns, one a key, got {ids.shape[-1]}")
    positions.check(spec, ids, end if spec.deferred_rotation else None)
    return ids
