"""A plain rotary attention block in PyTorch that writes its cache in place: what a careful user writes by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from portpe.interface import Array
from portpe.reference.arrays import to_torch
from portpe.spec import AttentionSpec
from portpe.tables import combine, end_of

TABLE = 65536  # rows of the full table, or fewer where the spec's own ends before


class StaticBlock(nn.Module):
    """Projections, rotation by rows of one full table, torch's scaled_dot_product_attention over the filled slots."""

    def __init__(
        self, spec: AttentionSpec, weights: Mapping[str, Array], tables: Mapping[str, Array], dtype: str
    ) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = getattr(torch, dtype)
        for name, array in weights.items():
            self.register_buffer(name.replace(".", "_"), to_torch(array).to(self.dtype))
        if spec.rotary is not None:
            rows = torch.arange(min(TABLE, end_of(spec, tables) or TABLE))
            for name, values in zip(("cos", "sin"), combine(tables, rows.numpy()), strict=True):
                self.register_buffer(name, to_torch(values).to(self.dtype))

    def new_cache(self, capacity: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Buffers (1, kv_heads, capacity, head_dim) that begin with the past."""
        made = []
        for past in (key, value):
            buffer = past.new_zeros(past.shape[0], past.shape[1], capacity, past.shape[3])
            buffer[:, :, : past.shape[2]] = past
            made.append(buffer)
        return made[0], made[1]

    def forward(self, x: Tensor, position_ids: Tensor, cache: tuple[Tensor, Tensor], past: int) -> Tensor:
        """The output (1, S, hidden); ``cache`` gets the new keys and values at slot ``past``."""
        spec, rows = self.spec, x.shape[1]
        q, k, v = (self._heads(x, name, n) for name, n in (("q", spec.num_heads), *_kv(spec)))
        if spec.rotary is not None:
            cos, sin = (F.embedding(position_ids, self.get_buffer(name))[:, None] for name in ("cos", "sin"))
            q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        for buffer, new in zip(cache, (k, v), strict=True):
            buffer[:, :, past : past + rows] = new
        keys, values = (buffer[:, :, : past + rows] for buffer in cache)
        context = F.scaled_dot_product_attention(
            q, keys, values, is_causal=rows > 1, scale=spec.scale, enable_gqa=spec.num_kv_heads != spec.num_heads
        )
        return self._linear(context.transpose(1, 2).flatten(2), "o")

    def _heads(self, x: Tensor, name: str, count: int) -> Tensor:
        rows = self._linear(x, name)
        return rows.reshape(*rows.shape[:2], count, -1).transpose(1, 2)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias: Any = getattr(self, f"{name}_proj_bias", None)
        return F.linear(x, self.get_buffer(f"{name}_proj_weight"), bias)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotary = self.spec.rotary
        assert rotary is not None
        turned, rest = x[..., : rotary.width], x[..., rotary.width :]
        if rotary.pairing == "half":
            a, b = turned.chunk(2, dim=-1)
            out = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
        else:
            a, b = turned.reshape(*turned.shape[:-1], -1, 2).unbind(-1)
            out = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        return out if rest.shape[-1] == 0 else torch.cat((out, rest), dim=-1)


def _kv(spec: AttentionSpec) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)
