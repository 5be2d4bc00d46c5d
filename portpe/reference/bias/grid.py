"""Layer: reference. A trained number for each offset between cells of a grid."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from portpe.biases.grid import TABLE, network_inputs
from portpe.encodings import GridNetworkEncoding, GridTableEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
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
        rows = _rows(self.encoding, inputs.query_positions, inputs.key_positions)
        return inputs.weights[TABLE][rows].permute(0, 3, 1, 2).to(self.accumulate)


class GridNetwork(Bias):
    """16 sigmoid(W2 relu(W1 x + b1)) of every offset, read as a table is (Liu 2022, section 3.3)."""

    def __init__(
        self,
        encoding: GridNetworkEncoding,
        spec: AttentionSpec,  # noqa: ARG002 - a site's signature
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.offsets, self.accumulate = encoding.offsets, accumulation_dtype(dtype)
        self.inputs = to_torch(network_inputs(encoding)).to(self.accumulate)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        own = {name: tensor.to(self.accumulate) for name, tensor in inputs.weights.items()}
        hidden = (self.inputs @ own["grid_in.weight"].T + own["grid_in.bias"]).relu()
        table = 16 * (hidden @ own["grid_out.weight"].T).sigmoid()
        return table[_rows(self.offsets, inputs.query_positions, inputs.key_positions)].permute(0, 3, 1, 2)


def _rows(
    grid: GridTableEncoding, queries: Int[Tensor, "2 batch seq"], keys: Int[Tensor, "2 batch total"]
) -> Int[Tensor, "batch seq total"]:
    dy, dx = queries[..., :, None] - keys[..., None, :]
    if grid.offsets == "absolute":
        absolute: Tensor = dy.abs() * grid.width + dx.abs()
        return absolute
    rows: Tensor = (dy + grid.height - 1) * (2 * grid.width - 1) + dx + grid.width - 1
    query, key = (torch.arange(n, device=rows.device) < grid.prefix_tokens for n in rows.shape[1:])
    rows = torch.where(query[:, None], grid.cells, torch.where(key, grid.cells + 1, rows))
    return torch.where(query[:, None] & key, grid.cells + 2, rows)
