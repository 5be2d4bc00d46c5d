"""Layer: exporters/onnx. Projections in 4 or 8 bits, as ONNX Runtime's operator MatMulNBits takes them.

ONNX Runtime's own quantiser makes them: along the input, blocks of ``BLOCK_SIZE`` weights share a scale and a zero
point, w = (q - zero_point) * scale. Accuracy level 4 lets the operator round each row of activations to 8 bits too, by
the same blocks. Rows stay independent of each other, so a decode loop gives what one long call gives; dynamic int8
(MatMulInteger) scales a whole call's activations alike, and a token's output would depend on its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.exporters.onnx.weights import is_projection

BITS = {"int4": 4, "int8": 8}
BLOCK_SIZE = 32
ACCURACY_LEVEL = 4
PARTS = ("qweight", "scales", "zero_points")  # suffixes of a projection's tensors, in the operator's order

Arrays = dict[str, NDArray[Any]]


def check_quantization(name: str) -> str:
    """The name itself where it is one of ``BITS``. Raises SpecError."""
    if name not in BITS:
        raise SpecError(f"quantize must be one of {', '.join(BITS)}, got {name!r}")
    return name


def quantization_facts(name: str) -> dict[str, Any]:
    """What a manifest says of a quantisation: the operator, its settings, and room for what is measured."""
    return {
        "operator": "com.microsoft.MatMulNBits",
        "bits": BITS[check_quantization(name)],
        "block_size": BLOCK_SIZE,
        "symmetric": False,
        "accuracy_level": ACCURACY_LEVEL,
        "minimum_runtime": {"onnxruntime": "1.32"},
        "error": {},
        "tensors": {},
    }


def is_quantized(name: str) -> bool:
    """Whether a tensor of ``graph_weights`` is a projection's weight: these are quantised, and nothing else is."""
    module, _, parameter = name.partition(".")
    return parameter == "weight" and is_projection(module)


def quantized_weights(tensors: Mapping[str, NDArray[Any]], quantization: str) -> Arrays:
    """The tensors of ``graph_weights`` with each projection's weight (in, out) as three in its place.

    Those are ``NAME.qweight`` uint8 (out, blocks, bytes of a block), ``NAME.scales`` (out, blocks) in the graph's
    type, and ``NAME.zero_points`` uint8 (out, bytes), two to a byte in 4 bits, lower half first.

    Raises:
        SpecError: an unknown quantisation, or a type that the quantiser does not take.
    """
    bits = BITS[check_quantization(quantization)]
    found: Arrays = {}
    for name, array in tensors.items():
        if not is_quantized(name):
            found[name] = array
            continue
        if array.dtype not in (np.float32, np.float16):
            raise SpecError(f"quantize {quantization} needs dtype float32 or float16, got {array.dtype}")
        parts = _blocks(np.ascontiguousarray(array), bits)
        found |= {f"{name}.{part}": value for part, value in zip(PARTS, parts, strict=True)}
    return found


def dequantized_weights(tensors: Mapping[str, NDArray[Any]], quantization: str, shapes: Mapping[str, Any]) -> Arrays:
    """What ``quantized_weights`` stand for: each projection (out, in) in float64, under its own name.

    ``shapes`` are those of the weights, ``spec.weight_shapes``; tensors that are not quantised are left out.
    """
    bits = BITS[check_quantization(quantization)]
    return {
        name: _restored([tensors[f"{name}.{part}"] for part in PARTS], bits)[:, : shape[1]]
        for name, shape in shapes.items()
        if is_quantized(name)
    }


def _blocks(weight: NDArray[Any], bits: int) -> tuple[NDArray[Any], ...]:
    """Packed weights, scales and zero points of a matrix (in, out), by ONNX Runtime's quantiser."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    root.setLevel(level)  # its import configures logging for the whole process
    root.handlers[:] = handlers
    config = nbits.DefaultWeightOnlyQuantConfig(block_size=BLOCK_SIZE, is_symmetric=False, bits=bits)
    packed, scales, zero_points = nbits.DefaultWeightOnlyQuantizer(config).qbits_block_quant(weight)
    return packed, scales, zero_points


def _restored(parts: Sequence[NDArray[Any]], bits: int) -> NDArray[np.float64]:
    """(out, blocks * BLOCK_SIZE) from packed weights, scales and zero points."""
    packed, scales, zero_points = parts
    rows, blocks = scales.shape
    values = _unpacked(packed, bits).reshape(rows, blocks, BLOCK_SIZE)
    zeros = _unpacked(zero_points, bits).reshape(rows, -1)[:, :blocks]
    restored: NDArray[np.float64] = (values - zeros[:, :, None]) * scales[:, :, None].astype(np.float64)
    return restored.reshape(rows, -1)


def _unpacked(packed: NDArray[Any], bits: int) -> NDArray[np.float64]:
    if bits == 8:
        return packed.astype(np.float64)
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    return halves.reshape(*packed.shape[:-1], -1).astype(np.float64)
