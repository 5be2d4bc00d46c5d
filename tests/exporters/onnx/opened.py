"""A graph of a form as onnx reads it, and what its values are."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from tests.exporters.onnx.blocks import SPECS, random_weights
from tests.exporters.onnx.files import write

ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def graph_of(name, tmp_path, dtype="float32", stages=False, form="portable"):
    files = write(tmp_path, SPECS[name], random_weights(SPECS[name], dtype), dtype, form=form)
    return onnx.load(files.stages_path if stages else files.path, load_external_data=False)


def sizes(value):
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def described(values):
    return {value.name: (value.type.tensor_type.elem_type, sizes(value)) for value in values}


def graphs(graph):
    """The graph and the branches in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def nodes(graph):
    """Every node, also in branches."""
    return [node for each in graphs(graph) for node in each.node]


def types(graph):
    """The element type of every value by name, also in branches."""
    found = {}
    for each in graphs(graph):
        found |= {tensor.name: tensor.data_type for tensor in each.initializer}
        found |= {name: kind for name, (kind, _) in described([*each.input, *each.output, *each.value_info]).items()}
    return found
