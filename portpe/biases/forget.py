"""FoX: nothing of it follows from positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.encodings import ForgetEncoding, Sizes

SUM_BLOCK = 256
"""Terms of one running sum in float32; more are added block by block. Ranges of 65536 tokens have as many blocks."""


def numbers(
    encoding: ForgetEncoding,  # noqa: ARG001 - every kind has one signature
    layer: Sizes,  # noqa: ARG001
    positions: NDArray[np.int64],  # noqa: ARG001
    weights: Mapping[str, NDArray[Any]],  # noqa: ARG001
) -> dict[str, NDArray[np.float64]]:
    """What ``portpe.tabulate`` lists: nothing, since the gates are made of hidden states."""
    return {}
