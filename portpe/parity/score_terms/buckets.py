"""T5's buckets: a trained number by distance and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe import biases
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, given, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def buckets(block: Block, encoding: BucketsEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """Numbers of the table itself, which looking up does not round, times the scale."""
    found = biases.buckets.distance_rows(encoding).of(row.position[None], row.key_positions)[0]
    value = np.asarray(block.weight(biases.buckets.TABLE)[found][:, row.heads].T)
    return given(value) if encoding.scale == 1 else _rounded(block, value * encoding.scale, np.abs(value))


def axis_buckets(
    block: Block,
    encoding: AxisBucketsEncoding,
    row: QueryRow,
    q: Estimate,  # noqa: ARG001
    keys: Estimate,  # noqa: ARG001
) -> Estimate:
    """Numbers of the tables, added up and scaled in float32."""
    axes = zip(encoding.weight_shapes(block.spec), encoding.axes, row.position, row.key_positions, strict=True)
    terms = [
        block.weight(name)[biases.buckets.distance_rows(axis).of(position[None], places)[0]][:, row.heads].T
        for name, axis, position, places in axes
    ]
    value = np.asarray(np.sum(terms, axis=0)) * encoding.scale
    return _rounded(block, value, np.asarray(np.sum(np.abs(terms), axis=0)) * encoding.scale)


def _rounded(block: Block, value: Exact, size: Exact) -> Estimate:
    """What is formed in float32 from numbers of a size, then stored in the block's type."""
    formed = bounds.stored(size, bounds.ROUNDINGS["float32"])
    return Estimate(value, quadrature(formed, bounds.stored(value, block.rounding)))
