"""The forms of one block against each other, on equal calls."""

import numpy as np
import onnx
import pytest
from onnx import helper

from portpe.exporters.onnx import FORMS
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.tables import table_set
from tests.exporters.onnx.blocks import LAYER, SPECS, calls_of, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write
from tests.exporters.onnx.judgement import excess
from tests.exporters.onnx.opened import nodes

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11}


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize(
    "name",
    [
        "rotary-llama3",
        "rotary-partial-interleaved-last",
        "rotary-hf",
        "alibi",
        "buckets",
        "shaw-descending",
        "shaw-alibi",
        "transformer-xl",
        "transformer-xl-clamped",
        "window",
        "softcap",
        "sinks-window",
    ],
)
def test_forms_agree(name, dtype, tmp_path):
    """Output and cache of every form that carries the block, within a few hundred units of the largest value; new keys
    and values of all are those of all others to a few units, and old ones the same bits.
    """
    spec, weights = SPECS[name], random_weights(SPECS[name], dtype)
    tables = table_set(spec)
    sessions = {}
    for form in FORMS:
        if FORMS[form].carries(spec) is None:
            files = write(tmp_path, spec, weights, dtype, tables, form=form)
            sessions[form] = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
    assert len(sessions) >= 2
    for call in calls_of(spec).values():
        inputs = inputs_of(spec, call, dtype)
        kept = inputs.attention_mask[:, inputs.past :] == 1
        found = {form: session.run(inputs) for form, session in sessions.items()}
        first = found.pop("portable")
        for form, other in found.items():
            for field, units in (("output", 400), ("present_key", 8), ("present_value", 8)):
                one, two = (getattr(each, field).astype(np.float64) for each in (first, other))
                assert one.shape == two.shape, (form, field)
                if field == "output":
                    one, two = one[kept], two[kept]
                else:
                    np.testing.assert_array_equal(one[:, :, : inputs.past], two[:, :, : inputs.past])
                allowed = units * UNIT[dtype] * np.abs(one).max()
                np.testing.assert_allclose(two, one, rtol=0, atol=allowed, err_msg=f"{form} {field}")


# form, block, operator, attribute, and the value that is wrong
PLANTED = {
    "no causality": ("standard", "rotary-half", "Attention", "is_causal", 0),
    "scale left to the operator": ("standard", "value-width", "Attention", "scale", 8**-0.5),
    "no cap": ("shared", "softcap", "Attention", "softcap", 0.0),
    "window of one key more": ("ort", "window", "GroupQueryAttention", "local_window_size", 4),
    "the other pairing": ("ort", "rotary-half", "RotaryEmbedding", "interleaved", 1),
    "the other pairing of a part": (
        "standard",
        "rotary-partial-interleaved-first",
        "RotaryEmbedding",
        "interleaved",
        0,
    ),
    "causal where all see all": ("ort", "rotary-bidirectional", "GroupQueryAttention", "causal", 1),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_attribute_is_found(fault, tmp_path):
    """Each is a word that an operator takes for another; the judgement that the forms pass sees them all."""
    form, name, operator, attribute, value = PLANTED[fault]
    spec, weights = SPECS[name], random_weights(SPECS[name], "float32")
    files = write(tmp_path, spec, weights, "float32", form=form)
    model = onnx.load(files.path, load_external_data=False)
    changed = 0
    for node in nodes(model.graph):
        for each in node.attribute:
            if node.op_type == operator and each.name == attribute:
                each.CopyFrom(helper.make_attribute(attribute, value))
                changed += 1
    assert changed
    files.path.write_bytes(model.SerializeToString())
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
    inputs = inputs_of(spec, calls_of(spec)["chunk"], "float32")
    ratios = excess(spec, inputs, session.run(inputs), truth(spec, weights, inputs), "float32")
    assert ratios["output"] > 100
