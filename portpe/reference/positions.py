"""Layer: reference. Which position each row and each key has, and the refusal of those that do not exist."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from portpe.errors import SpecError
from portpe.interface import check_positions, who_needs_key_positions
from portpe.spec import AttentionSpec


def slot_positions(
    attention_mask: Bool[Tensor, "batch total"] | None, batch: int, total: int, device: torch.device
) -> Int[Tensor, "batch total"]:
    """The position of every cache slot: how many kept slots stand before it; a pad gets 0."""
    if attention_mask is None:
        return torch.arange(total, device=device).expand(batch, total)
    kept = attention_mask.long()
    return (kept.cumsum(-1) - 1) * kept


def sequence_lengths(
    key_positions: Int[Tensor, "*axes batch total"], attention_mask: Bool[Tensor, "batch total"] | None
) -> Int[Tensor, " batch"]:
    """``portpe.positions.sequence_lengths``: 1 + the largest key position that the mask keeps, of each batch row."""
    kept = key_positions if attention_mask is None else key_positions.masked_fill(~attention_mask, 0)
    lengths = kept.amax(dim=-1) + 1
    return lengths if lengths.ndim == 1 else lengths.amax(dim=0)


def resolve(
    spec: AttentionSpec,
    slots: Int[Tensor, "batch total"],
    past: int,
    *,
    position_ids: Int[Tensor, "*axes batch seq"] | None,
    key_position_ids: Int[Tensor, "*axes batch total"] | None,
    attention_mask: Bool[Tensor, "batch total"] | None,
) -> tuple[Int[Tensor, "*axes batch seq"], Int[Tensor, "*axes batch total"]]:
    """Positions of the queries and of the keys; what was not given follows from the slots, alike on every axis.

    Where queries have positions of their own and keys are cached, the keys' positions are asked for: the cache does
    not hold them, and a guess would be silent. Raises SpecError.
    """
    own = position_ids is not None
    if spec.position_axes > 1:
        slots = slots.expand(spec.position_axes, *slots.shape)
    query = slots[..., past:] if position_ids is None else position_ids
    if key_position_ids is not None:
        return query, key_position_ids
    if past == 0:
        return query, query
    if own and spec.needs_key_positions:
        kept = (
            torch.ones_like(slots[..., past:], dtype=torch.bool) if attention_mask is None else attention_mask[:, past:]
        )
        if torch.compiler.is_exporting() or not bool(((query == slots[..., past:]) | ~kept).all()):
            raise SpecError(
                f"key_position_ids are required with {who_needs_key_positions(spec)}, a past and position_ids of one's "
                "own, got None"
            )
    return query, slots


def check(spec: AttentionSpec, query: Tensor, key: Tensor, end: int | None) -> None:
    """Refuse positions below 0, and query positions at or past ``end``. Raises SpecError.

    The largest position counts, not the number of rows: a short chunk late in a long text is as far out.
    """
    if torch.compiler.is_exporting():
        return  # values are unknown while tracing; the look-up itself refuses them in the program
    check_positions(spec, query.cpu().numpy(), end)
    if spec.needs_key_positions and key.numel() and int(key.min()) < 0:
        raise SpecError(f"key_position_ids must be >= 0, got {int(key.min())}")
    if spec.deferred_rotation:
        check_positions(spec, key.cpu().numpy(), end)
