"""The standard's own RotaryEmbedding and Attention, as independent implementations of our stages."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from tests.exporters.onnx.blocks import CALLS, FAR, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.files import write
from tests.exporters.onnx.test_mask import OPERATORS, attention


def stages_of_call(spec, call, tmp_path):
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    inputs = inputs_of(spec, call, "float32")
    outputs = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end).run(inputs, stages=True)
    return inputs, outputs


def rotary_embedding(x, cos, sin, **attributes):
    """RotaryEmbedding-23 with caches for every token: no position_ids."""
    arrays = {"x": x, "cos": cos, "sin": sin}
    graph = helper.make_graph(
        [helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], **attributes)],
        "rotary",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in arrays.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), arrays


@pytest.mark.parametrize("runtime", OPERATORS)
@pytest.mark.parametrize(("pairing", "width"), [("half", 8), ("half", 4), ("interleaved", 8), ("interleaved", 6)])
def test_rotation_is_the_standard_operators(pairing, width, runtime, tmp_path):
    """Rank 4, and rank 3 with num_heads, which has to be the same numbers transposed."""
    theta = 500000.0
    rotary = RotaryEncoding(width=width, pairing=pairing, schedule=DefaultSchedule(rope_theta=theta))
    spec = SPECS["rotary-half"].model_copy(update={"rotary": rotary})
    inputs, outputs = stages_of_call(spec, FAR, tmp_path)
    angles = inputs.position_ids[..., None] * theta ** (-np.arange(width // 2) / (width // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    attributes = {"interleaved": int(pairing == "interleaved"), "rotary_embedding_dim": width % 8}
    for part, heads in (("q", 6), ("k", 2)):
        x = outputs.stages[part]
        [whole] = OPERATORS[runtime](*rotary_embedding(x, cos, sin, **attributes))
        np.testing.assert_allclose(outputs.stages[f"{part}_rotated"], whole, atol=2e-6, rtol=0)
        flat = x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
        [rows] = OPERATORS[runtime](*rotary_embedding(flat, cos, sin, num_heads=heads, **attributes))
        np.testing.assert_array_equal(rows.reshape(x.transpose(0, 2, 1, 3).shape).transpose(0, 2, 1, 3), whole)


@pytest.mark.parametrize("runtime", OPERATORS)
def test_rank_3_without_num_heads_is_refused(runtime):
    x, table = np.ones((2, 3, 16), np.float32), np.ones((2, 3, 4), np.float32)
    with pytest.raises(Exception, match="num_heads"):
        OPERATORS[runtime](*rotary_embedding(x, table, table))


@pytest.mark.parametrize("runtime", OPERATORS)
@pytest.mark.parametrize("scale", [None, 8**-0.5, 1.0])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("case", ["decode", "chunk", "prefill"])
def test_context_is_the_standard_operators(case, softcap, scale, runtime, tmp_path):
    """Past, groups, cap and mask. An absent scale is one over the root of head_dim, and not 1."""
    spec = SPECS["rotary-half"].model_copy(update={"softcap": softcap or None, "scale": scale or 8**-0.5})
    call = CALLS[case]
    inputs, outputs = stages_of_call(spec, call, tmp_path)
    given = {
        "query": outputs.stages["q_rotated"],
        "key": outputs.stages["k_rotated"],
        "value": outputs.stages["v"],
        "past_key": inputs.past_key,
        "past_value": inputs.past_value,
    }
    attributes = (
        {"is_causal": 1} | ({} if scale is None else {"scale": scale}) | ({"softcap": softcap} if softcap else {})
    )
    context, present_key, present_value = OPERATORS[runtime](attention(given, outputs=3, **attributes), given)
    np.testing.assert_allclose(outputs.stages["context"], context, atol=1e-5, rtol=0)
    np.testing.assert_array_equal(outputs.present_key, present_key)
    np.testing.assert_array_equal(outputs.present_value, present_value)
    if scale is None:
        [unscaled, *_] = OPERATORS[runtime](attention(given, outputs=3, **{**attributes, "scale": 1.0}), given)
        assert np.abs(unscaled - context).max() > 0.1


def test_the_operators_are_the_standards():
    """The versions that the models above import are versions in which these operators stand."""
    for name in ("RotaryEmbedding", "Attention"):
        assert onnx.defs.get_schema(name, 23).since_version == 23
