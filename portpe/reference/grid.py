"""Layer: reference. A trained table over a grid of patches, resampled to an image's own grid."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from portpe import grids
from portpe.encodings import LearnedGridEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.lookup import Tables


class LearnedGrid(nn.Module):
    """The table (prefix_tokens + rows * columns, width), weighed row by row for each token (see ``portpe.grids``)."""

    def __init__(self, encoding: LearnedGridEncoding, tables: Tables | None, dtype: torch.dtype) -> None:
        del tables  # the weight is the table
        super().__init__()
        self.encoding = encoding
        self.weight = nn.Parameter(torch.empty(encoding.table_shape, dtype=dtype, device="meta"))

    def forward(self, position_ids: Int[Tensor, "2 batch seq"]) -> Float[Tensor, "batch seq width"]:
        """The addend, in the accumulation type."""
        encoding, dtype = self.encoding, accumulation_dtype(self.weight.dtype)
        sizes = position_ids.amax(-1, keepdim=True) + 1
        if encoding.square:
            sizes = sizes.amax(0, keepdim=True).expand_as(sizes)
        by_row, by_column = (
            axis_weights(encoding, position_ids[axis], sizes[axis], count, dtype)
            for axis, count in enumerate(encoding.grid)
        )
        on_grid = (by_row.unsqueeze(-1) * by_column.unsqueeze(-2)).flatten(-2)
        tokens = torch.arange(position_ids.shape[-1], device=position_ids.device)[:, None]
        on_grid = on_grid * (tokens >= encoding.prefix_tokens + encoding.plain_tokens)
        first = (tokens == torch.arange(encoding.prefix_tokens, device=tokens.device)).to(dtype)
        first = first.expand(on_grid.shape[0], *first.shape)
        return torch.cat((first, on_grid), dim=-1) @ self.weight.to(dtype)


def axis_weights(
    encoding: LearnedGridEncoding,
    places: Int[Tensor, "batch seq"],
    size: Int[Tensor, "batch 1"],
    count: int,
    dtype: torch.dtype,
) -> Float[Tensor, "batch seq count"]:
    """Weights of the table's rows along one axis: ``grids.axis_weights`` in torch."""
    past = grids.overhang(encoding)
    places, size = places[..., None], size[..., None]
    taps = torch.arange(-past, count + past, device=places.device)
    if encoding.align_corners:
        step = (size - 1).clamp(min=1)
        start, each = places * (count - 1), step
    elif encoding.antialias:
        step = 2 * size.clamp(min=count)
        start, each = (2 * places + 1) * count - size, 2 * size
    elif encoding.resize == "nearest":
        step = each = 2 * size
        start = 2 * places * count + 1 - size
    else:
        step = 2 * size
        start, each = (2 * places + 1) * count - size, step
        if encoding.resize == "bilinear":
            start = torch.minimum(start.clamp(min=0), step * (count - 1))
    weights = _kernel(encoding, (start - each * taps).abs().to(dtype) / step.to(dtype))
    if encoding.antialias:
        return weights / weights.sum(-1, keepdim=True)
    return weights @ torch.from_numpy(grids.fold(count, past)).to(weights) if past else weights


def _kernel(encoding: LearnedGridEncoding, distance: Tensor) -> Tensor:
    if encoding.resize == "nearest":
        return (distance < 0.5).to(distance)
    if encoding.resize == "bilinear":
        return (1 - distance).clamp(min=0)
    a = grids.sharpness(encoding)
    near = ((a + 2) * distance - (a + 3)) * distance.square() + 1
    far = a * (distance - 1) * (distance - 2).square()
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
