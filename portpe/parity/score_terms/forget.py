"""FoX: forget gates, each of which fades what stands before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from portpe.biases.forget import SUM_BLOCK
from portpe.encodings import ForgetEncoding
from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, quadrature
from portpe.parity.score_terms.row import QueryRow

if TYPE_CHECKING:
    from portpe.parity.stages import Block

_FLOAT32 = bounds.ROUNDINGS["float32"]


def gates(block: Block, encoding: ForgetEncoding, x: Estimate) -> dict[str, Estimate]:  # noqa: ARG001
    """``gate``, log f of each token, (heads, S): as steep in its logit as 1 - f."""
    logits = block.project(x, "fgate_proj").swapaxes(0, 1)
    value = -np.logaddexp(0.0, -logits.value)
    own = bounds.stored(value, _FLOAT32)
    return {"gate": Estimate(value, quadrature(-np.expm1(value) * logits.error, own))}


def forget(block: Block, encoding: ForgetEncoding, row: QueryRow, q: Estimate, keys: Estimate) -> Estimate:  # noqa: ARG001
    """The sum of log f over the keys behind each that the query sees; errors of gates are independent of each other,
    and a sum has those of two running sums, within blocks and over them.
    """
    gate = row.states["gate"][row.heads]
    seen, errors = (np.where(row.visible, part, 0.0) for part in (gate.value, gate.error))
    value = _behind(seen)
    own = bounds.blocked_sum(gate.value.shape[-1], SUM_BLOCK) * np.abs(value)
    return Estimate(value, quadrature(np.sqrt(_behind(np.square(errors))), own, bounds.stored(value, _FLOAT32)))


def _behind(x: Exact) -> Exact:
    """For each place the sum of x over those behind it."""
    return np.asarray(np.cumsum(x[..., ::-1], axis=-1)[..., ::-1] - x)
