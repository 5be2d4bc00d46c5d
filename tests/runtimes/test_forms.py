"""The forms of one block against each other, on equal calls."""

import numpy as np
import pytest

from portpe.exporters.onnx import FORMS
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.tables import table_set
from tests.exporters.onnx.blocks import LAYER, SPECS, calls_of, inputs_of, random_weights
from tests.exporters.onnx.files import write

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11}


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize(
    "name",
    ["rotary-llama3", "rotary-partial-interleaved-last", "rotary-hf", "alibi", "window", "softcap", "sinks-window"],
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
