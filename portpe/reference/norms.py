"""Layer: reference. Layer and RMS norms of the hidden states, and of queries and keys."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from portpe.layer_parts import Norm
from portpe.reference.arrays import accumulation_dtype


class Normalise(nn.Module):
    """A norm over the last dimension; the weight's trailing shape is the tensor's.

    layer: (x - mean) / sqrt(var + eps) (Ba 2016); rms: x / sqrt(mean(x^2) + eps) (Zhang 2019); times
    (weight + weight_offset), plus bias. Formed in float32 at least, rounded once.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, norm: Norm, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = norm
        for name, present in (("weight", norm.affine), ("bias", norm.bias)):
            tensor = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta")) if present else None
            self.register_parameter(name, tensor)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        accumulate = accumulation_dtype(x.dtype)
        wide = x.to(accumulate)
        if self.norm.kind == "layer":
            wide = wide - wide.mean(-1, keepdim=True)
        wide = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + self.norm.eps)
        if self.weight is not None:
            wide = wide * (self.weight.to(accumulate) + self.norm.weight_offset)
        if self.bias is not None:
            wide = wide + self.bias.to(accumulate)
        return wide.to(x.dtype)


class HeadNorm(Normalise):
    """A norm of queries or keys (B, heads, S, head_dim): over each head, or over all of them at once."""

    def __init__(self, norm: Norm, heads: int, head_dim: int, dtype: torch.dtype) -> None:
        if norm.scope == "all_heads":
            shape: tuple[int, ...] = (heads * head_dim,)
        else:  # (heads, 1, head_dim) would broadcast by itself, but checkpoints store (heads, head_dim)
            shape = (heads, head_dim) if norm.per_head_weight else (head_dim,)
        super().__init__(norm, shape, dtype)

    def forward(self, x: Float[Tensor, "batch heads seq head_dim"]) -> Float[Tensor, "batch heads seq head_dim"]:
        rows = x.transpose(1, 2)  # (B, S, heads, head_dim): the layout of every weight's trailing shape
        if self.norm.scope == "all_heads":
            return super().forward(rows.flatten(2)).reshape(rows.shape).transpose(1, 2)
        return super().forward(rows).transpose(1, 2)
