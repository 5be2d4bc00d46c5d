"""How large an export is, and a smaller layer of the same encoding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from portpe.interface import DTYPES, dtype_name
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

GOLDEN_LIMIT = 64 * 2**20  # bytes of golden values a type
TABLES = 2 * 2**20  # bytes of the tables in one pair of graphs, about


@dataclass(frozen=True)
class Estimate:
    """What one layer's export takes at most, in bytes."""

    disk: int
    memory: int


def estimate(
    spec: AttentionSpec,
    forms: Iterable[str],
    dtypes: Iterable[str],
    *,
    golden: bool = True,
    quantize: Iterable[str] = (),
) -> Estimate:
    """What one layer takes at most: its weights as stored twice (plain and MLX), once a type, and golden values.

    A quantised projection takes 8 bits a weight at most, and a fifth of a byte for scales.
    """
    elements = sum(math.prod(shape) for shape in weight_shapes(spec).values())
    widths = [float(DTYPES[dtype_name(name)].itemsize) for name in dtypes]
    widths += [1.2] * (len(widths) * len(list(quantize)))
    tables = TABLES * len(list(forms)) * len(widths)
    disk = math.ceil(elements * (2 * 4 + sum(widths))) + tables + (GOLDEN_LIMIT * len(widths) if golden else 0)
    # as read and as cast; with golden values also in float64, once more as a module's parameters
    memory = elements * (4 + 4 + (8 + 8 if golden else 0)) + (GOLDEN_LIMIT * len(widths) if golden else 0)
    return Estimate(disk, memory)


def reduced_spec(spec: AttentionSpec, hidden: int = 512) -> AttentionSpec:
    """The same encoding on a copy at most ``hidden`` wide: fewer heads of the same width, fewer channels.

    For runtimes too slow for the layer's own size. Slopes of ALiBi follow the smaller number of heads.
    """
    if spec.hidden_size <= hidden:
        return spec
    group = spec.num_heads // spec.num_kv_heads
    heads = max(1, hidden // spec.head_dim)
    kv_heads = max(1, heads // group)
    heads = kv_heads * min(group, heads)
    wide: dict[str, Any] = {"hidden_size": hidden, "num_heads": heads, "num_kv_heads": kv_heads}
    if spec.embedding is not None:
        width = spec.embedding.width if spec.embedding_projection is not None else hidden
        wide["embedding"] = spec.embedding.model_copy(update={"width": width})
    return AttentionSpec(**(dict(spec) | wide))
