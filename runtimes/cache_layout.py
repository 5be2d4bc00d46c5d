"""Layer: runtimes. How a graph takes its cache: one that grows, or a buffer of fixed size that is written in place.

It is read from the graph itself: a past and a present of one size by name are a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from portpe.interface import Array
from portpe.spec import AttentionSpec

SPARE = 3  # slots of a buffer behind the last key, where a call is run on arrays
LENGTHS = ("write_indices", "nonpad_kv_seqlen")  # inputs (batch,) of graphs that are told where the new keys go


@dataclass(frozen=True)
class CacheLayout:
    """The names of past and present, keys before values, and the shape of each but for batch and length.

    ``buffered``: both have T_max slots, and a call writes its keys behind the ones there. ``lengths``: the graph is
    told where, by ``write_indices`` and ``nonpad_kv_seqlen``; else it follows from the attention mask's size.
    """

    past: tuple[str, str]
    present: tuple[str, str]
    heads: int
    widths: tuple[int, int]
    buffered: bool
    lengths: bool

    @classmethod
    def of(cls, spec: AttentionSpec, layer: int, shapes: Mapping[str, Sequence[int | str | None]]) -> CacheLayout:
        """The layout of a graph whose inputs and outputs have these ``shapes``, by name; unnamed sizes are None."""
        past = (f"past_key_values.{layer}.key", f"past_key_values.{layer}.value")
        present = (f"present.{layer}.key", f"present.{layer}.value")
        sizes = [shapes[name][2] if len(shapes.get(name, ())) == 4 else None for name in (past[0], present[0])]
        buffered = sizes[0] is not None and sizes[0] == sizes[1]
        widths = (spec.head_dim, spec.v_head_dim)
        return cls(past, present, spec.num_kv_heads, widths, buffered, LENGTHS[0] in shapes)

    def buffer_shapes(self, batch: int, capacity: int) -> tuple[tuple[int, int, int, int], ...]:
        """Of the keys' and the values' buffer."""
        key, value = self.widths
        return (batch, self.heads, capacity, key), (batch, self.heads, capacity, value)

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
            room = np.zeros((*cached.shape[:2], sequence + spare, cached.shape[3]), cached.dtype)
            buffers[name] = np.concatenate([cached, room], axis=2)
        batch, _, past, _ = feeds[self.past[0]].shape
        return {**feeds, **buffers, **self.told(batch, past, sequence)}

    def cut(self, found: Mapping[str, Array], length: int) -> dict[str, Array]:
        """Outputs whose present has ``length`` slots, those that hold keys."""
        if not self.buffered:
            return {**found}
        return {name: array[:, :, :length] if name in self.present else array for name, array in found.items()}
