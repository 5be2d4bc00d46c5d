"""Masks: by cache slot, aligned at the end, before the softmax and after the softcap; a row without keys is 0."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from portpe.interface import DTYPES
from portpe.runtimes.onnx_reference import OnnxReferenceSession
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from tests.exporters.onnx.blocks import CALLS, CARRIED, LAYER, SPECS, Call, inputs_of, random_weights
from tests.exporters.onnx.definition import sees
from tests.exporters.onnx.files import write

SESSIONS = {"onnxruntime": OnnxRuntimeSession, "onnx-reference": OnnxReferenceSession}
MASKED = ["none", "window", "window-radius", "none-bidirectional", "softcap", "sinks-window", "alibi-symmetric"]


def open_session(runtime, spec, dtype, tmp_path, form="portable"):
    files = write(tmp_path, spec, random_weights(spec, dtype), dtype, form=form)
    return SESSIONS[runtime](spec, LAYER, files.path, files.stages_path, files.end)


@pytest.mark.parametrize("runtime", SESSIONS)
@pytest.mark.parametrize("name", MASKED)
def test_keys_are_seen_by_slot(name, runtime, tmp_path):
    """Exactly the keys of the rule have a share, whatever their positions; masked keys have 0, not little."""
    spec = SPECS[name]
    session = open_session(runtime, spec, "float32", tmp_path)
    call = Call(((8, 9, 3), (2, 0, 1)), ((5, 6, 7, 30), (9, 9, 9, 9)), pads=(0, 2))
    if not spec.causal:
        call = replace(call, positions=((8, 9, 3, 4, 7), (0, 0, 2, 0, 1)), past_positions=())
    inputs = inputs_of(spec, call, "float32")
    probs = session.run(inputs, stages=True).stages["probs"]
    batch, _, sequence, total = probs.shape
    for b, row, slot in np.ndindex(batch, sequence, total):
        expected = sees(spec, inputs, b, row, slot)
        assert ((probs[b, :, row, slot] > 0) == expected).all(), (b, row, slot)


@pytest.mark.parametrize("runtime", SESSIONS)
def test_one_query_behind_a_cache_sees_all_of_it(runtime, tmp_path):
    """Bottom-right: the query is the last slot. Top-left would leave it the first key alone."""
    spec = SPECS["none"]
    inputs = inputs_of(spec, Call(((3,), (3,)), ((0, 1, 2), (0, 1, 2))), "float32")
    probs = open_session(runtime, spec, "float32", tmp_path).run(inputs, stages=True).stages["probs"]
    assert probs.shape == (2, 6, 1, 4)
    assert (probs > 0).all()


def attention(inputs, outputs=1, **attributes):
    """A model of the standard operator alone: query, key, value, and a mask where one is given."""
    names = ["query", "key", "value", "mask", "past_key", "past_value"]
    given = [name if name in inputs else "" for name in names]
    while given[-1] == "":
        given.pop()
    results = ["context", "present_key", "present_value", "products"][:outputs]
    kinds = {np.dtype(bool): TensorProto.BOOL, np.dtype(np.float32): TensorProto.FLOAT}
    graph = helper.make_graph(
        [helper.make_node("Attention", given, results, **attributes)],
        "attention",
        [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in results],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def by_onnxruntime(model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def by_reference(model, inputs):
    return ReferenceEvaluator(model).run(None, inputs)


OPERATORS = {"onnxruntime": by_onnxruntime, "onnx-reference": by_reference}


@pytest.mark.parametrize("runtime", OPERATORS)
def test_the_standard_operator_without_a_past_is_top_left(runtime):
    """The same word, causal, with another alignment: one query and four keys, and it sees one."""
    rng = np.random.default_rng(0)
    inputs = {"query": rng.standard_normal((1, 1, 1, 4)).astype(np.float32)}
    inputs |= {name: rng.standard_normal((1, 1, 4, 4)).astype(np.float32) for name in ("key", "value")}
    [context] = OPERATORS[runtime](attention(inputs, is_causal=1), inputs)
    np.testing.assert_allclose(context[0, 0, 0], inputs["value"][0, 0, 0], rtol=1e-6)


NO_KEYS = {
    "bool": np.zeros((1, 4), bool),
    "minus infinity": np.full((1, 4), -np.inf, np.float32),
    "float32 lowest": np.full((1, 4), np.finfo(np.float32).min, np.float32),
}


@pytest.mark.parametrize(
    ("runtime", "form", "expected"),
    [
        ("onnxruntime", "bool", 0.0),
        ("onnxruntime", "minus infinity", 0.0),
        ("onnxruntime", "float32 lowest", 0.0),
        ("onnx-reference", "bool", 0.0),
        ("onnx-reference", "minus infinity", 0.0),
        ("onnx-reference", "float32 lowest", 0.25),
    ],
)
def test_the_standard_operator_disagrees_on_a_row_without_keys(runtime, form, expected):
    """Zero or the mean of the values, by runtime and form of the mask: hence a rule of our own."""
    rng = np.random.default_rng(0)
    inputs = {"query": rng.standard_normal((1, 1, 1, 4)).astype(np.float32)}
    inputs["key"] = rng.standard_normal((1, 1, 4, 4)).astype(np.float32)
    inputs |= {"value": np.eye(4, dtype=np.float32)[None, None], "mask": NO_KEYS[form]}
    [context] = OPERATORS[runtime](attention(inputs), inputs)
    np.testing.assert_allclose(context[0, 0, 0], np.full(4, expected), atol=1e-6)


EMPTY = ["none", "sinks", "alibi", "biases", "window", "none-bidirectional", "window-radius"]
RUNS = [("onnxruntime", "float32"), ("onnxruntime", "float16"), *(("onnx-reference", dtype) for dtype in DTYPES)]


@pytest.mark.parametrize(
    ("form", "name", "runtime", "dtype"),
    [
        (form, name, runtime, dtype)
        for form, name in CARRIED
        for runtime, dtype in RUNS
        if name in EMPTY and not (form == "ort" and runtime == "onnx-reference")  # it has no such operator
    ],
)
def test_a_row_without_keys_is_zero(form, name, runtime, dtype, tmp_path):
    """In every form, runtime and type: shares and context 0 exactly, so that the output is the projection's bias."""
    spec = SPECS[name]
    session = open_session(runtime, spec, dtype, tmp_path, form)
    inputs = inputs_of(spec, CALLS["prefill"], dtype)
    inputs.attention_mask[1] = 0
    inputs.attention_mask[2, :3] = 0
    outputs = session.run(inputs, stages=True)
    empty = [(1, slice(None))]
    empty += [(2, slice(0, 3))] if spec.causal else []
    empty += [(2, slice(0, 2))] if spec.window_radius == 1 else []
    for batch, rows in empty:
        for stage in set(outputs.stages) & {"probs", "context"}:
            assert (outputs.stages[stage][batch, :, rows] == 0).all()
        bias = random_weights(spec, dtype)["o_proj.bias"] if spec.biases.o else 0
        np.testing.assert_array_equal(
            outputs.output[batch, rows], np.broadcast_to(bias, outputs.output[batch, rows].shape)
        )
    assert (outputs.stages["context"][2, :, 4] != 0).any()
    assert np.isfinite(outputs.output.astype(np.float32)).all()


@pytest.mark.parametrize(("runtime", "expected"), [("onnx-reference", np.nan), ("onnxruntime", 0.25)])
def test_a_float32_mask_value_overflows_in_float16(runtime, expected):
    """Why the softmax of a float16 graph stays in float32: the usual mask value becomes infinite, its row NaN.

    ONNX Runtime has no float16 Softmax on the CPU and leaves out the rounding between two of its own casts.
    """
    nodes = [helper.make_node("Cast", ["mask"], ["half"], to=TensorProto.FLOAT16)]
    nodes.append(helper.make_node("Softmax", ["half"], ["probs"]))
    graph = helper.make_graph(
        nodes,
        "overflow",
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("probs", TensorProto.FLOAT16, [1, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with np.errstate(over="ignore", invalid="ignore"):
        [probs] = OPERATORS[runtime](model, {"mask": NO_KEYS["float32 lowest"]})
    np.testing.assert_array_equal(probs, np.full((1, 4), expected, np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKED)
def test_masked_scores_and_softmax_are_float32(name, dtype, tmp_path):
    spec = SPECS[name]
    graph = onnx.load(write(tmp_path, spec, random_weights(spec, dtype), dtype).path, load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    for node in graph.node:
        if node.op_type in ("Softmax", "Tanh"):
            assert {types[name] for name in (*node.input, *node.output)} == {TensorProto.FLOAT}


@pytest.mark.parametrize("runtime", SESSIONS)
def test_the_cap_comes_before_the_mask(runtime, tmp_path):
    """Mask then cap would turn minus infinity into minus 2, a share of several percent."""
    spec = SPECS["softcap"]
    inputs = inputs_of(spec, CALLS["prefill"], "float32")
    stages = open_session(runtime, spec, "float32", tmp_path).run(inputs, stages=True).stages
    assert np.abs(stages["scores"]).max() < 2.0
    future = np.triu(np.ones((5, 5), bool), 1)
    assert (stages["probs"][..., future] == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_distances_stay_finite_in_half_types(dtype, tmp_path):
    """A slope of 1/4 times a distance of a million does not fit into float16; scores are float32 there."""
    spec = SPECS["alibi"]
    session = open_session("onnx-reference", spec, dtype, tmp_path)
    inputs = inputs_of(spec, Call(((1000000,),), ((0, 1, 999999),)), dtype)
    stages = session.run(inputs, stages=True).stages
    assert stages["scores"].dtype == np.float32
    products = stages["scores"][0, 0, 0] + 0.25 * np.array([1000000, 999999, 1, 0])
    assert np.abs(products).max() < 100
    assert stages["probs"][0, 0, 0, :2].tolist() == [0, 0]
