"""The trained tensors of a bias, as a caller of ``tabulate`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError


def tensor(name: str, shape: tuple[int, ...], weights: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """One tensor in float64. Raises SpecError where it is missing or has another shape."""
    if name not in weights:
        raise SpecError(f"weights must hold {name} {shape}, got {sorted(weights)}")
    found = np.asarray(weights[name])
    if found.shape != shape:
        raise SpecError(f"weights.{name} must have shape {shape}, got {found.shape}")
    return found.astype(np.float64)
