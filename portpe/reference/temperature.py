"""Layer: reference. Query temperature: what multiplies a query by its own position."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from portpe import temperatures
from portpe.encodings.temperature import Temperature
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.lookup import Tables, on_host, table


class QueryScale(nn.Module):
    """Multiplies queries (B, heads, S, head_dim) by the multiplier of their positions (B, S), rounded once.

    Without tables multipliers are computed, in float64; with tables they are looked up, which keeps the call in torch.
    """

    def __init__(self, temperature: Temperature, tables: Tables | None) -> None:
        super().__init__()
        self.temperature = temperature
        if tables is not None:
            self.register_buffer("rows", to_torch(table(tables, "query_scale")), persistent=False)
        self.tabulated = tables is not None

    def forward(
        self, q: Float[Tensor, "batch heads seq head_dim"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch heads seq head_dim"]:
        factor = self._looked_up(position_ids) if self.tabulated else self._computed(position_ids)
        accumulate = accumulation_dtype(q.dtype)
        return (q.to(accumulate) * factor.to(accumulate)[:, None, :, None]).to(q.dtype)

    def _looked_up(self, position_ids: Tensor) -> Tensor:
        # F.embedding refuses an index outside the table, negative ones too
        index = torch.div(position_ids + self.temperature.offset, self.temperature.step, rounding_mode="floor")
        index = torch.where(position_ids < 0, -1, index)
        return F.embedding(index, self.get_buffer("rows")[:, None]).squeeze(-1)

    def _computed(self, position_ids: Tensor) -> Tensor:
        return torch.from_numpy(temperatures.multipliers(self.temperature, on_host(position_ids))).to(
            position_ids.device
        )
