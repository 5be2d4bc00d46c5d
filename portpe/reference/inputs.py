"""Layer: reference. What one call is given, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from portpe.errors import SpecError
from portpe.interface import position_shape
from portpe.reference import positions
from portpe.reference.arrays import accumulation_dtype
from portpe.spec import AttentionSpec


class Inputs(NamedTuple):
    """One call, complete: positions filled in, the mask boolean, an absent past empty."""

    hidden_states: Tensor  # (B, S, width)
    query_positions: Tensor  # (B, S), or (axes, B, S)
    key_positions: Tensor  # (B, past + S), or (axes, B, past + S)
    attention_mask: Tensor | None  # (B, past + S), True = keep
    past_key: Tensor  # (B, kv_heads, past, head_dim)
    past_value: Tensor  # (B, kv_heads, past, v_head_dim)
    past_states: Mapping[str, Tensor] = MappingProxyType({})  # (B, numbers of a token, past), accumulation type

    @property
    def past(self) -> int:
        return self.past_key.shape[2]

    @property
    def lengths(self) -> Tensor:
        """The current length of each batch row, (B,)."""
        return positions.sequence_lengths(self.key_positions, self.attention_mask)


def prepare(
    spec: AttentionSpec,
    dtype: torch.dtype,
    end: int | None,
    *,
    hidden_states: Tensor,
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    key_position_ids: Tensor | None,
    past_states: Mapping[str, Tensor] | None = None,
) -> Inputs:
    """Fill in what may be left out, and refuse what breaks a rule. Raises SpecError.

    ``end`` is the first position that no table serves, or None.
    """
    if (past_key is None) != (past_value is None):
        raise SpecError("past_key and past_value must be given together or not at all, got one of them")
    if hidden_states.ndim != 3:
        raise SpecError(f"hidden_states must be (batch, seq, {spec.input_width}), got {tuple(hidden_states.shape)}")
    batch, seq, _ = hidden_states.shape
    if batch == 0 or seq == 0:
        raise SpecError(f"hidden_states must have at least one row, got shape {tuple(hidden_states.shape)}")
    if past_key is None or past_value is None:
        past_key = hidden_states.new_empty(batch, spec.num_kv_heads, 0, spec.head_dim)
        past_value = hidden_states.new_empty(batch, spec.num_kv_heads, 0, spec.v_head_dim)
    past = past_key.shape[2]
    states = _states(spec, accumulation_dtype(dtype), past_states or {}, hidden_states, past)
    if not torch.compiler.is_exporting():  # while tracing, a comparison of sizes would fix them
        ids = {
            "position_ids": (position_ids, position_shape(spec, batch, seq)),
            "attention_mask": (attention_mask, (batch, past + seq)),
            "key_position_ids": (key_position_ids, position_shape(spec, batch, past + seq)),
        }
        for name, (tensor, shape) in ids.items():
            _check_ids(name, tensor, shape)
        _check_states("hidden_states", hidden_states, (batch, seq, spec.input_width), dtype)
        _check_states("past_key", past_key, (batch, spec.num_kv_heads, past, spec.head_dim), dtype)
        _check_states("past_value", past_value, (batch, spec.num_kv_heads, past, spec.v_head_dim), dtype)
        _check_past(spec, past)
    if position_ids is None and spec.rotary is not None and spec.rotary.needs_positions:
        raise SpecError("position_ids are required for a grid or for tokens that are not turned, got None")
    mask = None if attention_mask is None else attention_mask.bool()
    position_ids, key_position_ids = (None if ids is None else ids.long() for ids in (position_ids, key_position_ids))
    slots = positions.slot_positions(mask, batch, past + seq, hidden_states.device)
    query, key = positions.resolve(
        spec, slots, past, position_ids=position_ids, key_position_ids=key_position_ids, attention_mask=mask
    )
    positions.check(spec, query, key, end)
    return Inputs(hidden_states, query, key, mask, past_key, past_value, states)


def _states(
    spec: AttentionSpec, dtype: torch.dtype, given: Mapping[str, Tensor], hidden_states: Tensor, past: int
) -> dict[str, Tensor]:
    """What encodings have cached, checked; empty before the first token. Raises SpecError."""
    found = {}
    for name, rows in spec.cached_states.items():
        shape = (hidden_states.shape[0], rows, past)
        if name not in given and past:
            raise SpecError(f"past_states must hold {name} {shape}, which an earlier call gave, got none")
        found[name] = given.get(name, hidden_states.new_empty((*shape[:2], 0), dtype=dtype))
        if not torch.compiler.is_exporting():
            _check_states(f"past_states.{name}", found[name], shape, dtype)
    return found


def _check_ids(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is None:
        return
    if tuple(tensor.shape) != shape:
        raise SpecError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    is_mask = name == "attention_mask"
    if tensor.is_floating_point() or tensor.is_complex() or (tensor.dtype == torch.bool and not is_mask):
        raise SpecError(f"{name} must be integers, got {tensor.dtype}")
    if is_mask and bool(((tensor != 0) & (tensor != 1)).any()):
        raise SpecError("attention_mask must hold 1 (keep) and 0 (pad) only, got other values")


def _check_states(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape:
        raise SpecError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    if tensor.dtype != dtype:
        raise SpecError(f"{name} must have the block's type {dtype}, got {tensor.dtype}")


def _check_past(spec: AttentionSpec, past: int) -> None:
    if past == 0:
        return
    if not spec.causal:
        raise SpecError(f"past_key must be empty without causality, got {past} cached keys")
    if spec.length_dependent:
        raise SpecError(
            f"past_key must be empty where the rotary frequencies follow the length, got {past} cached keys, which an "
            "earlier length rotated; give rotary.regime, fixed or per_sequence"
        )
