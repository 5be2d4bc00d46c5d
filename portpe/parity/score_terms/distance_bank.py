"""A bank of profiles over the distance, mixed by each token for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DistanceBankEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block

_FLOAT32 = bounds.ROUNDINGS["float32"]


def distance_bank(
    block: Block,
    encoding: DistanceBankEncoding,
    row: QueryRow,
    q: Estimate,  # noqa: ARG001
    keys: Estimate,  # noqa: ARG001
) -> Estimate:
    """Product r . P[i - j], exactly 0 outside the bank, times the query's temperature."""
    width = encoding.width
    channels = (row.heads[:, None] * width + np.arange(width)).ravel()
    states = block.project(row.hidden.reshape(1, -1), "relative_state_proj", channels).reshape(-1, width)
    if encoding.clip is not None:
        states = _shortened(block, states, block.weight("relative_state_scale")[row.heads], encoding.clip)
    products = bounds.matmul(states, bounds.given(block.weight("distance_bank")), block.rounding)
    rows = distance_rows(encoding).of(row.position[None], row.key_positions)[0]
    inside = rows < encoding.extent
    at = np.where(inside, rows, 0)
    value, error = (np.where(inside, each[:, at], 0.0) for each in (products.value, products.error))
    if not encoding.tempered:
        return Estimate(value, error)
    factor = float(block.query_multipliers(row.position))
    return Estimate(value * factor, quadrature(error * factor, bounds.stored(value * factor, block.rounding)))


def _shortened(block: Block, states: Estimate, scale: bounds.Exact, clip: float) -> Estimate:
    """(G, width), each of its length or ``clip``; an error of one channel moves the length that all are divided by."""
    value, error = states.value * scale, states.error * np.abs(scale)
    length = np.sqrt(np.square(value).sum(-1, keepdims=True)) + 1e-6
    factor = np.minimum(clip / length, 1.0)
    whole = np.sqrt(np.square(error).sum(-1, keepdims=True))
    carried = quadrature(error, whole * np.abs(value) / length) * factor
    value = value * factor
    formed = bounds.summed(value, np.abs(value), value.shape[-1], _FLOAT32)
    return Estimate(value, quadrature(carried, formed, bounds.stored(value, block.rounding)))
