"""Layer: exporters/onnx. Products with a projection's weight, stored in the graph's type or in 4 or 8 bits.

``convolution`` is another way to the same numbers, for a runtime that is faster with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from portpe.exporters.onnx.graph import MICROSOFT, UINT8, GraphBuilder, shape_of
from portpe.exporters.onnx.quantization import ACCURACY_LEVEL, BLOCK_SIZE, PARTS
from portpe.exporters.onnx.weights import ExternalWeight

BLOCK = 16  # channels: the widest block that ONNX Runtime lays filters out in
SMALLEST_CONVOLUTION = 2**20  # elements: below, weights stay in the caches, and the product is as fast


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


def fits_convolution(names: Sequence[str], weights: Mapping[str, ExternalWeight]) -> bool:
    """Whether ``convolution`` of these weights is what ONNX Runtime lays out in blocks, and large enough to gain."""
    found = [weights[name] for name in names if name in weights]
    if len(found) < len(names) or any(weight.dtype != "float32" for weight in found):
        return False
    widths = {size for weight in found for size in weight.shape}
    elements = sum(math.prod(weight.shape) for weight in found)
    return all(width % BLOCK == 0 for width in widths) and elements >= SMALLEST_CONVOLUTION


def convolution(
    graph: GraphBuilder, value: ir.Value, names: Sequence[str], weights: Mapping[str, ExternalWeight]
) -> tuple[ir.Value, ...]:
    """``value`` (batch, sequence, in) times each weight of these names, (in, out), as one convolution of a point.

    Tokens are its pixels. ONNX Runtime lays a constant filter out in blocks when it loads the graph, and reads it at
    the speed of memory, which its matrix product does not. The filter is made of the weights where they lie: what
    turns and joins them is folded at the same time.
    """
    batch, sequence, _ = shape_of(value)
    pixels = graph.transpose(graph.unsqueeze(value, 0), 0, 3, 1, 2)  # all of one image: the filter is read once
    parts = [graph.transpose(graph.external(name, weights), 1, 0) for name in names]
    sizes = [weights[name].shape[1] for name in names]
    joined = parts[0] if len(parts) == 1 else graph.concat(parts, axis=0, size=sum(sizes))
    found = graph.op("Conv", pixels, graph.unsqueeze(joined, 2, 3), shape=(1, sum(sizes), batch, sequence))
    tokens = graph.op("Squeeze", graph.transpose(found, 0, 2, 3, 1), graph.ints(0), shape=(batch, sequence, sum(sizes)))
    return (tokens,) if len(parts) == 1 else graph.split(tokens, sizes, axis=2)
