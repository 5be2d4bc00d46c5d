"""CoPE: positions that count what a query finds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from portpe.encodings import CopeEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def cope(block: Block, encoding: CopeEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:
    """Q . e at the sum of gates from each key on."""
    rounding = block.rounding
    scale = block.spec.scale if encoding.scaled_gates else 1.0
    place = _places(bounds.matmul(q, keys.swapaxes(0, 1), rounding, scale), row, encoding.rows)
    table = bounds.given(block.weight("contextual_position.weight"))
    products = bounds.matmul(q, table.swapaxes(0, 1), rounding)  # (G, rows)
    below = np.floor(place.value).astype(np.int64)
    above = np.minimum(below + 1, encoding.rows - 1)
    low, high = (np.take_along_axis(products.value, rows, axis=-1) for rows in (below, above))
    share = place.value - below
    value = low + share * (high - low)
    carried = quadrature(
        (1 - share) * np.take_along_axis(products.error, below, axis=-1),
        share * np.take_along_axis(products.error, above, axis=-1),
    )
    own = bounds.stored(np.abs(low) + np.abs(high), bounds.ROUNDINGS["float32"])
    return Estimate(value, quadrature(carried, own, _steepest(products.value, place) * place.error))


def _places(scores: Estimate, row: QueryRow, rows: int) -> Estimate:
    """The positions (G, T) of all keys: a sigmoid is a quarter as steep as its argument at most, and the running sum of
    positive numbers loses as that of a softmax does.
    """
    gates = np.where(row.visible, 1 / (1 + np.exp(-scores.value)), 0.0)
    unit = 2.0**-24
    own = bounds.C * unit * gates * (1 + np.abs(scores.value))
    each = np.where(row.visible, quadrature(scores.error / 4, own), 0.0)
    total = _from_the_right(gates)
    lost = bounds.softmax_sum(gates.shape[-1]) * total
    error = quadrature(np.sqrt(_from_the_right(np.square(each))), lost)
    return Estimate(np.minimum(total, rows - 1), np.where(total - error >= rows - 1, 0.0, error))


def _from_the_right(x: Exact) -> Exact:
    return np.asarray(np.cumsum(x[..., ::-1], axis=-1)[..., ::-1])


def _steepest(products: Exact, place: Estimate) -> Exact:
    """How much the product changes a unit of position, at most, within reach of the error."""
    steps = np.abs(np.diff(products, axis=-1))
    if steps.shape[-1] == 0:
        return np.zeros_like(place.value)
    reach = math.ceil(float(place.error.max(initial=0.0))) + 1
    last = steps.shape[-1] - 1
    at = np.floor(place.value).astype(np.int64)
    found = [
        np.take_along_axis(steps, np.clip(at + shift, 0, last), axis=-1)
        for shift in range(-min(reach, last + 1), min(reach, last + 1) + 1)
    ]
    return np.asarray(np.max(found, axis=0))
