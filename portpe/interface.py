"""What goes into a block and what comes out: names, shapes and types that every runtime shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.positions import sequence_lengths
from portpe.spec import AttentionSpec

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
DTYPE_ALIASES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

STAGES = (
    "embedded",  # (B, S, width)           hidden_states * embed_scale + the embedding encoding
    "normed",  # (B, S, hidden)            after the input norms and the embedding projection: what q_proj sees
    "q",  # (B, heads, S, head_dim)        projected, clipped, normed where the norm stands before the rotation
    "k",  # (B, kv_heads, S, head_dim)
    "v",  # (B, kv_heads, S, v_head_dim)     projected, clipped, times value_scale, normed
    "q_features",  # (B, heads, S, head_dim)     with linear attention: elu(q) + 1, float32 in every type
    "k_features",  # (B, kv_heads, T, head_dim)  of all T keys, cached ones too, likewise
    "q_rotated",  # as q; rotated, then normed where the norm stands after the rotation, then times query_scale
    "k_rotated",  # as k; rotated, then normed likewise. Where rotation is deferred: of all T keys, cached ones too
    # With linear attention both are of features, in float32.
    "scores",  # (B, heads, S, T)          q.k * scale + bias, softcap; masked places hold no meaning
    "normaliser",  # (B, heads, S, 1)      with linear attention: the sum of unrotated q.k over the keys that are seen
    "probs",  # (B, heads, S, T)           what values are weighed by: softmax over the keys that the mask leaves, sinks
    # in the denominator. With linear attention scores / normaliser there, of either sign.
    "context",  # (B, heads, S, v_head_dim)
    "gated",  # as context; times the output gate
    "output",  # (B, S, hidden)            "attention_output" in graphs
)
# (B, kv_heads, T, head_dim | v_head_dim), T = past + S. Keys are rotated; unrotated where rotation is deferred: then
# they are k's, and each call rotates all of them by key_position_ids, under regime per_sequence by the schedule of its
# own length. With linear attention they are k's whether there is a rotation or not.
CACHE = ("present_key", "present_value")


def cache_of(spec: AttentionSpec) -> tuple[str, ...]:
    """The names of everything that a block of this spec caches: ``CACHE``, then its ``cached_states``.

    Of those ``present_NAME`` is (B, numbers of a token, T), float32 whatever the block's type.
    """
    return (*CACHE, *(f"present_{name}" for name in spec.cached_states))


def stages_of(spec: AttentionSpec) -> tuple[str, ...]:
    """The stages that a block of this spec has, in order."""
    linear = spec.attention == "linear"
    absent = set() if linear else {"q_features", "k_features", "normaliser"}
    if spec.embedding is None and spec.embed_scale is None:
        absent.add("embedded")
    if not spec.input_norms and spec.embedding_projection is None:
        absent.add("normed")
    if spec.output_gate is None:
        absent.add("gated")
    turned = spec.rotary is not None or (spec.q_norm is not None and spec.q_norm.when == "after")
    if not turned:
        absent.add("k_rotated")
        if spec.query_scale is None:
            absent.add("q_rotated")
    return tuple(stage for stage in STAGES if stage not in absent)


def dtype_name(name: str) -> str:
    """The full name of a type, aliases (fp32, fp16, bf16) resolved. Raises SpecError."""
    full = DTYPE_ALIASES.get(name, name)
    if full not in DTYPES:
        raise SpecError(f"dtype must be one of {', '.join(DTYPES)} (or fp32, fp16, bf16), got {name!r}")
    return full


@dataclass(frozen=True)
class BlockInputs:
    """One call of a block. Arrays are in the block's type; ids and mask are int64.

    ``hidden_states`` (B, S, width), ``position_ids`` (B, S), ``attention_mask`` (B, past + S)
    with 1 = keep, ``key_position_ids`` (B, past + S), ``past_key`` and ``past_value``
    (B, kv_heads, past, D); past is 0 for a prefill, and without causality. Where positions have several axes,
    ``position_ids`` is (axes, B, S), and ``key_position_ids`` (axes, B, past + S). ``past_states`` has by name what
    a spec's ``cached_states`` keep besides, (B, numbers of a token, past) in float32.
    """

    hidden_states: Array
    position_ids: Array
    attention_mask: Array
    key_position_ids: Array
    past_key: Array
    past_value: Array
    past_states: Mapping[str, Array] = field(default_factory=dict)

    @property
    def past(self) -> int:
        return int(self.past_key.shape[2])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The current length of each batch row (see ``positions.sequence_lengths``), (B,)."""
        return sequence_lengths(self.key_position_ids, self.attention_mask)


@dataclass(frozen=True)
class BlockOutputs:
    """What a call gives: ``output`` (B, S, hidden), ``present_key``, ``present_value``, and ``stages``
    by name where they were asked for. Without causality the presents are this call's keys and values, or None.
    ``present_states``: what the spec's ``cached_states`` have become, (B, numbers of a token, past + S), by name.
    """

    output: Array
    present_key: Array | None
    present_value: Array | None
    stages: dict[str, Array] = field(default_factory=dict)
    present_states: dict[str, Array] = field(default_factory=dict)


def check_positions(spec: AttentionSpec, position_ids: Array, end: int | None) -> None:
    """Refuse positions that no table row serves, before anything is dispatched.

    ``end`` is the first position past the table (None: unbounded); a grid ends on each axis. Tokens that a rotation
    leaves as they are have position 0. Raises SpecError.
    """
    if position_ids.size == 0:
        return
    if spec.rotary is not None and spec.rotary.unturned_tokens:
        first, last, rows = spec.rotary.prefix_tokens, spec.rotary.suffix_tokens, position_ids.shape[-1]
        if position_ids[..., :first].any() or position_ids[..., max(rows - last, 0) :].any():
            raise SpecError(f"position_ids must be 0 for the first {first} and the last {last} tokens, got others")
    low, high = int(position_ids.min()), int(position_ids.max())
    if low < 0:
        raise SpecError(f"position_ids must be >= 0, got {low}")
    for axis, last in enumerate(spec.position_ends or ()):
        if (high := int(position_ids[axis].max())) >= last:
            raise SpecError(f"position_ids[{axis}] must be < {last}, the end of the grid, got {high}")
    if end is not None and high >= end:
        raise SpecError(f"position_ids must be < {end}, the end of the position table, got {high}")


def check_call(spec: AttentionSpec, inputs: BlockInputs, end: int | None) -> None:
    """``check_positions`` of everything that a call looks up: of keys too, where all of them are turned; and
    ``check_states``.

    Raises SpecError.
    """
    check_states(spec, inputs)
    check_positions(spec, inputs.position_ids, end)
    if spec.deferred_rotation:
        check_positions(spec, inputs.key_position_ids, end)


def check_states(spec: AttentionSpec, inputs: BlockInputs) -> None:
    """Refuse a call whose cache lacks what the spec's ``cached_states`` keep, or has it for other tokens.

    Raises SpecError.
    """
    for name, rows in spec.cached_states.items():
        shape = (len(inputs.past_key), rows, inputs.past)
        if name not in inputs.past_states:
            raise SpecError(f"past_states must hold {name} {shape}, which an earlier call gave, got none")
        found = inputs.past_states[name]
        if found.shape != shape:
            raise SpecError(f"past_states.{name} must have shape {shape}, got {found.shape}")
        if found.dtype != np.float32:
            raise SpecError(f"past_states.{name} must be float32, got {found.dtype}")


def who_needs_key_positions(spec: AttentionSpec) -> str:
    """What of a spec that ``needs_key_positions`` asks for them, in words."""
    if spec.bias:
        return "a bias encoding"
    if spec.rotation_by_length:
        return "regime per_sequence"
    return "rotation with linear attention" if spec.deferred_rotation else "attention in chunks"


def position_shape(spec: AttentionSpec, batch: int, count: int) -> tuple[int, ...]:
    """The shape of the positions of ``count`` rows or keys: (batch, count), axes before it where there are several."""
    return (batch, count) if spec.position_axes == 1 else (spec.position_axes, batch, count)


def learned_end(spec: AttentionSpec) -> int | None:
    """The first position past an embedding table that the spec itself bounds, or None."""
    return None if spec.embedding is None else spec.embedding.position_end
