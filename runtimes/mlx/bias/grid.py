"""Layer: runtimes (MLX). A trained number for each offset between cells of a grid."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.biases.grid import TABLE, network_inputs, resampling
from portpe.encodings import GridNetworkEncoding, GridTableEncoding, GridVectorsEncoding
from portpe.runtimes.mlx.bias.by_distance import pick
from portpe.runtimes.mlx.bias.inputs import ScoreInputs
from portpe.runtimes.mlx.position_table import Tables
from portpe.spec import AttentionSpec


class GridTable(nn.Module):
    """Rows of the trained table, found by differences of rows and columns."""

    def __init__(self, encoding: GridTableEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T) in float32."""
        table = inputs.weights[TABLE].astype(mx.float32)
        return table[_rows(self.encoding, inputs.query_positions, inputs.key_positions)].transpose(0, 3, 1, 2)


class GridNetwork(nn.Module):
    """16 sigmoid(W2 relu(W1 x + b1)) of every offset, read as a table is."""

    def __init__(self, offsets: GridTableEncoding, inputs: mx.array) -> None:
        super().__init__()
        self.offsets, self._inputs = offsets, inputs

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (1 | B, heads, S, T) in float32."""
        own = {name: array.astype(mx.float32) for name, array in inputs.weights.items()}
        hidden = mx.maximum(self._inputs @ own["grid_in.weight"].T + own["grid_in.bias"], 0.0)
        table = 16 * mx.sigmoid(hidden @ own["grid_out.weight"].T)
        return table[_rows(self.offsets, inputs.query_positions, inputs.key_positions)].transpose(0, 3, 1, 2)


class GridVectors(nn.Module):
    """q . Kh[dy] + q . Kw[dx], in float32."""

    def __init__(self, encoding: GridVectorsEncoding, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.ends = names, encoding.position_ends
        matrices = resampling(encoding)
        self._matrices = None if matrices is None else [mx.array(each, dtype=mx.float32) for each in matrices]

    def __call__(self, inputs: ScoreInputs) -> mx.array:
        """The bias (B, heads, S, T)."""
        q, terms = inputs.q.astype(mx.float32), []
        for axis, (name, end) in enumerate(zip(self.names, self.ends, strict=True)):
            table = inputs.weights[name]
            if self._matrices is not None:
                table = (self._matrices[axis] @ table.astype(mx.float32)).astype(table.dtype)
            apart = inputs.query_positions[axis][..., :, None] - inputs.key_positions[axis][..., None, :]
            terms.append(pick(q @ table.astype(mx.float32).T, apart + end - 1))
        return terms[0] + terms[1]


def _rows(grid: GridTableEncoding, queries: mx.array, keys: mx.array) -> mx.array:
    """(1 | B, S, T) of queries (2, 1 | B, S) and keys (2, 1 | B, T), which were checked on the host."""
    dy, dx = queries[..., :, None] - keys[..., None, :]
    if grid.offsets == "absolute":
        return mx.abs(dy) * grid.width + mx.abs(dx)
    rows = (dy + grid.height - 1) * (2 * grid.width - 1) + dx + grid.width - 1
    query, key = (mx.arange(n) < grid.prefix_tokens for n in rows.shape[1:])
    rows = mx.where(query[:, None], grid.cells, mx.where(key, grid.cells + 1, rows))
    return mx.where(query[:, None] & key, grid.cells + 2, rows)


def grid_table(encoding: GridTableEncoding, spec: AttentionSpec, tables: Tables) -> GridTable:  # noqa: ARG001
    """Liu 2021, Bao 2021 (the first token) and Graham 2021 (absolute offsets)."""
    return GridTable(encoding)


def grid_network(encoding: GridNetworkEncoding, spec: AttentionSpec, tables: Tables) -> GridNetwork:  # noqa: ARG001
    """Liu 2022."""
    return GridNetwork(encoding.offsets, mx.array(network_inputs(encoding), dtype=mx.float32))


def grid_vectors(encoding: GridVectorsEncoding, spec: AttentionSpec, tables: Tables) -> GridVectors:  # noqa: ARG001
    """Li 2022 (MViT v2), ViTDet and SAM."""
    return GridVectors(encoding, tuple(encoding.weight_shapes(spec)))
