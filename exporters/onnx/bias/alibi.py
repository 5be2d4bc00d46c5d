"""Layer: exporters/onnx. ALiBi: slope times distance."""

from __future__ import annotations

import onnx_ir as ir

from portpe.encodings import AlibiEncoding
from portpe.errors import SpecError
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder


def alibi(graph: GraphBuilder, encoding: AlibiEncoding, inputs: ScoreInputs) -> ir.Value:
    """Slope times distance. Distances are taken between integers: a product with a key's own position would
    round away the last digits of a long context.
    """
    tables, num_heads = inputs.tables, inputs.spec.num_heads
    if "slopes" not in tables:
        raise SpecError(f"tables must hold slopes, got {', '.join(tables) or 'none'}")
    if tables["slopes"].shape != (num_heads,):
        raise SpecError(f"tables.slopes must have shape ({num_heads},), got {tables['slopes'].shape}")
    slopes = graph.inline("slopes", tables["slopes"].reshape(num_heads, 1, 1), FLOAT)
    keys, queries = graph.unsqueeze(inputs.key_position_ids, 1, 2), graph.unsqueeze(inputs.position_ids, 1, 3)
    distance = graph.binary("Sub", keys, queries)
    if encoding.symmetric:
        distance = graph.unary("Neg", graph.unary("Abs", distance))
    return graph.binary("Mul", graph.cast(distance, FLOAT), slopes)
