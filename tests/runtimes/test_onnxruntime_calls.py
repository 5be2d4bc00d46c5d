"""ONNX Runtime on a user's own graph, and on calls that no graph may see."""

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from portpe.errors import SpecError
from portpe.runtimes.onnxruntime import OnnxRuntimeSession, open_graph
from tests.exporters.onnx.blocks import CALLS, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write
from tests.exporters.onnx.judgement import excess


def _user_graph(tmp_path, change=lambda graph: None):
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    model = onnx.load(files.path, load_external_data=False)
    change(model.graph)
    path = tmp_path / "mine.onnx"
    path.write_bytes(model.SerializeToString())
    return spec, path


def test_a_users_graph_is_run(tmp_path):
    spec, path = _user_graph(tmp_path)
    weights = random_weights(spec, "float32")
    inputs = inputs_of(spec, CALLS["chunk"], "float32")
    outputs = open_graph(path, spec, layer=LAYER).run(inputs, stages=True)
    assert outputs.stages == {}
    ratios = excess(spec, inputs, outputs, truth(spec, weights, inputs), "float32")
    assert max(ratios.values()) <= 1, ratios


def _add_input(graph):
    graph.input.append(helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["n"]))


def _drop_present(graph):
    del graph.output[2]


def _drop_mask(graph):
    """A graph whose mask is a constant."""
    graph.initializer.append(helper.make_tensor("attention_mask", TensorProto.INT64, [1, 8], [1] * 8))
    graph.input.remove(next(value for value in graph.input if value.name == "attention_mask"))


@pytest.mark.parametrize(
    ("change", "layer", "message"),
    [
        (_add_input, LAYER, "graph inputs must be attention_mask, .* alone, got cache_position besides"),
        (_drop_mask, LAYER, "graph inputs must hold attention_mask, got hidden_states, past"),
        (_drop_present, LAYER, "graph outputs must hold present.3.value, got attention_output, present.3.key"),
        (lambda graph: None, 0, "graph inputs must hold past_key_values.0.key, past_key_values.0.value, got"),
    ],
)
def test_a_users_graph_with_other_names_is_refused(change, layer, message, tmp_path):
    spec, path = _user_graph(tmp_path, change)
    with pytest.raises(SpecError, match=message):
        open_graph(path, spec, layer=layer)


def test_a_file_that_is_no_graph_is_refused(tmp_path):
    path = tmp_path / "mine.onnx"
    with pytest.raises(SpecError, match="graph must be an ONNX file, got"):
        open_graph(path, SPECS["none"])
    path.write_bytes(b"not a graph")
    with pytest.raises(
        SpecError, match=r"graph must be an ONNX file that ONNX Runtime loads, got mine\.onnx: "
    ) as caught:
        open_graph(path, SPECS["none"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "array", "message"),
    [
        ("position_ids", np.zeros((3, 4), np.int64), "position_ids must have shape (4, 3), got (3, 4)"),
        ("position_ids", np.zeros((1, 3), np.int64), "position_ids must have shape (4, 3), got (1, 3)"),
        ("attention_mask", np.ones((4, 3), np.int64), "attention_mask must have shape (4, 8), got (4, 3)"),
        ("key_position_ids", np.ones((8, 4), np.int64), "key_position_ids must have shape (4, 8), got (8, 4)"),
        ("position_ids", np.full((4, 3), -1), "position_ids must be >= 0, got -1"),
        (
            "position_ids",
            np.full((4, 3), 2**20),
            "position_ids must be < 1048576, the end of the position table, got 1048576",
        ),
    ],
)
def test_a_bad_call_is_refused_before_it_runs(field, array, message, tmp_path):
    """Ids of one row would be broadcast over the batch, and sizes that happen to be equal hide a swap."""
    spec = SPECS["all-together"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = replace(inputs_of(spec, CALLS["chunk"], "float32"), **{field: array})
    with pytest.raises(SpecError, match=re.escape(message)):
        session.run(inputs)
