"""Layer: reference. A trained number for each offset between cells of a grid."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from portpe.biases.grid import TABLE, network_inputs, resampling
from portpe.encodings import GridNetworkEncoding, GridTableEncoding, GridVectorsEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.bias.by_distance import pick
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


class GridVectors(Bias):
    """q . Kh[dy] + q . Kw[dx] (Li 2022, section 4.1), each query multiplied with every row of both tables once."""

    def __init__(
        self,
        encoding: GridVectorsEncoding,
        spec: AttentionSpec,
        tables: Tables | None,  # noqa: ARG002 - a site's signature
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.dtype, self.accumulate = dtype, accumulation_dtype(dtype)
        self.names, self.ends = tuple(encoding.weight_shapes(spec)), encoding.position_ends
        matrices = resampling(encoding)
        self.matrices = None if matrices is None else [to_torch(matrix).to(self.accumulate) for matrix in matrices]

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        q = inputs.q.to(self.accumulate)
        total = torch.zeros((), dtype=self.accumulate, device=q.device)
        for axis, (name, end) in enumerate(zip(self.names, self.ends, strict=True)):
            table = inputs.weights[name].to(self.accumulate)
            if self.matrices is not None:
                table = (self.matrices[axis] @ table).to(self.dtype).to(self.accumulate)
            apart = inputs.query_positions[axis][..., :, None] - inputs.key_positions[axis][..., None, :]
            total = total + pick(q @ table.T, apart + end - 1)
        return total


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
