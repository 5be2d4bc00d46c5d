"""T5's buckets: a trained number by distance and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe import biases
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, GatedBucketsEncoding
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


def gated_buckets(
    block: Block,
    encoding: GatedBucketsEncoding,
    row: QueryRow,
    q: Estimate,  # noqa: ARG001
    keys: Estimate,  # noqa: ARG001
) -> Estimate:
    """Numbers of the table times a gate, formed in float32."""
    found = biases.buckets.distance_rows(encoding).of(row.position[None], row.key_positions)[0]
    table = np.asarray(block.weight(biases.buckets.TABLE)[found][:, row.heads].T)  # (G, T)
    gate = _gate(block, row)
    value = table * gate.value[:, None]
    formed = bounds.stored(value, bounds.ROUNDINGS["float32"])
    return Estimate(value, quadrature(formed, table * gate.error[:, None]))


def _gate(block: Block, row: QueryRow) -> Estimate:
    """A (b c - 1) + 2 of the row's heads (G,); a sigmoid is as steep as its value times what it lacks of 1."""
    rounding = bounds.ROUNDINGS["float32"]
    weight = block.weight("relative_gate.weight")
    by_head = row.hidden.reshape(block.spec.num_heads, -1)[row.heads]
    eight = bounds.product(by_head, weight, np.square(weight), rounding)
    eight = Estimate(eight.value + block.weight("relative_gate.bias"), eight.error).reshape(len(row.heads), 2, 4)
    own = bounds.stored(np.abs(eight.value).sum(-1), rounding)
    logits = Estimate(eight.value.sum(-1), quadrature(np.sqrt(np.square(eight.error).sum(-1)), own))
    gates = 1 / (1 + np.exp(-logits.value))
    errors = quadrature(gates * (1 - gates) * logits.error, bounds.stored(gates, rounding))
    scale = block.weight("relative_gate_scale")[row.heads]
    (a, b), (a_error, b_error) = gates.T, errors.T
    formed = bounds.stored(np.abs(a * b * scale) + a + 2, rounding)
    return Estimate(a * (b * scale - 1) + 2, quadrature(a_error * (b * scale - 1), a * b_error * scale, formed))


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
