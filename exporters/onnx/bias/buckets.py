"""Layer: exporters/onnx. T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import onnx_ir as ir

from portpe.biases import buckets as numbers
from portpe.encodings import BucketsEncoding
from portpe.exporters.onnx.bias.by_distance import of_pairs, rows_of
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, GraphBuilder


def buckets(graph: GraphBuilder, encoding: BucketsEncoding, inputs: ScoreInputs) -> ir.Value:
    """The bucket of every distance up to ``max_distance`` stands in the graph: no logarithm is left to a runtime's
    rounding, and no length is fixed.
    """
    table = graph.cast(graph.external(numbers.TABLE, inputs.weights), FLOAT)
    return of_pairs(graph, graph.transpose(table, 1, 0), rows_of(graph, inputs, numbers.distance_rows(encoding)))
