"""Layer: exporters/onnx. What the shared weights file holds, and where a graph finds it there.

Imports no onnx: the file is written before any graph is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.interface import DTYPES, dtype_name
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes


@dataclass(frozen=True)
class ExternalWeight:
    """One tensor's place in a data file: ``location`` is relative to the folder of the graph."""

    location: str
    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]


def graph_weights(spec: AttentionSpec, weights: Mapping[str, NDArray[Any]], dtype: str) -> dict[str, NDArray[Any]]:
    """The tensors of ``weights_<dtype>.data``, in the order of the block, under their canonical names.

    Projections are transposed to (in, out), so that a graph multiplies without a Transpose. Norm weights over heads
    are shaped (heads, 1, head_dim) to broadcast over (batch, heads, sequence, head_dim). Each is cast once. An RMS
    weight's offset is not folded in: 1 + w has fewer digits left for w than w itself.

    Raises:
        SpecError: a tensor is missing, has another shape, or does not fit into ``dtype``.
    """
    target = DTYPES[dtype_name(dtype)]
    laid_out: dict[str, NDArray[Any]] = {}
    for name, shape in weight_shapes(spec).items():
        if name not in weights:
            raise SpecError(f"weights must hold {name} {shape}, got none")
        if weights[name].shape != shape:
            raise SpecError(f"weights.{name} must have shape {shape}, got {weights[name].shape}")
        laid_out[name] = _cast(name, _laid_out(spec, name, weights[name]), target)
    return laid_out


def is_projection(module: str) -> bool:
    """Whether a module of this name multiplies with its weight, so that this is a matrix (out, in)."""
    return module.endswith("_proj") or module in ("embedding_projection", "kv_a_proj_with_mqa")


def _laid_out(spec: AttentionSpec, name: str, weight: NDArray[Any]) -> NDArray[Any]:
    module, _, parameter = name.partition(".")
    if is_projection(module):
        return weight.T if parameter == "weight" else weight
    width = {"q_norm": spec.head_dim, "k_norm": spec.head_dim, "v_norm": spec.v_head_dim}.get(module)
    if width is not None and weight.size != width:
        return weight.reshape(-1, 1, width)
    if width is not None and weight.ndim == 2:  # one head with a weight of its own
        return weight.reshape(width)
    return weight


def _cast(name: str, weight: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    if weight.dtype != target:
        with np.errstate(over="ignore"):
            cast = weight.astype(np.float32).astype(target)
        if np.isfinite(weight.astype(np.float32)).all() and not np.isfinite(cast.astype(np.float32)).all():
            largest = float(np.abs(weight.astype(np.float32)).max())
            raise SpecError(f"weights.{name} must fit into {target}, got a value of {largest:g}; export another dtype")
        weight = cast
    return np.ascontiguousarray(weight)
