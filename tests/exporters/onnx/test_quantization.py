"""Projections in 4 and 8 bits: the layout by hand, and blocks against the definition on the weights they stand for."""

import logging
import math

import numpy as np
import pytest

from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, build, dequantized_weights, graph_weights, quantized_weights
from portpe.interface import DTYPES
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.tables import end_of, table_set
from portpe.weight_shapes import weight_shapes
from tests.exporters.onnx.blocks import CALLS, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import place

KINDS = ["rotary-half", "biases", "alibi", "sinks-window", "embedding-projection", "q-k-norm-rms"]
CARRIED = [(form, name) for form in FORMS for name in KINDS if FORMS[form].carries(SPECS[name]) is None]
LEVELS = {"int4": 15, "int8": 255}


def _quantized(spec, dtype, quantization):
    weights = random_weights(spec, dtype)
    tensors = quantized_weights(graph_weights(spec, weights, dtype), quantization)
    return weights, tensors, dequantized_weights(tensors, quantization, weight_shapes(spec))


def _session(folder, spec, tensors, form, dtype):
    tables = table_set(spec)
    data, places = place(tensors, "w.data")
    (folder / "w.data").write_bytes(data)
    path = folder / "g.onnx"
    path.write_bytes(build(spec, form=form, dtype=dtype, layer=LAYER, tables=tables, weights=places))
    return OnnxRuntimeSession(spec, LAYER, path, None, end_of(spec, tables))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("quantization", LEVELS)
def test_a_weight_is_off_by_half_a_step_of_its_block(quantization, dtype):
    """Steps are (largest - smallest) / (2**bits - 1) of a block of 32 inputs, 0 among them; a zero point is rounded."""
    spec = SPECS["rotary-half"].model_copy(update={"hidden_size": 75})  # two blocks and a part of one
    weights, _, restored = _quantized(spec, dtype, quantization)
    assert set(restored) == {f"{part}_proj.weight" for part in "qkvo"}
    for name, found in restored.items():
        weight = weights[name].astype(np.float64)
        assert found.shape == weight.shape
        padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % 32))).reshape(weight.shape[0], -1, 32)
        span = np.maximum(padded.max(-1), 0) - np.minimum(padded.min(-1), 0)
        step = np.repeat(span / LEVELS[quantization], 32, axis=1)[:, : weight.shape[1]]
        error = np.abs(found - weight)
        assert (error <= step * (1.01 + 2e-3 * LEVELS[quantization] * (dtype == "float16"))).all()
        assert error.max() > 0.25 * step.max()
        assert np.sqrt(np.mean(error**2)) < 0.4 * np.sqrt(np.mean(step**2))  # uniform: 0.29


def test_the_layout_by_hand():
    """out 2, in 32: q = 0 .. 15 twice with scale 0.5 from -2 on; lower half of a byte first."""
    column = (np.tile(np.arange(16), 2) - 4) * 0.5
    weight = np.stack([column, -0.25 * column], axis=1).astype(np.float32)
    tensors = quantized_weights({"q_proj.weight": weight, "q_proj.bias": weight[0]}, "int4")
    assert {name: array.shape for name, array in tensors.items()} == {
        "q_proj.weight.qweight": (2, 1, 16),
        "q_proj.weight.scales": (2, 1),
        "q_proj.weight.zero_points": (2, 1),
        "q_proj.bias": (2,),
    }
    assert tensors["q_proj.weight.scales"][0, 0] == 0.5
    assert tensors["q_proj.weight.zero_points"][0, 0] & 15 == 4
    assert tensors["q_proj.weight.qweight"][0, 0, :8].tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    restored = dequantized_weights(tensors, "int4", {"q_proj.weight": (2, 32), "q_proj.bias": (2,)})
    np.testing.assert_allclose(restored["q_proj.weight"], weight.T, rtol=1e-6)


def _distance(found, expected, kept):
    return np.sqrt(np.mean((found.astype(np.float64) - expected)[kept] ** 2) / np.mean(expected[kept] ** 2))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("quantization", LEVELS)
@pytest.mark.parametrize(("form", "name"), CARRIED)
def test_a_block_is_that_of_its_own_weights(form, name, quantization, dtype, tmp_path):
    """Values within the rounding of activations, which is all that the operator adds: to 8 bits, by blocks of 32.

    A step is |x|max / 127 of the block, and the error uniform in it: half a percent a projection, which scores of
    several units multiply on the way to the output.
    """
    spec = SPECS[name]
    weights, tensors, restored = _quantized(spec, dtype, quantization)
    inputs = inputs_of(spec, CALLS["prefill"], dtype)
    outputs = _session(tmp_path, spec, tensors, form, dtype).run(inputs)
    own = truth(spec, {**weights, **restored}, inputs, table_set(spec))
    original = truth(spec, weights, inputs, table_set(spec))
    kept = inputs.attention_mask == 1
    apart, off = (_distance(outputs.output, each["output"], kept) for each in (own, original))
    assert apart < 0.03, apart
    assert off > (3 if quantization == "int4" else 0.3) * apart
    if spec.causal and spec.embedding is None:
        x = own["normed"] if "normed" in own else inputs.hidden_states.astype(np.float64)  # width 20: one block
        step = np.abs(x).max(-1) / 127
        restored_v = restored["v_proj.weight"]
        sigma = step[..., None] / math.sqrt(12) * np.sqrt((restored_v**2).sum(axis=1))
        found = outputs.present_value.transpose(0, 2, 1, 3).reshape(*sigma.shape).astype(np.float64)
        exact = own["present_value"].transpose(0, 2, 1, 3).reshape(*sigma.shape)
        assert (np.abs(found - exact) <= 6 * sigma + (2e-3 if dtype == "float16" else 1e-6) * np.abs(exact).max()).all()


@pytest.mark.parametrize("quantization", LEVELS)
def test_rows_do_not_see_each_other(quantization, tmp_path):
    """A row's scale is its own: a call of one row gives what a call of many gives, also beside a row of giants."""
    spec = SPECS["rotary-half"]
    _, tensors, _ = _quantized(spec, "float32", quantization)
    session = _session(tmp_path, spec, tensors, "standard", "float32")
    inputs = inputs_of(spec, CALLS["prefill"], "float32")
    expected = session.run(inputs).present_value[:, :, :4]
    inputs.hidden_states[:, 4] *= 1e4
    np.testing.assert_array_equal(session.run(inputs).present_value[:, :, :4], expected)


def test_equal_weights_give_equal_bytes():
    spec = SPECS["biases"]
    first, second = (_quantized(spec, "float32", "int4")[1] for _ in range(2))
    assert list(first) == list(second)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_the_quantiser_leaves_logging_alone(monkeypatch):
    import sys

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for module in [name for name in sys.modules if name.startswith("onnxruntime.quantization")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(root, "handlers", [])
    quantized_weights({"q_proj.weight": np.ones((32, 2), np.float32)}, "int8")
    assert root.handlers == []
    assert root.level == level
    monkeypatch.setattr(root, "handlers", handlers)


@pytest.mark.parametrize(
    ("dtype", "quantization", "message"),
    [
        ("float32", "int3", "quantize must be one of int4, int8, got 'int3'"),
        ("bfloat16", "int4", "quantize int4 needs dtype float32 or float16, got bfloat16"),
    ],
)
def test_what_cannot_be_quantised_is_refused(dtype, quantization, message):
    with pytest.raises(SpecError, match=f"^{message}$"):
        quantized_weights({"q_proj.weight": np.ones((32, 2), DTYPES[dtype])}, quantization)
