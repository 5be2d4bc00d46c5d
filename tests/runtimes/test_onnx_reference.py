"""The ONNX reference evaluator against the written definition: every kind of block in every type."""

import numpy as np
import onnx
import pytest

from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS
from portpe.interface import DTYPES, stages_of
from portpe.runtimes import base
from portpe.runtimes.base import Configuration
from portpe.runtimes.onnx_reference import RUNTIME, OnnxReferenceSession
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CALLS, CARRIED, LAYER, SPECS, calls_of, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write
from tests.exporters.onnx.judgement import excess


@pytest.mark.parametrize(
    ("form", "name", "dtype"),
    [
        (form, name, dtype)
        for form, name in CARRIED
        for dtype in (DTYPES if form == "portable" else ("float32", "bfloat16"))  # ONNX Runtime has the others
        if form != "ort"
    ],
)
def test_every_block_in_every_type(form, name, dtype, tmp_path):
    spec, weights = SPECS[name], random_weights(SPECS[name], dtype)
    tables = table_set(spec)
    files = write(tmp_path, spec, weights, dtype, tables, form=form)
    expected_stages = set(stages_of(spec)) - set(FORMS[form].absent_stages)
    session = OnnxReferenceSession(spec, LAYER, files.path, files.stages_path, files.end)
    for case, call in calls_of(spec).items():
        inputs = inputs_of(spec, call, dtype)
        expected = truth(spec, weights, inputs, tables)
        for stages in (False, True):
            outputs = session.run(inputs, stages=stages)
            assert set(outputs.stages) == (expected_stages if stages else set())
            assert outputs.output.dtype == DTYPES[dtype]
            ratios = excess(spec, inputs, outputs, expected, dtype)
            assert max(ratios.values()) <= 1, (case, ratios)


def test_positions_are_checked_before_it_runs(tmp_path):
    """Its own Gather takes row -1 for the last row of a table."""
    spec = SPECS["learned"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    session = OnnxReferenceSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, CALLS["arbitrary"], "float32")
    for position, message in ((-1, "must be >= 0, got -1"), (40, "must be < 40, .* got 40")):
        inputs.position_ids[1, 1] = position
        with pytest.raises(SpecError, match=message):
            session.run(inputs)


class BundleOnDisk:
    """As much of a bundle as a runtime reads."""

    forms, dtypes, layer = ("portable",), ("float32", "bfloat16"), LAYER
    graph_types = dtypes

    def __init__(self, spec, files):
        self.spec, self.files = spec, files

    def tables(self):
        return table_set(self.spec)

    def graph(self, form, dtype, stages=False):
        return self.files.stages_path if stages else self.files.path


def test_configurations_are_forms_and_types(tmp_path):
    spec = SPECS["rotary-half"]
    bundle = BundleOnDisk(spec, write(tmp_path, spec, random_weights(spec, "bfloat16"), "bfloat16"))
    found = RUNTIME.configurations(bundle)
    assert found == [Configuration("portable", "float32"), Configuration("portable", "bfloat16")]
    assert RUNTIME.gaps(bundle) == []
    outputs = RUNTIME.open(bundle, found[1]).run(inputs_of(spec, CALLS["decode"], "bfloat16"))
    assert outputs.output.shape == (4, 1, 20)
    assert outputs.present_key.shape == (4, 2, 8, 8)
    with pytest.raises(SpecError, match="provider must be cpu for onnx-reference, got 'cuda'"):
        RUNTIME.configurations(bundle, "cuda")


def test_it_is_found_with_its_version():
    found = RUNTIME.availability()
    assert (found.usable, found.version, found.reason) == (True, onnx.__version__, None)
    assert base.get("onnx-reference") is RUNTIME


def test_presents_are_the_past_and_then_the_new_keys(tmp_path):
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    inputs = inputs_of(spec, CALLS["chunk"], "float32")
    outputs = OnnxReferenceSession(spec, LAYER, files.path, None, files.end).run(inputs)
    np.testing.assert_array_equal(outputs.present_key[:, :, :5], inputs.past_key)
    np.testing.assert_array_equal(outputs.present_value[:, :, :5], inputs.past_value)
