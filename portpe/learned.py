"""Trained numbers that a spec leaves to the weights, put into it: afterwards its tables need no weights.

LeRoPE (Mistral Large 4) multiplies each frequency by exp of a trained number. A table of cosines has to know it, so it
is no weight of a block but a setting of its encoding, as the factors of LongRoPE are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.encodings.rotary import LOG_SCALES
from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes


def settle(spec: AttentionSpec, weights: Mapping[str, NDArray[Any]]) -> tuple[AttentionSpec, dict[str, NDArray[Any]]]:
    """The spec with its trained numbers in it, and the weights that are left; both as they are where it has none.

    Raises SpecError: the tensor is missing, has another shape, or holds no finite numbers.
    """
    rotary = spec.rotary
    if rotary is None or rotary.log_scales != "learned":
        return spec, {**weights}
    shape = weight_shapes(spec)[LOG_SCALES]
    if LOG_SCALES not in weights:
        raise SpecError(f"weights must hold {LOG_SCALES} {shape}, the trained scales of frequencies, got none")
    scales = np.asarray(weights[LOG_SCALES]).astype(np.float64)
    if scales.shape != shape:
        raise SpecError(f"{LOG_SCALES} must have shape {shape}, got {scales.shape}")
    if not np.isfinite(scales).all():
        raise SpecError(f"{LOG_SCALES} must be finite, got {scales[~np.isfinite(scales)][0]}")
    settled = spec.model_copy(update={"rotary": rotary.model_copy(update={"log_scales": tuple(scales.tolist())})})
    return settled, {name: array for name, array in weights.items() if name != LOG_SCALES}
