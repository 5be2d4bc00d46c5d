"""Layer: reference. Positional tables as buffers: a full table, or two levels combined by angle addition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from portpe.errors import SpecError
from portpe.reference.arrays import to_torch
from portpe.tables import TABLE_STEP

Tables = Mapping[str, NDArray[Any]]


def table(tables: Tables, name: str) -> NDArray[Any]:
    """One table of the set. Raises SpecError."""
    if name not in tables:
        raise SpecError(f"tables.{name} is required and missing; portpe.tables.table_set makes the tables of a spec")
    return tables[name]


def on_host(position_ids: Int[Tensor, "batch seq"]) -> NDArray[Any]:
    """Positions for a computation outside torch, which a trace would keep as a constant. Raises SpecError there."""
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        raise SpecError("tables are required to export a block; give Attention those of portpe.tables.table_set")
    positions: NDArray[Any] = position_ids.cpu().numpy()
    return positions


class Lookup(nn.Module):
    """Rows of the float32 tables that ``portpe.tables.table_set`` makes, looked up in torch.

    Nothing leaves torch, so a block that holds its tables can be traced. ``dtype`` is that of the
    combination and of the result. F.embedding refuses an index outside the table, negative ones too.
    """

    def __init__(self, tables: Tables, *, prefix: str = "", dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        stem = f"{prefix}_" if prefix else ""
        self.whole = f"{stem}cos_hi" not in tables
        two_levels = [f"{stem}{name}_{level}" for name in ("cos", "sin") for level in ("hi", "lo")]
        pair = [f"{stem}cos", f"{stem}sin"]
        full = pair if not prefix or pair[0] in tables else [prefix]
        self.names = full if self.whole else two_levels
        for name in self.names:
            self.register_buffer(f"table_{name}", to_torch(table(tables, name)), persistent=False)

    def _take(self, name: str, index: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        return F.embedding(index, self.get_buffer(f"table_{name}")).to(self.dtype)

    def rows(self, position_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        """The rows of a full table that has one array."""
        return self._take(self.names[0], position_ids)

    def cos_sin(self, position_ids: Int[Tensor, "batch seq"]) -> tuple[Tensor, Tensor]:
        """Cos and sin (B, S, pairs) of the positions."""
        if self.whole:
            return self._take(self.names[0], position_ids), self._take(self.names[1], position_ids)
        high = torch.div(position_ids, TABLE_STEP, rounding_mode="floor")
        low = position_ids - high * TABLE_STEP
        cos_hi, cos_lo, sin_hi, sin_lo = (
            self._take(name, high if name.endswith("_hi") else low) for name in self.names
        )
        return cos_hi * cos_lo - sin_hi * sin_lo, sin_hi * cos_lo + cos_hi * sin_lo
