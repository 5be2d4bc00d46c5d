"""Layer: runtimes. Where a decode loop of ONNX Runtime keeps its keys and values between two calls.

``GrowingCache`` takes a graph's presents as the next call's pasts. ``BufferCache`` binds past and present to one
memory, and the operators then write only the new keys there.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from portpe.interface import Array
from portpe.runtimes.cache_layout import CacheLayout
from portpe.runtimes.ort_values import from_ort, to_ort


class Cache(Protocol):
    """Keys and values of one block."""

    def bind(self, binding: Any) -> None:
        """Bind past and present for the next call."""
        ...

    def keep(self, presents: list[Any]) -> None:
        """Take what the call gave."""
        ...

    def rewind(self, length: int) -> None:
        """Forget the slots from ``length`` on."""
        ...

    def reserve(self, capacity: int, length: int) -> None:
        """Make room for ``capacity`` slots, of which ``length`` are filled."""
        ...

    def arrays(self, length: int) -> list[Array]:
        """Copies of the first ``length`` keys, values and other states, in the order of the layout."""
        ...


class GrowingCache:
    """The presents of the last call. They stay OrtValues: a call copies them once, inside the graph."""

    def __init__(self, layout: CacheLayout, batch: int, dtype: np.dtype[Any]) -> None:
        self._layout = layout
        self._values = [to_ort(array) for array in layout.zeros(batch, 0, dtype)]

    def bind(self, binding: Any) -> None:
        for name, present, value in zip(self._layout.past, self._layout.present, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_output(present)

    def keep(self, presents: list[Any]) -> None:
        self._values = presents

    def rewind(self, length: int) -> None:
        self._values = [to_ort(array) for array in self.arrays(length)]

    def reserve(self, capacity: int, length: int) -> None:
        """It grows by itself."""

    def arrays(self, length: int) -> list[Array]:
        return [from_ort(each)[:, :, :length].copy() for each in self._values]


class BufferCache:
    """Buffers of fixed size, in the host's memory; what stands behind the last key is never read as one."""

    def __init__(self, layout: CacheLayout, batch: int, dtype: np.dtype[Any], capacity: int) -> None:
        self._layout, self._batch, self._dtype = layout, batch, dtype
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        # Zeros: an operator may multiply with slots that it then masks, and NaN times 0 is NaN.
        self._arrays = self._layout.zeros(self._batch, capacity, self._dtype)
        self._values = [to_ort(array) for array in self._arrays]

    def bind(self, binding: Any) -> None:
        for name, present, value in zip(self._layout.past, self._layout.present, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(present, value)

    def keep(self, presents: list[Any]) -> None:
        """They are the buffers."""

    def rewind(self, length: int) -> None:
        """The length alone says what counts."""

    def reserve(self, capacity: int, length: int) -> None:
        old = self._arrays
        self._allocate(capacity)
        for new, filled in zip(self._arrays, old, strict=True):
            new[:, :, :length] = filled[:, :, :length]

    def arrays(self, length: int) -> list[Array]:
        return [array[:, :, :length].copy() for array in self._arrays]
