"""Layer: exporters/onnx. T5's buckets: a trained number by distance and head."""

from __future__ import annotations

import onnx_ir as ir

from portpe.biases import buckets as numbers
from portpe.encodings import BucketsEncoding
from portpe.exporters.onnx import lookup
from portpe.exporters.onnx.bias.distances import key_minus_query, of_pairs
from portpe.exporters.onnx.bias.inputs import ScoreInputs
from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, shape_of


def buckets(graph: GraphBuilder, encoding: BucketsEncoding, inputs: ScoreInputs) -> ir.Value:
    """One bias for every distance up to ``max_distance``, which a pair of positions finds by its own: no logarithm is
    left to a runtime's rounding, and no length is fixed.
    """
    reach = encoding.max_distance
    of_distance = graph.inline("bucket_of_distance", numbers.by_distance(encoding), INT64)
    table = lookup.rows(graph, graph.external(numbers.TABLE, inputs.weights), of_distance)  # (2 * reach + 1, heads)
    distance = key_minus_query(graph, inputs.position_ids, inputs.key_position_ids)
    distance = graph.op(
        "Clip", distance, graph.scalar(-reach, INT64), graph.scalar(reach, INT64), shape=shape_of(distance)
    )
    index = graph.binary("Add", distance, graph.scalar(reach, INT64))
    return of_pairs(graph, graph.cast(graph.transpose(table, 1, 0), FLOAT), index)
