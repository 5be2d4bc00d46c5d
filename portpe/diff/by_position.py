"""From which position on two embeddings, or two temperatures of queries, differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from portpe.diff.search import Floats, Found, everywhere, first_over
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate
from portpe.temperatures import multipliers


def query_scale(left: AttentionSpec, right: AttentionSpec, horizon: int) -> Found:
    """The first query whose multiplier differs by more than the type's roundoff; without a temperature it is 1."""

    def errors(positions: NDArray[np.int64]) -> Floats:
        one, other = (
            np.ones(len(positions)) if site is None else multipliers(site, positions)
            for site in (left.query_scale, right.query_scale)
        )
        return np.asarray(np.abs(one / other - 1))

    seen = first_over(errors, horizon)
    return Found("position", {dtype: max(first, 1) for dtype, first in seen.items()})  # with one key softmax is 1


def embedding(left: AttentionSpec, right: AttentionSpec, horizon: int) -> Found:
    """The first position whose addend differs by more than the type's roundoff."""
    one, other = left.embedding, right.embedding
    if one is None or other is None or one.kind != other.kind or one.width != other.width:
        return Found("position", everywhere(0))
    ends = [site.position_end for site in (one, other) if site.position_end is not None]
    if ends and one.model_copy(update={"rows": None}) == other.model_copy(update={"rows": None}):
        return Found("position", everywhere(min(ends)))  # the same rows, until the shorter table ends
    if one.weight_shapes(left):
        return Found("position", everywhere(0), "other")

    def errors(positions: NDArray[np.int64]) -> Floats:
        alone = (spec.model_copy(update={"rotary": None, "query_scale": None, "bias": ()}) for spec in (left, right))
        tables = [tabulate(spec, positions)["embedding"] for spec in alone]
        return np.asarray(np.abs(tables[0] - tables[1]).max(axis=1))

    return Found("position", first_over(errors, min([horizon, *ends])))
