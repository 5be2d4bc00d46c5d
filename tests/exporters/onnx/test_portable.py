"""The portable graph as a file: names, sizes, types, and nothing in it that should not be."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import portpe
from portpe.interface import stages_of
from portpe.spec import weight_shapes
from tests.exporters.onnx.blocks import LAYER, SPECS, random_weights
from tests.exporters.onnx.files import write

ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def graph_of(name, tmp_path, dtype="float32", stages=False):
    files = write(tmp_path, SPECS[name], random_weights(SPECS[name], dtype), dtype)
    return onnx.load(files.stages_path if stages else files.path, load_external_data=False)


def sizes(value):
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def described(values):
    return {value.name: (value.type.tensor_type.elem_type, sizes(value)) for value in values}


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("name", SPECS)
def test_a_strict_importer_takes_every_graph(name, dtype, tmp_path):
    """Checked in full, shapes and types inferred strictly; every value has both; nothing is left unused."""
    files = write(tmp_path, SPECS[name], random_weights(SPECS[name], dtype), dtype)
    for path in (files.path, files.stages_path):
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(path, load_external_data=False)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        graph = model.graph
        known = {value.name: value for value in (*graph.value_info, *graph.output)}
        used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        for node in graph.node:
            assert node.name
            for output in node.output:
                assert known[output].type.tensor_type.HasField("shape"), output
                assert all(sizes(known[output])), output
            assert used & set(node.output), node.name
        assert {initializer.name for initializer in graph.initializer} <= used
        assert len({node.name for node in graph.node}) == len(graph.node)


def test_the_names_of_a_cached_graph(tmp_path):
    model = graph_of("all-together", tmp_path, "float16")
    half, whole = TensorProto.FLOAT16, TensorProto.INT64
    batch, sequence, past, total = (
        "batch_size",
        "sequence_length",
        "past_sequence_length",
        "total_sequence_length",
    )
    assert list(described(model.graph.input).items()) == [
        ("hidden_states", (half, [batch, sequence, 20])),
        ("position_ids", (whole, [batch, sequence])),
        ("attention_mask", (whole, [batch, total])),
        ("key_position_ids", (whole, [batch, total])),
        ("past_key_values.3.key", (half, [batch, 2, past, 8])),
        ("past_key_values.3.value", (half, [batch, 2, past, 5])),
    ]
    assert list(described(model.graph.output).items()) == [
        ("attention_output", (half, [batch, sequence, 20])),
        ("present.3.key", (half, [batch, 2, total, 8])),
        ("present.3.value", (half, [batch, 2, total, 5])),
    ]


@pytest.mark.parametrize("name", SPECS)
def test_inputs_follow_from_the_spec(name, tmp_path):
    """Ids and mask always, key positions for biases alone, a past only with causality; stages after the presents."""
    spec = SPECS[name]
    cached = [f"past_key_values.{LAYER}.key", f"past_key_values.{LAYER}.value"] if spec.causal else []
    expected = ["hidden_states", "position_ids", "attention_mask"]
    expected += ["key_position_ids"] if spec.bias else []
    production, stages = graph_of(name, tmp_path), graph_of(name, tmp_path, stages=True)
    assert list(described(production.graph.input)) == expected + cached
    assert described(production.graph.input) == described(stages.graph.input)
    presents = [f"present.{LAYER}.key", f"present.{LAYER}.value"] if spec.causal else []
    assert list(described(production.graph.output)) == ["attention_output", *presents]
    extra = [stage for stage in stages_of(spec) if stage != "output"]
    assert list(described(stages.graph.output)) == ["attention_output", *presents, *extra]
    assert production.graph.node == stages.graph.node


def test_onnxruntime_sees_inputs_that_nothing_uses(tmp_path):
    files = write(tmp_path, SPECS["none"], random_weights(SPECS["none"], "float32"), "float32")
    session = onnxruntime.InferenceSession(str(files.path), providers=["CPUExecutionProvider"])
    assert "position_ids" in [value.name for value in session.get_inputs()]


def test_versions_and_metadata(tmp_path):
    """What made the file and from which spec; no doc strings, no paths, no stack traces."""
    model = graph_of("all-together", tmp_path, stages=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    assert model.ir_version == 10
    assert (model.producer_name, model.doc_string, model.graph.doc_string) == ("portpe", "", "")
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    assert set(metadata) == {"portpe.form", "portpe.spec_sha256", "portpe.version"}
    assert metadata["portpe.version"] == portpe.__version__
    assert len(metadata["portpe.spec_sha256"]) == 64
    for node in model.graph.node:
        assert not node.doc_string
        assert not node.metadata_props
    text = model.SerializeToString()
    assert str(tmp_path).encode() not in text
    assert str(Path(__file__).parents[3]).encode() not in text
    assert b".py" not in text


def test_weights_lie_outside_and_tables_inside(tmp_path):
    model = graph_of("all-together", tmp_path)
    outside = {tensor.name for tensor in model.graph.initializer if tensor.external_data}
    assert outside == set(weight_shapes(SPECS["all-together"]))
    for tensor in model.graph.initializer:
        if tensor.external_data:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            assert entries.pop("location") == "weights_float32.data"
            assert set(entries) == {"offset", "length"}
    inside = {tensor.name for tensor in model.graph.initializer} - outside
    levels = {"cos_hi", "sin_hi", "cos_lo", "sin_lo"}
    assert inside >= levels | {f"embedding_{level}" for level in levels} | {"slopes"}


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_tables_stay_float32_and_positions_integers(dtype, tmp_path):
    """Every float of a position comes from a row of a float32 table, or from a difference of two positions."""
    graph = graph_of("all-together", tmp_path, dtype).graph
    tables = {tensor.name: tensor for tensor in graph.initializer if tensor.name.endswith(("_hi", "_lo", "slopes"))}
    assert len(tables) == 9
    assert {tensor.data_type for tensor in tables.values()} == {TensorProto.FLOAT}
    types = described([*graph.input, *graph.value_info, *graph.output])
    casts = [node for node in graph.node if node.op_type == "Cast" and types[node.input[0]][0] == TensorProto.INT64]
    assert [node.input[0] for node in casts] == ["scores/Sub"]  # the distance, under the bias
    assert not {"Sin", "Cos", "Pow", "Exp"} & {node.op_type for node in graph.node}


@pytest.mark.parametrize("name", ["rotary-half", "none-multi-query", "all-together"])
def test_keys_and_values_are_not_repeated(name, tmp_path):
    """Groups of query heads become rows: no product has as many key heads as query heads."""
    spec, graph = SPECS[name], graph_of(name, tmp_path).graph
    shapes = described([*graph.input, *graph.value_info, *graph.output])
    products = [node for node in graph.node if node.op_type == "MatMul" and len(shapes[node.output[0]][1]) == 4]
    assert len(products) == 2
    for node in products:
        assert {shapes[name][1][1] for name in (*node.input, *node.output)} == {spec.num_kv_heads}
    expanded = [node.output[0] for node in graph.node if node.op_type in ("Expand", "Tile")]
    assert all(sizes[-1] == 1 for sizes in (shapes[name][1] for name in expanded))  # sinks: one column


def test_range_takes_scalars(tmp_path):
    graph = graph_of("window", tmp_path).graph
    shapes = described(graph.value_info) | {t.name: (t.data_type, list(t.dims)) for t in graph.initializer}
    ranges = [node for node in graph.node if node.op_type == "Range"]
    assert len(ranges) == 2
    assert all(shapes[name][1] == [] for node in ranges for name in node.input)


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("name", ["rotary-hf", "all-together", "learned"])
def test_every_constant_is_finite_in_its_type(name, dtype, tmp_path):
    """A mask value that is finite in float32 alone would be infinite here."""
    graph = graph_of(name, tmp_path, dtype).graph
    for tensor in graph.initializer:
        if not tensor.external_data:
            assert np.isfinite(numpy_helper.to_array(tensor).astype(np.float64)).all(), tensor.name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_graph_without_its_casts_is_refused(dtype, tmp_path):
    """Float32 cosines times queries of another type: a type error, which the casts of the graph prevent."""
    model = graph_of("rotary-half", tmp_path, dtype)
    casts = [node for node in model.graph.node if node.op_type == "Cast" and node.name.startswith("rotation/")]
    assert len(casts) == 2
    for cast in casts:
        for node in model.graph.node:
            node.input[:] = [cast.input[0] if name == cast.output[0] else name for name in node.input]
        model.graph.node.remove(cast)
    with pytest.raises(Exception, match=r"(?i)type"):
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    path = tmp_path / "uncast.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match="Type Error"):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
