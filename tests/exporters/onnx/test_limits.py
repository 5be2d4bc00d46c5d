"""Each limit of a form, held against the runtime: there it refuses, or gives something else."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from portpe.errors import SpecError
from portpe.exporters.onnx import build, refusal
from portpe.runtimes import graph_io
from portpe.runtimes.onnxruntime import OnnxRuntimeSession, load, run_session
from tests.exporters.onnx.blocks import CALLS, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.files import write
from tests.exporters.onnx.test_mask import OPERATORS, attention

ELEMENTS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int32): TensorProto.INT32,
}
GQA_INPUTS = [
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total",
    "cos",
    "sin",
    "position_ids",
    "bias",
]
GQA_INPUTS += ["sink", "k_scale", "v_scale", "q_norm", "k_norm", "query_seqlens"]


def grouped_query_attention(inputs, **attributes):
    """The outputs of ONNX Runtime's operator alone."""
    given = [name if name in inputs else "" for name in GQA_INPUTS]
    while not given[-1]:
        given.pop()
    results = ["context", "present_key", "present_value"]
    node = helper.make_node("GroupQueryAttention", given, results, domain="com.microsoft", **attributes)
    kind = ELEMENTS[inputs["query"].dtype]
    graph = helper.make_graph(
        [node],
        "gqa",
        [helper.make_tensor_value_info(name, ELEMENTS[a.dtype], a.shape) for name, a in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in results],
    )
    domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=domains, ir_version=11).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    return session.run(None, inputs)


def gqa_call(batch=2, rows=3, past=4, width=8, value_width=8, dtype=np.float32):
    """Two heads over one of keys, the cache a buffer with two slots to spare."""
    rng = np.random.default_rng(0)
    total = past + rows
    floats = {
        "query": (batch, rows, 2 * width),
        "key": (batch, rows, width),
        "value": (batch, rows, value_width),
        "past_key": (batch, 1, total + 2, width),
        "past_value": (batch, 1, total + 2, value_width),
    }
    call = {name: rng.standard_normal(shape).astype(dtype) for name, shape in floats.items()}
    return call | {"seqlens_k": np.full(batch, total - 1, np.int32), "total": np.array(total, np.int32)}


HEADS = {"num_heads": 2, "kv_num_heads": 1}


def refused(name, form, dtype=None):
    """The reason that an export gives, and that a build gives in the same words."""
    reason = refusal(SPECS[name], form, dtype)
    with pytest.raises(SpecError) as caught:
        build(SPECS[name], form=form, dtype=dtype or "float32", layer=0, tables={}, weights={})
    assert str(caught.value) == reason
    return reason


# --- sinks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["standard", "shared"])
def test_no_sinks_in_the_standard_operator(form):
    """No version of it has an input for them."""
    reason = refused("sinks", form)
    assert (
        reason
        == f"form {form} cannot carry this spec: the operator Attention has no sinks; form portable or ort carries it"
    )
    for version in (23, 24, onnx.defs.onnx_opset_version()):
        schema = onnx.defs.get_schema("Attention", version)
        names = {value.name for value in schema.inputs} | set(schema.attributes)
        assert not [name for name in names if "sink" in name]


# --- cap and bias ------------------------------------------------------------------------------

BIAS_THEN_CAP = SPECS["alibi"].model_copy(update={"softcap": 2.0})


@pytest.mark.parametrize("form", ["standard", "shared", "ort"])
def test_a_cap_behind_a_bias_is_for_portable_alone(form):
    reason = refusal(BIAS_THEN_CAP, form)
    assert "caps scores before it adds a bias, and here the cap comes last; form portable carries it" in reason


@pytest.mark.parametrize("runtime", OPERATORS)
def test_the_standard_operator_caps_first(runtime):
    """A bias of 50 stays 50 behind a cap of 2, so the second key takes all."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 1, 2, 4)).astype(np.float32) for name in ("key", "value")}
    inputs = {"query": rng.standard_normal((1, 1, 1, 4)).astype(np.float32), **inputs}
    inputs["mask"] = np.array([[[[0.0, 50.0]]]], np.float32)
    [context] = OPERATORS[runtime](attention(inputs, softcap=2.0), inputs)
    np.testing.assert_allclose(context[0, 0, 0], inputs["value"][0, 0, 1], rtol=1e-6)


def test_group_query_attention_caps_first():
    call = gqa_call(batch=1, rows=1, past=1) | {"bias": np.array([[[[0.0, 50.0]]]], np.float32)}
    context, _, values = grouped_query_attention(call, softcap=2.0, **HEADS)
    np.testing.assert_allclose(context[0, 0, :8], values[0, 0, 1], rtol=1e-6)


# --- no cache -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none-bidirectional", "rotary-bidirectional", "window-radius"])
def test_nothing_to_share_without_causality(name):
    """The block has no past at all."""
    assert not graph_io.input_names(SPECS[name], LAYER).keys() & {f"past_key_values.{LAYER}.key"}
    reason = refused(name, "shared")
    assert "causal is false, so there is no cache to share; form portable or standard or ort carries it" in reason


# --- widths -----------------------------------------------------------------------------------


def test_values_as_wide_as_keys():
    assert "v_head_dim is 5, and the operator GroupQueryAttention takes values as wide as keys, 8" in refused(
        "value-width", "ort"
    )
    with pytest.raises(Exception, match=r"(?i)value"):
        grouped_query_attention(gqa_call(value_width=16), **HEADS)


@pytest.mark.parametrize("width", [4, 12, 20, 84])
def test_head_sizes_in_eights(width):
    spec = SPECS["none"].model_copy(update={"head_dim": width, "v_head_dim": width})
    assert f"head_dim is {width}, and the operator GroupQueryAttention takes multiples of 8" in refusal(spec, "ort")
    with pytest.raises(Exception, match="head_size must be a multiple of 8"):
        grouped_query_attention(gqa_call(width=width, value_width=width), **HEADS)
    assert refusal(spec, "standard") is None


# --- types ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["portable", "standard", "shared"])
def test_no_bfloat16_kernels_on_the_cpu(form, tmp_path):
    """The graph is made, since other providers have them, and the ONNX reference runs it."""
    files = write(
        tmp_path, SPECS["rotary-half"], random_weights(SPECS["rotary-half"], "bfloat16"), "bfloat16", form=form
    )
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        load(files.path, "CPUExecutionProvider", "all")


def test_ort_has_no_bfloat16():
    """No runtime here takes GroupQueryAttention in bfloat16, so nobody could judge the graph."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    reason = refused("rotary-half", "ort", "bfloat16")
    assert (
        reason == "form ort has dtypes float32, float16, got bfloat16; bfloat16 has form portable or standard or shared"
    )
    kernels = [kernel for kernel in get_all_opkernel_def() if kernel.op_name == "GroupQueryAttention"]
    assert {kind for kernel in kernels for kind in kernel.type_constraints["T"]} == {"tensor(float)", "tensor(float16)"}


# --- what the graphs work around -------------------------------------------------------------------


def test_chunks_of_a_batch_need_query_seqlens():
    """Why ``ort`` needs the version that has this input."""
    with pytest.raises(Exception, match="batch_size must be 1 when sequence_length > 1 and past context is given"):
        grouped_query_attention(gqa_call(), **HEADS)
    call = gqa_call()
    together = grouped_query_attention(call | {"query_seqlens": np.full(2, 3, np.int32)}, **HEADS)[0]
    for row in range(2):
        one = {name: array if name == "total" else array[row : row + 1] for name, array in call.items()}
        alone = grouped_query_attention(one, **HEADS)[0]
        np.testing.assert_allclose(together[row], alone[0], atol=1e-6)


@pytest.mark.parametrize(("dtype", "finite"), [(np.float32, True), (np.float16, False)])
def test_group_query_attention_on_a_row_without_keys(dtype, finite):
    """Zero in float32, NaN in float16, if minus infinity hides every key; the graph puts the zero there itself."""
    call = gqa_call(batch=1, rows=2, past=0, dtype=dtype) | {"bias": np.full((1, 1, 2, 2), -np.inf, dtype)}
    context = grouped_query_attention(call, **HEADS)[0]
    assert np.isfinite(context).all() == finite
    if finite:
        assert (context == 0).all()


def test_a_window_counts_itself_in_one_operator_and_not_in_the_other():
    """Three keys of a window of 3: local_window_size 3, but left_window_size 2."""
    call = gqa_call(batch=1, rows=1, past=5)
    context, keys, values = grouped_query_attention(call, local_window_size=3, **HEADS)
    inputs = {
        "query": call["query"].reshape(1, 1, 2, 8).swapaxes(1, 2),
        "key": keys[:, :, 5:6],
        "value": values[:, :, 5:6],
        "past_key": keys[:, :, :5],
        "past_value": values[:, :, :5],
    }
    for runtime, run in OPERATORS.items():
        found = {}
        for left in (2, 3):
            model = attention(inputs, is_causal=1, left_window_size=left)
            model.opset_import[0].version = 25
            model.ir_version = 12
            found[left] = run(model, inputs)[0].swapaxes(1, 2).reshape(context.shape)
        np.testing.assert_allclose(found[2], context, atol=1e-6, err_msg=runtime)
        assert np.abs(found[3] - context).max() > 1e-3


@pytest.mark.parametrize("rows", [1, 3])
def test_a_mask_is_not_spread_over_rows(rows):
    """Why the mask has a row for each query: ONNX Runtime refuses one for all, and with causality the ONNX reference
    takes it for the whole mask.
    """
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((1, 1, rows, 4)).astype(np.float32) for name in ("query", "key", "value")}
    inputs["mask"] = np.ones((1, 1, 1, rows), bool)
    if rows == 1:
        for run in OPERATORS.values():
            np.testing.assert_allclose(run(attention(inputs), inputs)[0], inputs["value"], rtol=1e-6)
        return
    with pytest.raises(Exception, match="inconsistent q_sequence_length"):
        OPERATORS["onnxruntime"](attention(inputs), inputs)
    plain = {name: array for name, array in inputs.items() if name != "mask"}
    for run in OPERATORS.values():
        right = run(attention(plain, is_causal=1), plain)[0]
    wrong = OPERATORS["onnx-reference"](attention(inputs, is_causal=1), inputs)[0]
    assert np.abs(wrong - right).max() > 1e-3


# --- buffers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "refusal"),
    [("decode", "no greater than past_sequence_length for a static cache"), ("chunk", "hold only {} rows")],
)
def test_a_buffer_that_is_too_small_is_refused(case, refusal, tmp_path):
    """TensorScatter says so; GroupQueryAttention says so where past keys do not fit, else it gives a longer one."""
    spec = SPECS["rotary-half"]
    inputs = inputs_of(spec, CALLS[case], "float32")
    rows = inputs.hidden_states.shape[1]
    for form, short, message in (
        ("shared", 1, "exceeds max_sequence_length"),
        ("ort", rows + 1, refusal.format(inputs.past - 1)),
    ):
        files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form=form)
        session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
        feeds = session.layout.as_buffers(graph_io.feeds(spec, LAYER, inputs), rows, 0)
        assert np.isfinite(run_session(load(files.path, session.provider, "all"), feeds)["attention_output"]).all()
        cut = {name: array[:, :, :-short] if name in session.layout.past else array for name, array in feeds.items()}
        with pytest.raises(Exception, match=message):
            run_session(load(files.path, session.provider, "all"), cut)


@pytest.mark.parametrize("form", ["shared", "ort"])
@pytest.mark.parametrize("name", ["rotary-half", "alibi", "window"])
def test_what_stands_behind_the_keys_does_not_matter(name, form, tmp_path):
    """A buffer that was longer before keeps old keys there, wide ones."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form=form)
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
    inputs = inputs_of(spec, CALLS["chunk"], "float32")
    rows = inputs.hidden_states.shape[1]
    feeds = session.layout.as_buffers(graph_io.feeds(spec, LAYER, inputs), rows, 7)
    found = [run_session(load(files.path, session.provider, "all"), feeds)["attention_output"]]
    for name_of_past in session.layout.past:
        feeds[name_of_past][:, :, inputs.past :] = 40.0
    found.append(run_session(load(files.path, session.provider, "all"), feeds)["attention_output"])
    np.testing.assert_array_equal(*found)


def test_rows_of_a_batch_may_be_written_at_places_of_their_own(tmp_path):
    """``shared`` takes batch rows of different lengths: each gives what it gives alone."""
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form="shared")
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
    inputs = inputs_of(spec, CALLS["chunk"], "float32")  # four rows, three new keys behind five
    feeds = session.layout.as_buffers(graph_io.feeds(spec, LAYER, inputs), 3, 2)
    starts = np.array([5, 3, 1, 0])
    feeds |= {"write_indices": starts, "nonpad_kv_seqlen": starts + 3}
    together = run_session(load(files.path, session.provider, "all"), feeds)["attention_output"]
    for row, start in enumerate(starts):
        alone = replace(
            inputs,
            **{name: getattr(inputs, name)[row : row + 1] for name in ("hidden_states", "position_ids")},
            **{
                name: getattr(inputs, name)[row : row + 1, : start + 3]
                for name in ("attention_mask", "key_position_ids")
            },
            **{name: getattr(inputs, name)[row : row + 1, :, :start] for name in ("past_key", "past_value")},
        )
        np.testing.assert_allclose(together[row], session.run(alone).output[0], atol=1e-5)
