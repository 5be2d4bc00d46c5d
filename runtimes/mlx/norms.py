"""Layer: runtimes (MLX). Layer and RMS norms, in float32 with one cast at the end."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.layer_parts import Norm


class FeatureNorm(nn.Module):
    """A norm over the last axis. The weight's offset is added in float32, so it is never rounded to 16 bits."""

    def __init__(self, norm: Norm, *shape: int) -> None:
        super().__init__()
        self.norm = norm
        if norm.affine:
            self.weight = mx.full(shape, 1.0 - norm.weight_offset)
        if norm.bias:
            self.bias = mx.zeros(shape)

    def _affine(self, wide: mx.array, expand: bool) -> mx.array:
        """Weight and bias applied to a normalised float32 x; ``expand``: they differ by head, (heads, D)."""
        if self.norm.affine:
            weight = self.weight.astype(mx.float32) + self.norm.weight_offset
            wide = wide * (mx.expand_dims(weight, 1) if expand else weight)
        if self.norm.bias:
            wide = wide + (mx.expand_dims(self.bias, 1) if expand else self.bias).astype(mx.float32)
        return wide

    def __call__(self, x: mx.array, expand: bool = False) -> mx.array:
        """Normed x (..., D), in its own type."""
        wide = x.astype(mx.float32)
        if self.norm.kind == "layer":
            wide = wide - mx.mean(wide, axis=-1, keepdims=True)
        wide = wide * mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + self.norm.eps)
        return self._affine(wide, expand).astype(x.dtype)


class HeadNorm(FeatureNorm):
    """A q or k norm on (B, heads, S, D): over one head, or over all heads of a token at once."""

    def __init__(self, norm: Norm, heads: int, head_dim: int) -> None:
        if norm.scope == "all_heads":
            super().__init__(norm, heads * head_dim)
        elif norm.per_head_weight:
            super().__init__(norm, heads, head_dim)
        else:
            super().__init__(norm, head_dim)

    def __call__(self, x: mx.array, expand: bool = False) -> mx.array:  # noqa: ARG002 - follows from the norm
        """Normed x (B, heads, S, D), in its own type."""
        if self.norm.scope == "head":
            return super().__call__(x, expand=self.norm.per_head_weight)
        batch, heads, length, head_dim = x.shape
        flat = super().__call__(x.transpose(0, 2, 1, 3).reshape(batch, length, heads * head_dim))
        return flat.reshape(batch, length, heads, head_dim).transpose(0, 2, 1, 3)
