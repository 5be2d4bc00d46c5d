"""Biases that are functions of the distance: KERPLE, FIRE and Sandwich; runtimes form them in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases import functions
from portpe.encodings import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block

_FLOAT32 = bounds.ROUNDINGS["float32"]


def kerple(block: Block, encoding: KerpleEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """What is rounded before a logarithm moves it by as much, and before a power by as many logarithms."""
    r1, r2 = (block.weight(f"kerple_{name}")[row.heads] for name in ("r1", "r2"))
    distances = row.position - row.key_positions
    value = functions.kerple(encoding, distances, r1, r2)
    if encoding.form == "logarithmic":
        size = r1[:, None] + np.abs(value)
    else:
        size = np.abs(value) * (1 + r2[:, None] * np.log(np.maximum(np.abs(distances), 1)))
    return _stored(block, value, bounds.stored(size, _FLOAT32))


def fire(block: Block, encoding: FireEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """The error of x, through both layers of the network."""
    c, threshold = (float(block.weight(f"fire_{name}")[0]) for name in ("c", "threshold"))
    x = functions.fire_inputs(encoding, row.position[None], row.key_positions, c, threshold)[0]  # (T,)
    normal = np.log1p(abs(c) * max(float(row.position), abs(threshold))) + encoding.epsilon
    error = bounds.stored(1 / normal + x * (1 + 1 / normal), _FLOAT32)[:, None]
    weight, bias = block.weight("fire_in.weight")[:, 0], block.weight("fire_in.bias")
    before = x[:, None] * weight + bias
    error = quadrature(error * np.abs(weight), bounds.stored(np.abs(x[:, None] * weight) + np.abs(bias), _FLOAT32))
    hidden = np.maximum(before, 0.0)
    out, last = block.weight("fire_out.weight")[row.heads], block.weight("fire_out.bias")[row.heads]
    value = (hidden @ out.T + last).T
    carried = np.sqrt(np.square(error) @ np.square(out.T)).T
    rss = np.sqrt(np.square(hidden) @ np.square(out.T)).T
    own = bounds.summed(value, rss, len(weight), _FLOAT32) + bounds.stored(np.abs(last)[:, None] + rss, _FLOAT32)
    return _stored(block, value, quadrature(carried, own))


def sandwich(block: Block, encoding: SandwichEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """A sum of ``width`` products of looked-up cosines and sines."""
    num_heads = block.spec.num_heads
    value = functions.sandwich(encoding, num_heads, row.position - row.key_positions)[row.heads]
    ratios = functions.ratios(num_heads)[row.heads][:, None]
    rss = np.sqrt(encoding.width / 2)
    summed = bounds.summed(value / ratios, np.full_like(value, rss), encoding.width, _FLOAT32)
    looked_up = bounds.LAMBDA * rss * 2 * bounds.TABLE
    return _stored(block, value, ratios * (summed + looked_up))


def _stored(block: Block, value: Exact, error: Exact) -> Estimate:
    return Estimate(value, quadrature(error, bounds.stored(value, block.rounding)))
