"""Layer: runtimes. A decode loop on ONNX Runtime: a block that keeps its keys and values from call to call.

It is the same for every graph form. Forms with a cache of fixed size write new keys in place, through IO binding;
the others hand each call's presents to the next as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe.errors import SpecError
from portpe.interface import DTYPES, Array, check_positions, position_shape
from portpe.positions import integer_positions
from portpe.runtimes.base import Configuration
from portpe.runtimes.graph_io import OUTPUT
from portpe.runtimes.ort_cache import BufferCache, Cache, GrowingCache
from portpe.runtimes.ort_values import from_ort, to_ort

if TYPE_CHECKING:
    from portpe.bundle import Bundle
    from portpe.runtimes.onnxruntime import OnnxRuntimeSession

PREFERRED = ("ort", "shared", "standard", "portable")  # by the time of a step behind a long past

Ids = NDArray[np.int64]


class BlockDecoder:
    """A block with its cache: ``prefill`` a prompt, then ``step``; ``rewind`` to go back.

    Rows of the batch share their length; shorter prompts are padded at the left and masked. The decoder remembers the
    mask and every row's position, so neither need be given again.

    Args:
        session: a loaded graph of a causal block.
        capacity: how many slots the cache has, prompt and pads included. A buffer of ``capacity * batch`` keys and
            values is allocated at once in forms ``shared`` and ``ort``; the others keep the limit, and no buffer.
        batch: rows of the batch.
        grow: double the capacity where it does not suffice, instead of refusing. The buffer is copied once each time.

    Raises:
        SpecError: a block without causality, which has no cache, or a size below 1.
    """

    def __init__(self, session: OnnxRuntimeSession, *, capacity: int, batch: int = 1, grow: bool = False) -> None:
        for name, size in (("capacity", capacity), ("batch", batch)):
            if size < 1:
                raise SpecError(f"{name} must be >= 1, got {size}")
        if not session.spec.causal:
            raise SpecError("causal must be true for a decoder, got false: there is no cache; use the session's run")
        self.session, self.spec, self.batch, self.grow = session, session.spec, batch, grow
        self._capacity = capacity
        self._graph = session.graph()
        self._inputs = {value.name for value in self._graph.get_inputs()}
        types = {value.name: value.type for value in self._graph.get_inputs()}
        self.dtype = _dtype(types["hidden_states"])
        self._cache: Cache = self._empty()
        self._mask: Ids = np.zeros((batch, 0), np.int64)
        self._positions: Ids = np.zeros(position_shape(self.spec, batch, 0), np.int64)

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        capacity: int,
        batch: int = 1,
        grow: bool = False,
        form: str | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        provider: str | None = None,
    ) -> BlockDecoder:
        """Load a bundle's graph, at full optimisation.

        Args:
            bundle: an exported layer.
            capacity: see the class, as ``batch`` and ``grow``.
            batch: rows of the batch.
            grow: whether to double the capacity where it does not suffice.
            form: a graph form of the bundle; None takes the first of ``PREFERRED`` that it has.
            dtype: a type of the bundle; None takes its first.
            quantization: ``int4`` or ``int8``, where the bundle has weights of that kind; None takes them whole.
            provider: an execution provider, in full or as ``cpu``.

        Raises:
            SpecError: what the bundle or this installation lacks, or the class refuses.
        """
        from portpe.runtimes.onnxruntime import RUNTIME

        form = form or next((name for name in PREFERRED if name in bundle.forms), bundle.forms[0])
        kind = dtype or bundle.dtypes[0]
        configuration = Configuration(form, f"{kind}_{quantization}" if quantization else kind, provider or "")
        return cls(RUNTIME.open(bundle, configuration), capacity=capacity, batch=batch, grow=grow)

    @property
    def length(self) -> int:
        """How many slots are filled, pads included."""
        return int(self._mask.shape[1])

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def attention_mask(self) -> Ids:
        """(batch, length): 1 for a key, 0 for a pad."""
        return self._mask.copy()

    @property
    def position_ids(self) -> Ids:
        """(batch, length), or (axes, batch, length): the position of every slot."""
        return self._positions.copy()

    @property
    def past_key_values(self) -> tuple[Array, Array]:
        """Copies of the keys and values, (batch, kv_heads, length, head_dim | v_head_dim)."""
        key, value, *_ = self._cache.arrays(self.length)
        return key, value

    @property
    def past_states(self) -> dict[str, Array]:
        """Copies of the spec's ``cached_states``, (batch, numbers of a token, length) in float32, by name."""
        return dict(zip(self.spec.cached_states, self._cache.arrays(self.length)[2:], strict=True))

    def prefill(
        self, hidden_states: Array, attention_mask: ArrayLike | None = None, position_ids: ArrayLike | None = None
    ) -> Array:
        """Start a text anew: forget everything, then ``step`` over the prompt."""
        call = self._check(hidden_states, attention_mask, position_ids, past=0)
        self.reset()
        return self._run(hidden_states, *call)

    def step(
        self, hidden_states: Array, attention_mask: ArrayLike | None = None, position_ids: ArrayLike | None = None
    ) -> Array:
        """Run the block on the next rows, behind those in the cache, and keep their keys and values.

        Args:
            hidden_states: (batch, rows, width) in the graph's type; any number of rows from 1 on.
            attention_mask: (batch, length + rows), 1 = keep, 0 = pad, of the cache and the new rows; it replaces what
                was remembered. None keeps that, and masks no new row.
            position_ids: (batch, rows), or (axes, batch, rows) where a position has several coordinates; None counts
                each row's kept slots, as transformers does, alike on every axis, and pads get 0.

        Returns:
            attention_output, (batch, rows, hidden).

        Raises:
            SpecError: another shape or type, a position that no table serves, or a cache that is full. Nothing has
                changed then.
        """
        return self._run(hidden_states, *self._check(hidden_states, attention_mask, position_ids, past=self.length))

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` slots: the next step is what it would be there.

        What a mask given since then said of those slots stays.

        Raises:
            SpecError: a length below 0 or above what the cache holds.
        """
        if not 0 <= length <= self.length:
            raise SpecError(f"length must be from 0 to {self.length}, what the cache holds, got {length}")
        if length == self.length:
            return
        self._cache.rewind(length)
        self._mask, self._positions = self._mask[:, :length].copy(), self._positions[..., :length].copy()

    def reset(self) -> None:
        """Forget everything; a buffer stays allocated."""
        self.rewind(0)

    def _empty(self) -> Cache:
        layout = self.session.layout
        if layout.buffered:
            return BufferCache(layout, self.batch, self.dtype, self._capacity)
        return GrowingCache(layout, self.batch, self.dtype)

    def _check(
        self, hidden_states: Array, attention_mask: ArrayLike | None, position_ids: ArrayLike | None, *, past: int
    ) -> tuple[Ids, Ids]:
        """The mask of all slots and the positions of the new rows. Raises SpecError."""
        hidden_states = np.asarray(hidden_states)
        rows = hidden_states.shape[1] if hidden_states.ndim == 3 else 0
        if rows == 0 or hidden_states.shape != (self.batch, rows, self.spec.input_width):
            expected = f"({self.batch}, rows, {self.spec.input_width}) with rows >= 1"
            raise SpecError(f"hidden_states must have shape {expected}, got {hidden_states.shape}")
        if hidden_states.dtype != self.dtype:
            raise SpecError(f"hidden_states must be {self.dtype}, the graph's type, got {hidden_states.dtype}")
        if past + rows > self._capacity and not self.grow:
            raise SpecError(
                f"capacity must be >= {past + rows} for {past} cached and {rows} new rows, got {self._capacity}; open "
                "the decoder with a larger capacity or grow=True, or rewind it"
            )
        if attention_mask is None:
            mask = np.concatenate([self._mask[:, :past], np.ones((self.batch, rows), np.int64)], axis=1)
        else:
            mask = _mask(attention_mask, (self.batch, past + rows))
        if position_ids is None:
            counted = ((mask.cumsum(axis=1) - 1) * mask)[:, past:]
            positions = np.broadcast_to(counted, position_shape(self.spec, self.batch, rows))
        else:
            positions = _ids("position_ids", position_ids, position_shape(self.spec, self.batch, rows))
        check_positions(self.spec, positions, self.session.end)
        return mask, positions

    def _run(self, hidden_states: Array, mask: Ids, positions: Ids) -> Array:
        past, total = self.length, mask.shape[1]
        if total > self._capacity:
            self._grow(total)
        key_positions = np.concatenate([self._positions, positions], axis=-1)
        feeds = {
            "hidden_states": np.asarray(hidden_states),
            "position_ids": positions,
            "attention_mask": mask,
            "key_position_ids": key_positions,
            **self.session.layout.told(self.batch, past, total - past),
        }
        values = {name: to_ort(np.ascontiguousarray(feeds[name])) for name in self._inputs & feeds.keys()}
        binding = self._graph.io_binding()  # holds no reference to what is bound: ``values`` does
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(OUTPUT)
        self._cache.bind(binding)
        self._graph.run_with_iobinding(binding)
        output, *presents = binding.get_outputs()
        self._cache.keep(presents)
        self._mask, self._positions = mask, key_positions
        return from_ort(output)

    def _grow(self, total: int) -> None:
        while self._capacity < total:
            self._capacity *= 2
        self._cache.reserve(self._capacity, self.length)


def _dtype(tensor_type: str) -> np.dtype[Any]:
    """Of ``tensor(float)``, as ONNX Runtime names it."""
    name = tensor_type.removeprefix("tensor(").removesuffix(")")
    return DTYPES["float32" if name == "float" else name]


def _ids(name: str, ids: ArrayLike, shape: tuple[int, ...]) -> Ids:
    array = np.asarray(ids)
    if array.shape != shape:
        raise SpecError(f"{name} must have shape {shape}, got {array.shape}")
    try:
        return integer_positions(array)
    except SpecError:
        raise SpecError(f"{name} must be integers, got {array.dtype}") from None


def _mask(mask: ArrayLike, shape: tuple[int, int]) -> Ids:
    array = np.asarray(mask)
    kept = _ids("attention_mask", array.astype(np.int64) if array.dtype == np.bool_ else array, shape)
    if ((kept != 0) & (kept != 1)).any():
        raise SpecError("attention_mask must hold 1 (keep) and 0 (pad) only, got other values")
    return kept
