"""Layer: reference. Which keys a query sees: by cache slot, aligned bottom-right."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from portpe.spec import AttentionSpec


def visible(
    spec: AttentionSpec,
    seq: int,
    past: int,
    attention_mask: Bool[Tensor, "batch total"] | None,
    device: torch.device,
    positions: tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch total"]] | None = None,
) -> Bool[Tensor, "#batch 1 seq total"]:
    """True where the query of row r, at slot past + r, sees the key of slot j.

    Causal: j <= past + r; window w: also j > past + r - w; window_radius r: |i - j| <= r; chunk c: both
    ``positions``, of queries and of keys, lie in one chunk; and the key is no pad.
    """
    query = torch.arange(past, past + seq, device=device)[:, None]
    key = torch.arange(past + seq, device=device)[None, :]
    seen = key <= query if spec.causal else torch.ones_like(key - query, dtype=torch.bool)
    if spec.window is not None:
        seen = seen & (key > query - spec.window)
    if spec.window_radius is not None:
        seen = seen & ((query - key).abs() <= spec.window_radius)
    seen = seen[None, None]
    if spec.chunk is not None:
        assert positions is not None, "chunks go by position"
        of_query, of_key = (torch.div(ids, spec.chunk, rounding_mode="floor") for ids in positions)
        seen = seen & (of_query[:, None, :, None] == of_key[:, None, None, :])
    return seen if attention_mask is None else seen & attention_mask[:, None, None, :]
