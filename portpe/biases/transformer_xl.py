"""Transformer-XL: what its addend reads of distances alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.encodings import Sizes, TransformerXlEncoding

Ids = NDArray[np.int64]


def clamped(encoding: TransformerXlEncoding, distances: Ids) -> Ids:
    """The distances i - j whose rows stand for these."""
    return distances if encoding.clamp is None else np.clip(distances, -encoding.clamp, encoding.clamp)


def numbers(
    encoding: TransformerXlEncoding,
    layer: Sizes,
    positions: Ids,
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001 - every kind has one signature
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: ``relative`` (P, width), the sinusoid of each position taken as a distance i - j.

    There is no ``bias``: what is added depends on the queries and the keys themselves.
    """
    from portpe import tables  # which finds this module by the kind of an encoding

    return {"relative": tables.relative_sinusoid(encoding, layer, clamped(encoding, positions))}
