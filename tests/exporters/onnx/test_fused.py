"""The forms with a fused operator: how small they are, what stands in them, and what a branch is for."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from portpe.exporters.onnx import build
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CALLS, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.files import write
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


@pytest.mark.parametrize(("form", "most"), [("standard", 29), ("shared", 47), ("ort", 36)])
def test_a_llama_layer_is_small(form, most):
    """Four projections, two rotations, one attention; the look-up is 16 nodes of two-level tables, the rest the mask
    or the lengths.
    """
    found = [node.op_type for node in llama(form).node]
    assert found.count("MatMul") == 4
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


def test_a_branch_hides_keys_only_where_some_are_hidden(tmp_path):
    """Both branches hold the operator; the one for whole masks gets no bias, which costs time in a long prompt."""
    graph = graph_of("rotary-half", tmp_path, form="ort").graph
    [choice] = [node for node in graph.node if node.op_type == "If"]
    branches = {attribute.name: attribute.g for attribute in choice.attribute}
    biases = {}
    for name, branch in branches.items():
        [operator] = [node for node in branch.node if node.op_type == "GroupQueryAttention"]
        biases[name] = operator.input[10]
    assert biases["then_branch"] == ""
    assert biases["else_branch"] != ""
    assert len(branches["then_branch"].node) == 1


@pytest.mark.parametrize("name", ["rotary-half", "window", "sinks-softcap", "none-bidirectional"])
def test_both_branches_agree(name, tmp_path):
    """A masked slot of one batch row changes nothing in the others, though it sends all through the other branch."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form="ort")
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, CALLS["prefill"], "float32")
    whole = session.run(inputs).output
    inputs.attention_mask[3, 0] = 0
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
