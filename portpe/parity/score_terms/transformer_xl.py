"""Transformer-XL: projected sinusoids of the distance, with biases of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe import tables
from portpe.biases.transformer_xl import clamped
from portpe.encodings import TransformerXlEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def transformer_xl(
    block: Block, encoding: TransformerXlEncoding, row: QueryRow, q: Estimate, keys: Estimate
) -> Estimate:
    """(u . k_j + (q_i + v) . W R(i - j)) * scale, the heads one by one."""
    sinusoid = _sinusoid(block, encoding, row)
    rows = [_of_head(block, sinusoid, q[at], keys, int(head)) for at, head in enumerate(row.heads)]
    return Estimate(np.stack([each.value for each in rows]), np.stack([each.error for each in rows]))


def _sinusoid(block: Block, encoding: TransformerXlEncoding, row: QueryRow) -> Estimate:
    """R (T, width) of the distances, rounded to the type."""
    distances = clamped(encoding, row.position[None] - row.key_positions)
    value = tables.relative_sinusoid(encoding, block.spec, distances, block.tables)
    looked_up = bounds.TABLE if "relative_cos_hi" in block.tables else 0.0
    return Estimate(value, bounds.stored(value, block.rounding) + looked_up)


def _of_head(block: Block, sinusoid: Estimate, q: Estimate, keys: Estimate, head: int) -> Estimate:
    """(T,) of one head: q (D,)."""
    spec, rounding = block.spec, block.rounding
    rows = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
    weight = block.weight("relative_proj.weight")[rows]
    position = block.weight("position_bias")[head]
    query = Estimate(q.value + position, quadrature(q.error, bounds.stored(q.value + position, rounding)))
    projected = block.project(sinusoid, "relative_proj", np.arange(rows.start, rows.stop))  # (T, D)
    of_positions = bounds.matmul(projected, query.reshape(-1, 1), rounding, scale=spec.scale)[:, 0]
    other = _other_order(query.value, weight, sinusoid.value, rounding) * spec.scale
    content = bounds.given(block.weight("content_bias")[head][:, None])
    of_keys = bounds.matmul(keys, content, rounding, scale=spec.scale)[:, 0]
    error = quadrature(of_positions.error, other, of_keys.error)
    return Estimate(of_positions.value + of_keys.value, error)


def _other_order(q: Exact, weight: Exact, sinusoid: Exact, rounding: bounds.Rounding) -> Exact:
    """What the sum over the width may be off by where W meets the query first: (T,)."""
    turned = q @ weight
    total, rss = sinusoid @ turned, np.sqrt(np.square(sinusoid) @ np.square(turned))
    return bounds.summed(total, rss, len(turned), rounding)
