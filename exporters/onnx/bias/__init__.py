"""Layer: exporters/onnx. What each bias-site encoding adds to the scores, and to the context; in float32. One module a
kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from portpe.encodings import BiasEncoding
from portpe.exporters.onnx.bias.alibi import alibi
from portpe.exporters.onnx.bias.buckets import axis_buckets, buckets, gated_buckets
from portpe.exporters.onnx.bias.cope import cope
from portpe.exporters.onnx.bias.deberta import deberta
from portpe.exporters.onnx.bias.distance_bank import distance_bank
from portpe.exporters.onnx.bias.forget import forget, gates
from portpe.exporters.onnx.bias.functions import fire, kerple, sandwich
from portpe.exporters.onnx.bias.grid import grid_network, grid_table, grid_vectors
from portpe.exporters.onnx.bias.inputs import ScoreInputs, TokenInputs
from portpe.exporters.onnx.bias.shaw import shaw, shaw_values
from portpe.exporters.onnx.bias.transformer_xl import transformer_xl
from portpe.exporters.onnx.graph import GraphBuilder

__all__ = ["ScoreInputs", "TokenInputs", "additive", "new_states", "value_term"]


def additive(graph: GraphBuilder, encoding: BiasEncoding, inputs: ScoreInputs) -> ir.Value:
    """(1 | batch, heads, sequence, total) in float32, whatever the graph's type."""
    return _BIASES[encoding.kind](graph, encoding, inputs)


def new_states(graph: GraphBuilder, encoding: BiasEncoding, inputs: TokenInputs) -> dict[str, ir.Value]:
    """What this call's tokens add to a cache, (batch, numbers of a token, sequence) in float32, by the names of the
    encoding's ``cached_states``; nothing for most.
    """
    return _STATES[encoding.kind](graph, encoding, inputs) if encoding.kind in _STATES else {}


def value_term(graph: GraphBuilder, encoding: BiasEncoding, probs: ir.Value, inputs: ScoreInputs) -> ir.Value:
    """(batch, heads, sequence, v_head_dim) in float32, of an encoding that reads ``probs``."""
    return _VALUE_TERMS[encoding.kind](graph, encoding, probs, inputs)


_BIASES: dict[str, Callable[[GraphBuilder, Any, ScoreInputs], ir.Value]] = {
    "alibi": alibi,
    "axis_buckets": axis_buckets,
    "buckets": buckets,
    "cope": cope,
    "deberta": deberta,
    "distance_bank": distance_bank,
    "fire": fire,
    "forget": forget,
    "gated_buckets": gated_buckets,
    "grid_network": grid_network,
    "grid_table": grid_table,
    "grid_vectors": grid_vectors,
    "kerple": kerple,
    "sandwich": sandwich,
    "shaw": shaw,
    "transformer_xl": transformer_xl,
}
_STATES: dict[str, Callable[[GraphBuilder, Any, TokenInputs], dict[str, ir.Value]]] = {"forget": gates}
_VALUE_TERMS: dict[str, Callable[[GraphBuilder, Any, ir.Value, ScoreInputs], ir.Value]] = {"shaw": shaw_values}
