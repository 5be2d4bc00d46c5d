"""Layer: exporters/onnx. Products with a projection's weight, stored in the graph's type or in 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from portpe.exporters.onnx.graph import MICROSOFT, UINT8, GraphBuilder, shape_of
from portpe.exporters.onnx.quantization import ACCURACY_LEVEL, BLOCK_SIZE, PARTS
from portpe.exporters.onnx.weights import ExternalWeight


def product(graph: GraphBuilder, value: ir.Value, name: str, weights: Mapping[str, ExternalWeight]) -> ir.Value:
    """``value`` (batch, sequence, in) times the weight of this name, (in, out)."""
    packed, scales, zero_points = (f"{name}.{part}" for part in PARTS)
    if packed not in weights:
        return graph.matmul(value, graph.external(name, weights))
    out, blocks, size = weights[packed].shape
    batch, sequence, width = shape_of(value)
    assert isinstance(width, int)
    assert blocks == -(-width // BLOCK_SIZE)
    return graph.op(
        "MatMulNBits",
        value,
        graph.external(packed, weights, UINT8),
        graph.external(scales, weights),
        graph.external(zero_points, weights, UINT8),
        shape=(batch, sequence, out),
        domain=MICROSOFT,
        K=width,
        N=out,
        bits=8 * size // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        accuracy_level=ACCURACY_LEVEL,
    )
