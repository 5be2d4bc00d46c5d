"""Layer: exporters/onnx. Biases that are functions of the distance: KERPLE, FIRE and Sandwich; all in float32."""

from __future__ import annotations

import onnx_ir as ir

from portpe.biases import functions
from portpe.encodings import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.bias.by_distance import distance
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder, shape_of


def kerple(graph: GraphBuilder, encoding: KerpleEncoding, inputs: ScoreInputs) -> ir.Value:
    """-r1 log(1 + r2 d) or -r1 d^r2."""
    heads = inputs.spec.num_heads
    r1, r2 = (
        graph.reshape(_own(graph, inputs, f"kerple_{name}"), [heads, 1, 1], (heads, 1, 1)) for name in ("r1", "r2")
    )
    apart = graph.unsqueeze(_apart(graph, inputs), 1)
    if encoding.form == "logarithmic":
        grown = _log_of_one_and(graph, graph.binary("Mul", r2, apart))
    else:
        grown = graph.binary("Pow", apart, r2)
    return graph.binary("Mul", graph.unary("Neg", r1), grown)


def fire(graph: GraphBuilder, encoding: FireEncoding, inputs: ScoreInputs) -> ir.Value:
    """W2 relu(W1 x + b1) + b2, x = log(c d + 1) / (log(c max(i, L) + 1) + epsilon)."""
    c, threshold = (graph.unary("Abs", _own(graph, inputs, f"fire_{name}")) for name in ("c", "threshold"))
    place = graph.binary("Max", graph.cast(inputs.position_ids, FLOAT), threshold)
    normal = _log_of_one_and(graph, graph.binary("Mul", place, c))
    if encoding.epsilon:
        normal = graph.binary("Add", normal, graph.scalar(encoding.epsilon, FLOAT))
    numerator = _log_of_one_and(graph, graph.binary("Mul", _apart(graph, inputs), c))
    x = graph.unsqueeze(graph.binary("Div", numerator, graph.unsqueeze(normal, 2)), 3)
    first, second = (graph.transpose(_own(graph, inputs, f"fire_{name}.weight"), 1, 0) for name in ("in", "out"))
    hidden = graph.binary("Add", graph.binary("Mul", x, first), _own(graph, inputs, "fire_in.bias"))
    heads_last = graph.matmul(graph.unary("Relu", hidden), second)
    heads_last = graph.binary("Add", heads_last, _own(graph, inputs, "fire_out.bias"))
    return graph.transpose(heads_last, 0, 3, 1, 2)


def sandwich(graph: GraphBuilder, encoding: SandwichEncoding, inputs: ScoreInputs) -> ir.Value:
    """8 h / H times the product of the two tokens' sinusoids: a product of matrices, not a row for each distance."""
    width = encoding.width
    queries, keys = (
        graph.unsqueeze(
            graph.concat(lookup.cos_sin(graph, inputs.tables, ids, prefix="relative_"), axis=2, size=width), 1
        )
        for ids in (inputs.position_ids, inputs.key_position_ids)
    )
    total = graph.matmul(queries, graph.transpose(keys, 0, 1, 3, 2))
    ratios = functions.ratios(inputs.spec.num_heads).reshape(-1, 1, 1)
    return graph.binary("Mul", total, graph.inline("sandwich_ratios", ratios, FLOAT))


def _own(graph: GraphBuilder, inputs: ScoreInputs, name: str) -> ir.Value:
    return graph.cast(graph.external(name, inputs.weights), FLOAT)


def _apart(graph: GraphBuilder, inputs: ScoreInputs) -> ir.Value:
    """(batch, sequence, total): distances, whichever of the two stands first, in float32."""
    return graph.cast(graph.unary("Abs", distance(graph, inputs)), FLOAT)


def _log_of_one_and(graph: GraphBuilder, value: ir.Value) -> ir.Value:
    one = graph.binary("Add", value, graph.scalar(1.0, FLOAT))
    return graph.op("Log", one, shape=shape_of(one))
