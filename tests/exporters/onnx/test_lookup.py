"""A position that no row serves raises, in the graph itself, whatever a runtime checked before."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from portpe.runtimes import graph_io
from portpe.runtimes.cache_layout import CacheLayout
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CALLS, CARRIED, LAYER, SPECS, calls_of, inputs_of, random_weights
from tests.exporters.onnx.files import write
from tests.exporters.onnx.opened import sizes

# What ends where, by the written meaning: a learned or sinusoidal table of n rows and offset o serves positions
# 0..n-o-1; two-level tables serve a million positions and more; transformers' tables the trained length.
ENDS = {
    "learned": 40,
    "learned-offset": 40,
    "embedding-projection": 40,
    "sinusoidal-rows": 1499,
    "sinusoidal-interleaved": 2**20,
    "rotary-half": 2**20,
    "rotary-partial-interleaved-last": 2**20,
    "rotary-hf": 1500,
}


def feed_directly(name, position, tmp_path, run, form="portable"):
    """One position in the middle of a call, past every check of our runtimes."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form=form)
    inputs = inputs_of(spec, calls_of(spec)["arbitrary"], "float32")
    inputs.position_ids[2, 1] = position
    graph = onnx.load(files.path, load_external_data=False).graph
    layout = CacheLayout.of(spec, LAYER, {value.name: sizes(value) for value in (*graph.input, *graph.output)})
    return run(files.path, layout.as_buffers(graph_io.feeds(spec, LAYER, inputs), 3, 1))


def by_onnxruntime(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def by_reference(path, feeds):
    return ReferenceEvaluator(onnx.load(path)).run(None, feeds)


@pytest.mark.parametrize("name", ENDS)
def test_the_last_position_is_served(name, tmp_path):
    for run in (by_onnxruntime, by_reference):
        assert np.isfinite(feed_directly(name, ENDS[name] - 1, tmp_path, run)[0]).all()


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("beyond", [-1, -2, -1024, -(2**40), 0, 1, 1024, 2**40])
def test_positions_outside_raise(name, beyond, tmp_path):
    """Negative ones, which Gather would take from the table's end; and from the end on (``beyond`` counts from it)."""
    position = beyond if beyond < 0 else ENDS[name] + beyond
    with pytest.raises(Exception, match=r"indices element out of data bounds"):
        feed_directly(name, position, tmp_path, by_onnxruntime)
    with pytest.raises(IndexError):
        feed_directly(name, position, tmp_path, by_reference)


@pytest.mark.parametrize(
    ("form", "name"), [(form, name) for form, name in CARRIED if name in ENDS and form != "portable"]
)
@pytest.mark.parametrize("beyond", [-1, -1024, 0, 2**40])
def test_positions_outside_raise_in_every_form(form, name, beyond, tmp_path):
    """RotaryEmbedding gets rows, never positions: what it would do with one outside does not matter."""
    position = beyond if beyond < 0 else ENDS[name] + beyond
    assert np.isfinite(feed_directly(name, ENDS[name] - 1, tmp_path, by_onnxruntime, form)[0]).all()
    with pytest.raises(Exception, match=r"indices element out of data bounds"):
        feed_directly(name, position, tmp_path, by_onnxruntime, form)


@pytest.mark.parametrize("run", [by_onnxruntime, by_reference])
def test_gather_alone_wraps(run, tmp_path):
    """Why negatives are moved: a bare look-up gives row 3 of 4 for position -1, and raises past the end alone."""
    table = np.array([[0.0], [10.0], [20.0], [30.0]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "position"], ["row"])],
        "bare",
        [helper.make_tensor_value_info("position", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, 1])],
        [numpy_helper.from_array(table, "table")],
    )
    path = tmp_path / "bare.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    assert run(path, {"position": np.array([-1])})[0].item() == 30.0
    with pytest.raises(Exception, match="out of"):
        run(path, {"position": np.array([4])})


@pytest.mark.parametrize("name", ["rotary-half", "sinusoidal-cos-sin"])
def test_two_levels_meet_the_angle(name, tmp_path):
    """Cosines and sines of positions on both sides of a step, against angles in float64, to 2e-7."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    model = onnx.load(files.stages_path)
    stage = "rotation" if spec.rotary is not None else "embedded"
    values = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    sums = [node for node in model.graph.node if node.name.startswith(f"{stage}/") and node.op_type in ("Sub", "Add")]
    floats = [n.output[0] for n in sums if values[n.output[0]].type.tensor_type.elem_type == TensorProto.FLOAT]
    cos, sin = floats[:2]
    model.graph.output.extend([values[cos], values[sin]])
    feeds = graph_io.feeds(spec, LAYER, inputs_of(spec, CALLS["arbitrary"], "float32"))
    positions = np.array([[0, 1, 1023], [1024, 1025, 131071], [131072, 999999, 1000000], [1047552, 1048575, 7]])
    feeds["position_ids"] = positions
    session = onnxruntime.InferenceSession(_saved(model, tmp_path), providers=["CPUExecutionProvider"])
    found_cos, found_sin = session.run([cos, sin], feeds)
    pairs = found_cos.shape[-1]
    theta = spec.rotary.schedule.rope_theta if spec.rotary is not None else 10000.0
    angles = positions[..., None] * theta ** (-np.arange(pairs) / pairs)
    assert np.abs(found_cos.reshape(angles.shape) - np.cos(angles)).max() < 2e-7
    assert np.abs(found_sin.reshape(angles.shape) - np.sin(angles)).max() < 2e-7


def _saved(model, tmp_path):
    path = tmp_path / "opened.onnx"
    onnx.save(model, path)
    return str(path)


def test_tables_cover_what_they_are_given(tmp_path):
    """Fewer rows end earlier: 2048 positions here."""
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", table_set(spec, 1500))
    assert files.end == 2048
    inputs = inputs_of(spec, CALLS["arbitrary"], "float32")
    feeds = graph_io.feeds(spec, LAYER, inputs)
    inputs.position_ids[0, 0] = 2047
    by_onnxruntime(files.path, feeds)
    inputs.position_ids[0, 0] = 2048
    with pytest.raises(Exception, match="out of data bounds"):
        by_onnxruntime(files.path, feeds)
