"""Layer: runtimes (MLX). The trained tensors of encodings as parameters of a block, by canonical name."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from portpe.spec import AttentionSpec


def register(block: nn.Module, spec: AttentionSpec) -> tuple[str, ...]:
    """Give the block the trained tensors of its rotary and bias encodings, under their canonical names."""
    names = []
    for encoding in (spec.rotary, *spec.bias):
        for name, shape in ({} if encoding is None else encoding.weight_shapes(spec)).items():
            stem, _, leaf = name.rpartition(".")
            if stem and stem not in block:
                block[stem] = nn.Module()
            (block[stem] if stem else block)[leaf] = mx.zeros(shape)
            names.append(name)
    return tuple(names)


def at(block: nn.Module, name: str) -> mx.array:
    """A parameter by its canonical name."""
    stem, _, leaf = name.rpartition(".")
    value: mx.array = (block[stem] if stem else block)[leaf]
    return value
