"""DeBERTa: projected vectors of the distance meet queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases.by_distance import distance_rows
from portpe.encodings import DebertaEncoding
from portpe.layer_parts import Norm
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block


def deberta(block: Block, encoding: DebertaEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:
    """(q_i . K[r] + k_j . Q[r]) * scale."""
    rows = distance_rows(encoding).of(row.position[None], row.key_positions)[0]
    scale, terms = block.spec.scale, []
    if encoding.content_to_position:
        table = _projected(block, encoding, "key")
        each = [
            bounds.matmul(q[at : at + 1], table[head].swapaxes(0, 1), block.rounding, scale) for at, head in _of(row)
        ]
        terms.append([products[0, rows] for products in each])
    if encoding.position_to_content:
        table = _projected(block, encoding, "query")
        terms.append([_by_row(keys, table[head, rows], block.rounding, scale) for _, head in _of(row)])
    value = sum(np.stack([each.value for each in term]) for term in terms)
    return Estimate(np.asarray(value), quadrature(*(np.stack([each.error for each in term]) for term in terms)))


def _of(row: QueryRow) -> list[tuple[int, int]]:
    return [(at, int(head)) for at, head in enumerate(row.heads)]


def _by_row(x: Estimate, y: Estimate, rounding: bounds.Rounding, scale: float) -> Estimate:
    """The product of each row of ``x`` with the same row of ``y``: (T,)."""
    products = x.value * y.value
    total, rss = products.sum(-1) * scale, np.sqrt(np.square(products).sum(-1)) * scale
    error = bounds.summed(total, rss, x.value.shape[-1], rounding)
    carried = np.square(x.error * y.value) + np.square(x.value * y.error)
    return Estimate(total, quadrature(error, np.sqrt(carried.sum(-1)) * scale))


def _projected(block: Block, encoding: DebertaEncoding, part: str) -> Estimate:
    """The table's rows as keys or queries: (heads, rows, head_dim)."""
    name = f"{part[0]}_proj" if encoding.share_projections else f"position_{part}_proj"
    if name not in block.derived:
        table = bounds.given(block.weight("relative_embedding.weight"))
        if encoding.norm_eps is not None:
            table = block.normalise(table, Norm(kind="layer", eps=encoding.norm_eps, bias=True), "relative_norm")
        rows = block.project(table, name)
        heads = block.spec.num_heads
        block.derived[name] = rows.reshape(-1, heads, rows.value.shape[-1] // heads).swapaxes(0, 1)
    return block.derived[name]
