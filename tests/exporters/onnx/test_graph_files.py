"""The graphs of every form as files: names, sizes, types, and nothing in them that should not be."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import portpe
from portpe.exporters.onnx import FORMS
from portpe.interface import stages_of
from portpe.weight_shapes import weight_shapes
from tests.exporters.onnx.blocks import CARRIED, LAYER, SPECS, random_weights
from tests.exporters.onnx.files import write
from tests.exporters.onnx.opened import ELEMENTS, described, graph_of, graphs, nodes, sizes, types

FLOATS = set(ELEMENTS.values())
RICH = {"portable": "all-together", "standard": "biases", "shared": "alibi-mpt", "ort": "sinks-softcap"}


@pytest.mark.parametrize(("form", "name"), CARRIED)
def test_a_strict_importer_takes_every_graph(form, name, tmp_path):
    """Checked in full, shapes and types inferred strictly; every value has both; nothing is left unused."""
    for dtype in FORMS[form].dtypes:
        files = write(tmp_path, SPECS[name], random_weights(SPECS[name], dtype), dtype, form=form)
        for path in (files.path, files.stages_path):
            onnx.checker.check_model(str(path), full_check=True)
            model = onnx.load(path, load_external_data=False)
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
            used = {each for node in nodes(model.graph) for each in node.input}
            used |= {value.name for graph in graphs(model.graph) for value in graph.output}
            for graph in graphs(model.graph):
                known = {value.name: value for value in (*graph.value_info, *graph.output)}
                for node in graph.node:
                    assert node.name
                    for output in filter(None, node.output):
                        assert known[output].type.tensor_type.HasField("shape"), output
                        assert all(sizes(known[output])), output
                    assert used & set(node.output), node.name
                assert {initializer.name for initializer in graph.initializer} <= used
            assert len({node.name for node in nodes(model.graph)}) == len(nodes(model.graph))


LATE = {name for name in SPECS if name.startswith(("by-length", "linear-"))} - {"linear-unrotated"}


@pytest.mark.parametrize(("form", "name"), CARRIED)
def test_inputs_follow_from_form_and_spec(form, name, tmp_path):
    """Ids and mask always, key positions for biases and late rotation, a past only with causality, lengths for shared
    alone; stages after the presents, those that the form has. Gates alone are cached besides keys and values.
    """
    spec = SPECS[name]
    states = ["gate"] if name.startswith("forget") else []
    cached = [f"past_key_values.{LAYER}.{part}" for part in ("key", "value", *states) if spec.causal]
    expected = ["hidden_states", "position_ids", "attention_mask"]
    expected += ["key_position_ids"] if spec.bias or name in LATE else []
    lengths = ["write_indices", "nonpad_kv_seqlen"] if form == "shared" else []
    production = graph_of(name, tmp_path, form=form)
    stages = graph_of(name, tmp_path, stages=True, form=form)
    assert list(described(production.graph.input)) == expected + cached + lengths
    assert described(production.graph.input) == described(stages.graph.input)
    presents = [f"present.{LAYER}.{part}" for part in ("key", "value", *states) if spec.causal]
    assert list(described(production.graph.output)) == ["attention_output", *presents]
    absent = {"output", *([] if form == "portable" else ["scores", "probs"])}
    extra = [stage for stage in stages_of(spec) if stage not in absent]
    assert list(described(stages.graph.output)) == ["attention_output", *presents, *extra]
    assert {node.op_type for node in nodes(stages.graph)} - {"Transpose", "Reshape", "Slice"} == {
        node.op_type for node in nodes(production.graph)
    } - {"Transpose", "Reshape", "Slice"}


@pytest.mark.parametrize("form", ["shared", "ort"])
def test_a_buffer_has_one_size(form, tmp_path):
    """Past and present are one memory; the mask is as long as the keys, not as the buffer."""
    graph = graph_of(RICH[form], tmp_path, form=form).graph
    buffer = (TensorProto.FLOAT, ["batch_size", 2, "max_sequence_length", 8])
    assert described(graph.input)["past_key_values.3.key"] == buffer
    assert described(graph.output)["present.3.key"] == buffer
    assert described(graph.input)["attention_mask"][1] == ["batch_size", "total_sequence_length"]


@pytest.mark.parametrize("form", FORMS)
def test_versions_and_metadata(form, tmp_path):
    """What made the file and from which spec; no doc strings, no paths, no stack traces."""
    model = graph_of(RICH[form], tmp_path, stages=True, form=form)
    foreign = {"ort": [("com.microsoft", 1)]}
    assert [(each.domain, each.version) for each in model.opset_import] == [
        ("", FORMS[form].opset),
        *foreign.get(form, []),
    ]
    assert model.ir_version == FORMS[form].ir_version
    assert (model.producer_name, model.doc_string, model.graph.doc_string) == ("portpe", "", "")
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    assert set(metadata) == {"portpe.form", "portpe.spec_sha256", "portpe.version"}
    assert (metadata["portpe.form"], metadata["portpe.version"]) == (form, portpe.__version__)
    assert len(metadata["portpe.spec_sha256"]) == 64
    for node in nodes(model.graph):
        assert not node.doc_string
        assert not node.metadata_props
    text = model.SerializeToString()
    assert str(tmp_path).encode() not in text
    assert str(Path(__file__).parents[3]).encode() not in text
    assert b".py" not in text


@pytest.mark.parametrize("form", FORMS)
def test_weights_lie_outside_and_tables_inside(form, tmp_path):
    """All in the outer graph, so that branches share them."""
    model = graph_of(RICH[form], tmp_path, form=form)
    outside = {tensor.name for tensor in model.graph.initializer if tensor.external_data}
    assert outside == set(weight_shapes(SPECS[RICH[form]]))
    for tensor in model.graph.initializer:
        if tensor.external_data:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            assert entries.pop("location") == "weights_float32.data"
            assert set(entries) == {"offset", "length"}
    assert not any(branch.initializer for branch in list(graphs(model.graph))[1:])
    inside = {tensor.name for tensor in model.graph.initializer} - outside
    levels = {"cos_hi", "sin_hi", "cos_lo", "sin_lo"}
    spec = SPECS[RICH[form]]
    expected = (levels if spec.rotary else set()) | ({"slopes"} if spec.bias else set())
    expected |= {f"embedding_{level}" for level in levels} if spec.embedding else set()
    assert inside >= expected


@pytest.mark.parametrize(("form", "dtype"), [(form, dtype) for form in FORMS for dtype in FORMS[form].dtypes])
@pytest.mark.parametrize("name", ["all-together", "alibi", "rotary-yarn"])
def test_tables_stay_float32_and_positions_integers(name, form, dtype, tmp_path):
    """Every float of a position comes from a row of a float32 table, or from a difference of two positions."""
    if FORMS[form].carries(SPECS[name]) is not None:
        name = "rotary-half"
    graph = graph_of(name, tmp_path, dtype, form=form).graph
    tables = [tensor for tensor in graph.initializer if tensor.name.endswith(("_hi", "_lo", "slopes"))]
    assert len(tables) == {"all-together": 9, "alibi": 1}.get(name, 4)
    assert {tensor.data_type for tensor in tables} == {TensorProto.FLOAT}
    known = types(graph)
    casts = [node for node in nodes(graph) if node.op_type == "Cast" and known[node.input[0]] == TensorProto.INT64]
    makers = {output: node.op_type for node in nodes(graph) for output in node.output}
    to_float = [makers[node.input[0]] for node in casts if known[node.output[0]] in FLOATS]
    assert to_float == (["Sub"] if SPECS[name].bias else [])  # the distance
    assert not {"Sin", "Cos", "Pow", "Exp"} & {node.op_type for node in nodes(graph)}


@pytest.mark.parametrize("name", ["rotary-hf", "all-together", "learned", "alibi"])
@pytest.mark.parametrize(("form", "dtype"), [(form, dtype) for form in FORMS for dtype in FORMS[form].dtypes])
def test_constants_are_finite_in_their_type(form, dtype, name, tmp_path):
    """A mask value that is finite in float32 alone would be infinite here. A fused operator takes minus infinity for
    a key that is hidden by a bias, and that is the one exception.
    """
    if FORMS[form].carries(SPECS[name]) is not None:
        name = "rotary-half"
    graph = graph_of(name, tmp_path, dtype, form=form).graph
    for tensor in graph.initializer:
        if not tensor.external_data:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            hides = form != "portable" and values.shape == () and values == -np.inf
            assert hides or np.isfinite(values).all(), tensor.name
