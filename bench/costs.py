"""What one call costs at least: operations, bytes that must be read, and the memory of dense scores."""

from __future__ import annotations

import math

from portpe.bench.case import Case
from portpe.interface import DTYPES
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes


def flops(spec: AttentionSpec, case: Case) -> int:
    """Operations of the projections and of the pairs of query and key that the mask leaves, 2 a multiply-add."""
    projections = 2 * case.rows * _matrix_elements(spec)
    return projections + 2 * spec.num_heads * (spec.head_dim + spec.v_head_dim) * _pairs(spec, case)


def bytes_read(spec: AttentionSpec, case: Case, dtype: str) -> int:
    """Bytes of the weights and of the visible cache, each read once."""
    cached = min(case.past, spec.window or case.past)
    cache = spec.num_kv_heads * (spec.head_dim + spec.v_head_dim) * cached
    return (_matrix_elements(spec) + cache) * DTYPES[dtype].itemsize


def weight_bytes(spec: AttentionSpec, dtype: str) -> int:
    """Bytes of all weights."""
    return sum(math.prod(shape) for shape in weight_shapes(spec).values()) * DTYPES[dtype].itemsize


def cache_bytes(spec: AttentionSpec, case: Case, dtype: str) -> int:
    """Bytes of keys and values after the call."""
    return spec.num_kv_heads * (spec.head_dim + spec.v_head_dim) * case.capacity * DTYPES[dtype].itemsize


def score_bytes(spec: AttentionSpec, case: Case) -> int:
    """Bytes of one array of scores (heads, rows, total) in float32: what a kernel without tiles holds."""
    return 4 * spec.num_heads * case.rows * case.total


def _matrix_elements(spec: AttentionSpec) -> int:
    """Elements of the matrices that every row is multiplied with; the position table is looked up."""
    shapes = weight_shapes(spec)
    return sum(math.prod(s) for name, s in shapes.items() if len(s) > 1 and name != "position_embedding.weight")


def _pairs(spec: AttentionSpec, case: Case) -> int:
    """Pairs of query and key that the mask leaves."""
    if not spec.causal:
        if spec.window_radius is None:
            return case.rows * case.total
        return sum(
            min(row + spec.window_radius, case.total - 1) - max(row - spec.window_radius, 0) + 1
            for row in range(case.rows)
        )
    window, chunk = spec.window or case.total, spec.chunk or case.total
    return sum(min(slot % chunk + 1, window) for slot in range(case.past, case.total))
