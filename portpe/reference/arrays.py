"""Layer: reference. numpy arrays to torch tensors and back, bit for bit; bfloat16 through ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums are formed: the tensor's own, but never less than float32."""
    return dtype if dtype == torch.float64 else torch.float32


def to_torch(array: NDArray[Any]) -> Tensor:
    """A tensor with the values and the type of ``array``; neither shares memory that the other could change."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """An array with the values and the type of ``tensor``, on the host."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    array: NDArray[Any] = tensor.numpy()
    return array
