"""Layer: reference. A trained number for each offset between cells of a grid."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from portpe.biases.grid import TABLE
from portpe.encodings import GridTableEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class GridTable(Bias):
    """Rows of the trained table, found by differences of rows and columns (Liu 2021, section 3.2)."""

    def __init__(
        self,
        encoding: GridTableEncoding,
        spec: AttentionSpec,  # noqa: ARG002 - a site's signature
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.encoding, self.accumulate = encoding, accumulation_dtype(dtype)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        rows = self._rows(inputs.query_positions, inputs.key_positions)
        return inputs.weights[TABLE][rows].permute(0, 3, 1, 2).to(self.accumulate)

    def _rows(
        self, queries: Int[Tensor, "2 batch seq"], keys: Int[Tensor, "2 batch total"]
    ) -> Int[Tensor, "batch seq total"]:
        grid = self.encoding
        dy, dx = queries[..., :, None] - keys[..., None, :]
        if grid.offsets == "absolute":
            absolute: Tensor = dy.abs() * grid.width + dx.abs()
            return absolute
        rows: Tensor = (dy + grid.height - 1) * (2 * grid.width - 1) + dx + grid.width - 1
        query, key = (torch.arange(n, device=rows.device) < grid.prefix_tokens for n in rows.shape[1:])
        rows = torch.where(query[:, None], grid.cells, torch.where(key, grid.cells + 1, rows))
        return torch.where(query[:, None] & key, grid.cells + 2, rows)
