"""Layer: runtimes. Arrays as OrtValues of ONNX Runtime and back, without a copy where both lie in the host's memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from portpe.interface import DTYPES, Array

_BFLOAT16 = 16  # TensorProto.BFLOAT16: the onnx package need not be here


def to_ort(array: Array) -> Any:
    """An OrtValue that shares the array's memory where that is contiguous: whoever writes one, writes the other."""
    import onnxruntime

    if array.dtype != DTYPES["bfloat16"]:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = np.asarray(array, order="C").view(np.uint16)  # ONNX Runtime knows no numpy type for it
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)


def from_ort(value: Any) -> Array:
    """The tensor as an array."""
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    # A result that was not bound to a device lies in the host's memory, whatever the provider.
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, DTYPES["bfloat16"]).reshape(value.shape())
