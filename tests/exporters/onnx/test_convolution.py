"""Projections of ``ort`` as convolutions: the same numbers from the same weights, where that is faster."""

import platform

import numpy as np
import onnx
import onnxruntime
import pytest

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.exporters.onnx import build, projection
from portpe.layer_parts import Norm, ProjectionBiases
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.spec import AttentionSpec
from tests.exporters.onnx.blocks import LAYER, calls_of, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write
from tests.exporters.onnx.judgement import excess
from tests.exporters.onnx.opened import nodes
from tests.exporters.onnx.test_build import LLAMA_3_1, places_of

BLOCKED = AttentionSpec(  # every width another multiple of 16
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    v_head_dim=16,
    scale=0.3,
    clip_qkv=4.0,
    biases=ProjectionBiases(q=True, v=True, o=True),
    q_norm=Norm(kind="rms", eps=1e-6),
    k_norm=Norm(kind="rms", eps=1e-6),
    rotary=RotaryEncoding(width=16, schedule=DefaultSchedule(rope_theta=500000.0)),
)


@pytest.fixture
def small(monkeypatch):
    """As if small weights gained too."""
    monkeypatch.setattr(projection, "SMALLEST_CONVOLUTION", 1)


def operators(spec, dtype="float32", form="ort"):
    serialized = build(spec, form=form, dtype=dtype, layer=0, tables={}, weights=places_of(spec, dtype))
    return [node.op_type for node in nodes(onnx.load_from_string(serialized).graph)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_numbers_are_those_of_the_definition(level, tmp_path):
    """Batches, chunks, decode steps and pads, at each optimisation level; stages too."""
    weights = random_weights(BLOCKED, "float32")
    files = write(tmp_path, BLOCKED, weights, "float32", form="ort")
    assert [node.op_type for node in nodes(onnx.load(files.path, load_external_data=False).graph)].count("Conv") == 2
    session = OnnxRuntimeSession(BLOCKED, LAYER, files.path, files.stages_path, files.end, optimization=level)
    for name, call in calls_of(BLOCKED).items():
        inputs = inputs_of(BLOCKED, call, "float32")
        ratios = excess(BLOCKED, inputs, session.run(inputs, stages=True), truth(BLOCKED, weights, inputs), "float32")
        assert max(ratios.values()) <= 1, (name, ratios)


@pytest.mark.usefixtures("small")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="what a layout is called and whether there is one differs")
def test_the_loaded_graph_has_blocked_filters_and_lays_nothing_out_anew(tmp_path):
    """Weights are turned and joined once, when the graph is loaded; tokens are not transposed at all."""
    files = write(tmp_path, BLOCKED, random_weights(BLOCKED, "float32"), "float32", form="ort")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(files.path), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    found = [(node.domain, node.op_type) for node in graph.node]
    assert found.count(("com.microsoft.nchwc", "Conv")) == 2
    assert not {name for _, name in found} & {"Transpose", "Concat", "MatMul"}


@pytest.mark.parametrize(
    ("changes", "dtype", "convolutions", "products"),
    [
        ({}, "float32", 2, 0),
        ({}, "float16", 0, 4),
        ({"hidden_size": 4096 + 8}, "float32", 0, 4),  # no multiple of a block
        ({"hidden_size": 64, "num_heads": 8, "num_kv_heads": 2}, "float32", 0, 4),  # small
        ({"hidden_size": 1024, "num_heads": 4, "num_kv_heads": 2}, "float32", 1, 1),  # o_proj is small
    ],
)
def test_only_large_blocks_in_float32_are_convolutions(changes, dtype, convolutions, products):
    spec = LLAMA_3_1.model_copy(update={**changes, "rotary": None})
    found = operators(spec, dtype)
    assert (found.count("Conv"), found.count("MatMul")) == (convolutions, products)
    assert "Conv" not in operators(spec, dtype, "standard")


def test_weights_are_those_of_every_form():
    """The one file serves all: a convolution reads the same bytes at the same places."""
    spec = LLAMA_3_1.model_copy(update={"rotary": None})
    places = {}
    for form in ("portable", "ort"):
        serialized = build(spec, form=form, dtype="float32", layer=0, tables={}, weights=places_of(spec, "float32"))
        places[form] = {
            tensor.name: sorted((entry.key, entry.value) for entry in tensor.external_data)
            for tensor in onnx.load_model_from_string(serialized).graph.initializer
            if tensor.external_data
        }
    assert places["ort"] == places["portable"]
    assert len(places["ort"]) == 4


def test_a_filter_is_read_once_for_a_whole_batch(tmp_path):
    """All tokens are pixels of one image: as several images, each would read the weights again."""
    spec = LLAMA_3_1.model_copy(update={"rotary": None})
    serialized = build(spec, form="ort", dtype="float32", layer=0, tables={}, weights=places_of(spec, "float32"))
    graph = onnx.load_model_from_string(serialized).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.value_info
    }
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert {tuple(shapes[node.input[0]]) for node in convolutions} == {(1, 4096, "batch_size", "sequence_length")}
    assert [np.prod(shapes[node.input[1]]) for node in convolutions] == [6144 * 4096, 4096 * 4096]
