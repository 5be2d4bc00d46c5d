"""Layer: exporters/onnx. FoX: forget gates, each of which fades what stands before it.

Gates and running sums are float64, which costs a number a token and head. A difference of two sums is taken in
float32, of their leading and of their trailing halves apart: so a short range late in a long cache has all its digits,
and no float64 is as large as the scores.
"""

from __future__ import annotations

import onnx_ir as ir

from portpe.encodings import ForgetEncoding
from portpe.exporters.onnx.bias.inputs import ScoreInputs, TokenInputs
from portpe.exporters.onnx.graph import DOUBLE, FLOAT, INT64, GraphBuilder, shape_of

END = 2**63 - 1  # of a Slice: as far as there is anything


def gates(graph: GraphBuilder, encoding: ForgetEncoding, inputs: TokenInputs) -> dict[str, ir.Value]:  # noqa: ARG001
    """``gate``, log f of each new token (batch, heads, sequence): min(z, 0) - log(1 + exp(-|z|)).

    In float64, since a graph has no log1p: 1 + exp(-|z|) of a gate near 1 would lose all of it in float32.
    """
    logits = graph.cast(inputs.project(inputs.hidden, "fgate_proj", True), DOUBLE)
    fall = graph.unary("Exp", graph.unary("Neg", graph.unary("Abs", logits)))
    fall = graph.unary("Log", graph.binary("Add", fall, graph.scalar(1.0, DOUBLE)))
    found = graph.binary("Sub", graph.binary("Min", logits, graph.scalar(0.0, DOUBLE)), fall)
    return {"gate": graph.transpose(graph.cast(found, FLOAT), 0, 2, 1)}


def forget(graph: GraphBuilder, encoding: ForgetEncoding, inputs: ScoreInputs) -> ir.Value:  # noqa: ARG001
    """The sum of log f over the slots behind the key, up to the query's own; pads add nothing."""
    gate = inputs.states["gate"]
    kept = graph.unsqueeze(inputs.kept(), 1)
    kept_gates = graph.where(kept, gate, graph.scalar(0.0, FLOAT))
    sums = graph.cast(kept_gates, DOUBLE)
    sums = graph.op("CumSum", sums, graph.scalar(2, INT64), shape=shape_of(sums))
    leading = graph.cast(sums, FLOAT)
    trailing = graph.cast(graph.binary("Sub", sums, graph.cast(leading, DOUBLE)), FLOAT)
    first, second = (_behind(graph, half, inputs) for half in (leading, trailing))
    return graph.binary("Add", first, second)


def _behind(graph: GraphBuilder, sums: ir.Value, inputs: ScoreInputs) -> ir.Value:
    """(batch, heads, sequence, total): what stands at a query's slot, one of the last, less that at a key's."""
    batch, heads, _ = shape_of(sums)
    rows = shape_of(inputs.hidden)[1]
    start = graph.unary("Neg", graph.sizes(inputs.hidden, 1))
    at_queries = graph.op("Slice", sums, start, graph.ints(END), graph.ints(2), shape=(batch, heads, rows))
    return graph.binary("Sub", graph.unsqueeze(at_queries, 3), graph.unsqueeze(sums, 2))
