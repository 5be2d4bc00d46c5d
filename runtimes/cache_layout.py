"""Layer: runtimes. How a graph takes its cache: one that grows, or a buffer of fixed size that is written in place.

It is read from the graph itself: a past and a present of one size by name are a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from portpe.interface import Array
from portpe.spec import AttentionSpec

SPARE = 3  # slots of a buffer behind the last key, where a call is run on arrays
LENGTHS = ("write_indices", "nonpad_kv_seqlen")  # inputs (batch,) of graphs that are told where the new keys go


@dataclass(frozen=True)
class CacheLayout:
    """The names of past and present, keys before values before other states, and the shape of each but for batch and
    length: ``states`` are the numbers of a token, in float32.

    ``buffered``: both have T_max slots, and a call writes its keys behind the ones there. ``lengths``: the graph is
    told where, by ``write_indices`` and ``nonpad_kv_seqlen``; else it follows from the attention mask's size.
    """

    past: tuple[str, ...]
    present: tuple[str, ...]
    heads: int
    widths: tuple[int, int]
    states: tuple[int, ...]
    buffered: bool
    lengths: bool

    @classmethod
    def of(cls, spec: AttentionSpec, layer: int, shapes: Mapping[str, Sequence[int | str | None]]) -> CacheLayout:
        """The layout of a graph whose inputs and outputs have these ``shapes``, by name; unnamed sizes are None."""
        parts = ("key", "value", *spec.cached_states)
        past, present = (tuple(f"{side}.{layer}.{part}" for part in parts) for side in ("past_key_values", "present"))
        sizes = [shapes[name][2] if len(shapes.get(name, ())) == 4 else None for name in (past[0], present[0])]
        buffered = sizes[0] is not None and sizes[0] == sizes[1]
        widths = (spec.head_dim, spec.v_head_dim)
        states = tuple(spec.cached_states.values())
        return cls(past, present, spec.num_kv_heads, widths, states, buffered, LENGTHS[0] in shapes)

    def zeros(self, batch: int, capacity: int, dtype: np.dtype[Any]) -> list[Array]:
        """Arrays of ``capacity`` slots, in the order of ``past``; keys and values in ``dtype``."""
        shapes = [(batch, self.heads, capacity, width) for width in self.widths]
        found: list[Array] = [np.zeros(shape, dtype) for shape in shapes]
        return [*found, *(np.zeros((batch, rows, capacity), np.float32) for rows in self.states)]

    def told(self, batch: int, past: int, sequence: int) -> dict[str, Array]:
        """The inputs that say where ``sequence`` new keys go behind ``past`` cached ones."""
        if not self.lengths:
            return {}
        return {LENGTHS[0]: np.full(batch, past, np.int64), LENGTHS[1]: np.full(batch, past + sequence, np.int64)}

    def as_buffers(self, feeds: Mapping[str, Array], sequence: int, spare: int) -> dict[str, Array]:
        """Feeds whose past is a buffer with room for this call's keys and ``spare`` slots more."""
        if not self.buffered:
            return {**feeds}
        buffers = {}
        for name in self.past:
            cached = feeds[name]
            room = np.zeros((*cached.shape[:2], sequence + spare, *cached.shape[3:]), cached.dtype)
            buffers[name] = np.concatenate([cached, room], axis=2)
        batch, _, past = feeds[self.past[0]].shape[:3]
        return {**feeds, **buffers, **self.told(batch, past, sequence)}

    def cut(self, found: Mapping[str, Array], length: int) -> dict[str, Array]:
        """Outputs whose present has ``length`` slots, those that hold keys."""
        if not self.buffered:
            return {**found}
        return {name: array[:, :, :length] if name in self.present else array for name, array in found.items()}
