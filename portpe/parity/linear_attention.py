"""The truth of linear attention's own stages in numpy float64, with the error that a correct runtime may have there.

Features, their rotation, scores and the normaliser are formed in float32 in every type.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from portpe.parity import bounds
from portpe.parity.bounds import Estimate, Exact, Rounding, quadrature


def features(x: Estimate) -> Estimate:
    """Of queries or keys (..., head_dim): elu(x) + 1."""
    return Estimate(bounds.elu_plus_one(x.value), bounds.feature_error(x))


def normaliser(q: Estimate, keys: Estimate, visible: NDArray[np.bool_]) -> Estimate:
    """(G, 1) from unrotated features of one query row's heads (G, D) and of the keys they read (T, D)."""
    seen, seen_error = keys.value[visible], keys.error[visible]
    summed = seen.sum(axis=0)
    total = (q.value @ summed)[:, None]
    own = bounds.positive_sum_error(total, max(len(seen), 1), q.value.shape[-1])
    carried = np.square(q.error) @ np.square(summed) + np.square(q.value) @ np.square(seen_error).sum(axis=0)
    return Estimate(total, quadrature(own, np.sqrt(carried)[:, None]))


def weights(
    scores: Estimate, normalisers: Estimate, visible: NDArray[np.bool_], rounding: Rounding
) -> tuple[Estimate, Exact]:
    """What values are weighed by (G, T), and the relative error that a row's weights share, its normaliser's (G, 1)."""
    if not visible.any():
        nothing = np.zeros_like(scores.value)
        return Estimate(nothing, nothing), np.zeros_like(normalisers.value)
    value = np.where(visible, scores.value / normalisers.value, 0.0)
    error, shared = bounds.quotient_error(value, scores.error, normalisers, rounding)
    return Estimate(value, np.where(visible, error, 0.0)), shared
