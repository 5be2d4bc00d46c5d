"""The forms with a fused operator: how small they are, what stands in them, and what a branch is for."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from portpe.encodings import AlibiEncoding
from portpe.exporters.onnx import build
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CALLS, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write
from tests.exporters.onnx.judgement import excess
from tests.exporters.onnx.opened import graph_of, nodes
from tests.exporters.onnx.test_build import LLAMA_3_1, places_of

FUSED = {"standard": "Attention", "shared": "Attention", "ort": "GroupQueryAttention"}


def llama(form):
    graph = build(
        LLAMA_3_1,
        form=form,
        dtype="float32",
        layer=0,
        tables=table_set(LLAMA_3_1),
        weights=places_of(LLAMA_3_1, "float32"),
    )
    return onnx.load_from_string(graph).graph


@pytest.mark.parametrize(("form", "most"), [("standard", 29), ("shared", 47), ("ort", 51)])
def test_a_llama_layer_is_small(form, most):
    """Four projections, two rotations, one attention; the look-up is 16 nodes of two-level tables, the rest the mask
    or the lengths. In ``ort`` q, k and v are one convolution; what lays tokens and weights out for it is 17 nodes, 8 of
    which are gone once the graph is loaded.
    """
    found = [node.op_type for node in llama(form).node]
    assert (found.count("MatMul"), found.count("Conv")) == ((0, 2) if form == "ort" else (4, 0))
    assert found.count("RotaryEmbedding") == 2
    assert len(found) <= most


@pytest.mark.parametrize("form", ["standard", "ort"])
@pytest.mark.parametrize("name", ["rotary-half", "biases", "window"])
def test_heads_are_never_moved(name, form, tmp_path):
    """Tokens in, tokens out: no Transpose, no Reshape, and keys are not repeated."""
    found = {node.op_type for node in nodes(graph_of(name, tmp_path, form=form).graph)}
    assert not found & {"Transpose", "Reshape", "Tile"}


@pytest.mark.parametrize("form", FUSED)
def test_what_attention_is_told(form, tmp_path):
    """The scale is the spec's own: an absent one would be one over the root of head_dim."""
    spec = SPECS["softcap"]
    [node] = {
        n.op_type: n for n in nodes(graph_of("softcap", tmp_path, form=form).graph) if n.op_type == FUSED[form]
    }.values()
    told = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert told["scale"] == pytest.approx(spec.scale, rel=1e-6)
    assert told["softcap"] == spec.softcap
    assert told.get("is_causal", 0) == (form == "standard")  # in shared the mask says it
    assert told.get("do_rotary", 0) == 0


def test_windows_by_the_rule_of_each_operator(tmp_path):
    """GroupQueryAttention counts the query itself; the standard's attribute, from opset 25 on, would not."""
    [node, *_] = [n for n in nodes(graph_of("window", tmp_path, form="ort").graph) if n.op_type == FUSED["ort"]]
    told = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert told["local_window_size"] == SPECS["window"].window
    for form in ("standard", "shared"):
        for node in nodes(graph_of("window", tmp_path, form=form).graph):
            if node.op_type == FUSED[form]:
                told = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
                assert not told.get("is_causal")
                assert "left_window_size" not in told


def branches_of(graph):
    [choice] = [node for node in graph.node if node.op_type == "If"]
    found = {attribute.name: attribute.g for attribute in choice.attribute}
    return found["then_branch"], found["else_branch"]


def test_a_branch_hides_keys_only_where_some_are_hidden(tmp_path):
    """All branches hold the operator; those for whole masks get no bias, which costs time in a long prompt."""
    row, rows = branches_of(graph_of("rotary-half", tmp_path, form="ort").graph)
    whole, holed = branches_of(rows)
    operators = {}
    for name, branch in (("row", row), ("whole", whole), ("holed", holed)):
        [operators[name]] = [node for node in branch.node if node.op_type == "GroupQueryAttention"]
    assert {name: bool(operator.input[10]) for name, operator in operators.items()} == {
        "row": False,
        "whole": False,
        "holed": True,
    }
    assert [node.op_type for node in row.node] == ["Mul", "GroupQueryAttention"]
    assert [node.op_type for node in whole.node] == ["Shape", "Cast", "Expand", "GroupQueryAttention"]


@pytest.mark.parametrize(
    ("changes", "dtype", "ifs"),
    [
        ({}, "float32", 2),
        ({}, "float16", 1),
        ({"head_dim": 128, "v_head_dim": 128}, "float32", 1),
        ({"head_dim": 128, "v_head_dim": 128, "sinks": True}, "float32", 2),
        ({"causal": False}, "float32", 1),
        ({"bias": (AlibiEncoding(),)}, "float32", 0),
    ],
)
def test_one_row_has_a_branch_where_it_is_faster(changes, dtype, ifs):
    spec = SPECS["none"].model_copy(update=changes)
    serialized = build(spec, form="ort", dtype=dtype, layer=0, tables=table_set(spec), weights=places_of(spec, dtype))
    assert [node.op_type for node in nodes(onnx.load_from_string(serialized).graph)].count("If") == ifs


def test_sinks_that_weighed_something_would_be_found(tmp_path):
    """The judgement that the forms pass sees them: it is the most negative number that makes them weightless."""
    spec, weights = SPECS["rotary-half"], random_weights(SPECS["rotary-half"], "float32")
    files = write(tmp_path, spec, weights, "float32", form="ort")
    model = onnx.load(files.path, load_external_data=False)
    [sinks] = [tensor for tensor in model.graph.initializer if tensor.name == "weightless_sinks"]
    assert (onnx.numpy_helper.to_array(sinks) == np.finfo(np.float32).min).all()
    sinks.CopyFrom(onnx.numpy_helper.from_array(np.zeros(6, np.float32), sinks.name))
    files.path.write_bytes(model.SerializeToString())
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
    inputs = inputs_of(spec, CALLS["decode"], "float32")
    assert excess(spec, inputs, session.run(inputs), truth(spec, weights, inputs), "float32")["output"] > 100


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("rotary-half", "prefill"),
        ("window", "prefill"),
        ("sinks-softcap", "prefill"),
        ("none-bidirectional", "prefill"),
        ("rotary-half", "decode"),
        ("window", "decode"),
        ("softcap", "decode"),
        ("sinks-softcap", "decode"),
    ],
)
def test_branches_agree(name, call, tmp_path):
    """A masked slot of one batch row changes nothing in the others, though it sends all through another branch."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form="ort")
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, CALLS[call], "float32")
    whole = session.run(inputs).output
    inputs.attention_mask[3, -2 if call == "decode" else 0] = 0  # a slot that a window sees too
    holed = session.run(inputs).output
    np.testing.assert_allclose(holed[:3], whole[:3], rtol=0, atol=1e-6 * np.abs(whole).max())
    assert np.abs(holed[3] - whole[3]).max() > 1e-3


@pytest.mark.parametrize(("name", "operators"), [("rotary-half", 2), ("alibi", 2), ("none-multi-head", 1)])
def test_one_row_takes_the_heads_of_a_group_as_rows(name, operators, tmp_path):
    """A branch of ``shared``, where heads share keys; two rows go the other way, and each is as it is alone."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form="shared")
    found = nodes(onnx.load(files.path, load_external_data=False).graph)
    assert [node.op_type for node in found].count("Attention") == operators
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, CALLS["chunk"], "float32")
    together = session.run(inputs)
    past, row_by_row = inputs.past, []
    for row in range(3):
        one = replace(
            inputs,
            hidden_states=inputs.hidden_states[:, row : row + 1],
            position_ids=inputs.position_ids[:, row : row + 1],
            attention_mask=inputs.attention_mask[:, : past + row + 1],
            key_position_ids=inputs.key_position_ids[:, : past + row + 1],
            past_key=together.present_key[:, :, : past + row],
            past_value=together.present_value[:, :, : past + row],
        )
        row_by_row.append(session.run(one).output[:, 0])
    largest = np.abs(together.output).max()
    np.testing.assert_allclose(np.stack(row_by_row, axis=1), together.output, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("form", FUSED)
def test_stages_change_no_number(form, tmp_path):
    spec = SPECS["q-k-norm-after"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form=form)
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, CALLS["chunk"], "float32")
    np.testing.assert_array_equal(session.run(inputs).output, session.run(inputs, stages=True).output)


def test_the_kernels_are_those_the_table_speaks_of():
    """Types of the CPU's kernels: float32 and float16, no bfloat16, for each fused operator."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found = {}
    for kernel in get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.op_name in (
            "Attention",
            "RotaryEmbedding",
            "GroupQueryAttention",
        ):
            if kernel.op_name == "Attention" and kernel.domain:
                continue
            constraint = kernel.type_constraints.get("T") or kernel.type_constraints["T1"]
            found.setdefault(kernel.op_name, set()).update(constraint)
    assert set(found) == {"Attention", "RotaryEmbedding", "GroupQueryAttention"}
    assert all(kinds == {"tensor(float)", "tensor(float16)"} for kinds in found.values())
    assert onnxruntime.__version__
