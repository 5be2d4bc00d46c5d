"""Layer: reference. Embedding site: what is added to the hidden states, by position.

A member is a module that is called with position_ids (B, S), or (axes, B, S) where they have several axes, and gives
the addend (B, S, width) in the accumulation type. ``EMBEDDINGS`` finds it by the encoding's kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from portpe import grids
from portpe.encodings import LearnedAxesEncoding, LearnedEncoding, SinusoidalEncoding, SinusoidalGridEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.grid import LearnedGrid
from portpe.reference.lookup import Lookup, Tables, on_host
from portpe.schedules import sinusoidal
from portpe.tables import sinusoid


class Sinusoidal(nn.Module):
    """Sines and cosines (Vaswani 2017, section 3.5): from the positions, or out of tables."""

    def __init__(self, encoding: SinusoidalEncoding, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.encoding = encoding
        self.accumulate = accumulation_dtype(dtype)
        self.lookup = None if tables is None else Lookup(tables, prefix="embedding", dtype=self.accumulate)

    def forward(self, position_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        if self.lookup is None:
            rows = sinusoid(self.encoding, on_host(position_ids))
            return torch.from_numpy(rows).to(position_ids.device, self.accumulate)
        if self.lookup.whole:
            return self.lookup.rows(position_ids)
        return _arranged(self.encoding, *self.lookup.cos_sin(position_ids))


class SinusoidalGrid(nn.Module):
    """Sinusoids of both coordinates: out of tables, or of coordinates that are normalised by the image's own size."""

    frequencies: Tensor

    def __init__(self, encoding: SinusoidalGridEncoding, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.encoding = encoding
        self.accumulate = accumulation_dtype(dtype)
        self.one = None if encoding.normalize else Sinusoidal(encoding.half, tables, dtype)
        self.register_buffer("frequencies", torch.from_numpy(sinusoidal(encoding.half)), persistent=False)

    def forward(self, position_ids: Int[Tensor, "2 batch seq"]) -> Float[Tensor, "batch seq width"]:
        rows, columns = self._halves(position_ids)
        both = torch.cat((rows, columns) if self.encoding.first == "row" else (columns, rows), dim=-1)
        tokens = torch.arange(both.shape[1], device=both.device)[:, None]
        return both * (tokens >= self.encoding.plain_tokens)

    def _halves(self, position_ids: Tensor) -> list[Tensor]:
        if self.one is not None:
            return [self.one(places) for places in position_ids]
        sizes = (position_ids.amax(-1, keepdim=True) + 1).to(self.accumulate)
        turned = (position_ids.to(self.accumulate) + grids.start(self.encoding)) * (2 * math.pi)
        angles = (turned / (sizes + grids.EPSILON))[..., None] * self.frequencies.to(self.accumulate)
        return [_arranged(self.encoding.half, angle.cos(), angle.sin()) for angle in angles]


def _arranged(encoding: SinusoidalEncoding, cos: Tensor, sin: Tensor) -> Tensor:
    """Channels in the encoding's order; an odd width drops the last cosine or ends with 0."""
    width = encoding.width
    if encoding.order == "interleaved":
        return torch.stack((sin, cos), dim=-1).flatten(-2)[..., :width]
    first, second = (sin, cos) if encoding.order == "sin_cos" else (cos, sin)
    rows = torch.cat((first, second[..., : width - first.shape[-1]]), dim=-1)
    return F.pad(rows, (0, width - rows.shape[-1]))


class Learned(nn.Module):
    """A trained table (rows, width); token position p reads row p + offset."""

    def __init__(self, encoding: LearnedEncoding, tables: Tables | None, dtype: torch.dtype) -> None:
        del tables  # the weight is the table
        super().__init__()
        self.offset = encoding.offset
        self.weight = nn.Parameter(torch.empty(encoding.rows, encoding.width, dtype=dtype, device="meta"))

    def forward(self, position_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq width"]:
        rows = F.embedding(position_ids + self.offset, self.weight)
        return rows.to(accumulation_dtype(self.weight.dtype))


class LearnedAxes(nn.Module):
    """A trained table (rows, width) for every axis, whose rows are added up in the accumulation type."""

    def __init__(self, encoding: LearnedAxesEncoding, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        for axis, rows in enumerate(encoding.rows):
            one = LearnedEncoding(rows=rows, width=encoding.width, offset=encoding.offset)
            self.add_module(f"axis_{axis}", Learned(one, tables, dtype))

    def forward(self, position_ids: Int[Tensor, "axes batch seq"]) -> Float[Tensor, "batch seq width"]:
        return torch.stack([table(places) for table, places in zip(self.children(), position_ids, strict=True)]).sum(0)


EMBEDDINGS: dict[str, Callable[..., nn.Module]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "learned_axes": LearnedAxes,
    "learned_grid": LearnedGrid,
    "sinusoidal_grid": SinusoidalGrid,
}
