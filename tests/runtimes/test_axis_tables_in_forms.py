"""A learned table an axis in every graph form, and places past a table refused."""

import numpy as np
import onnxruntime
import pytest
import torch

from portpe.bundle import graph_name
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, refusal
from portpe.exporting import export
from portpe.parity import check
from portpe.random_weights import random_weights
from portpe.reference import Attention


def test_every_form_that_carries_the_block_agrees_with_the_truth(spec_of, tmp_path):
    spec = spec_of("learned_axes", v_head_dim=8)
    forms = tuple(form for form in FORMS if refusal(spec, form) is None)
    assert {"portable", "standard", "ort"} <= set(forms)
    report = check(export(spec, tmp_path / "bundle", forms=forms), ["onnxruntime"], matrix="quick")
    assert {one.form for one in report.checks} == set(forms)
    assert report.passed, report.failures[:3]


@pytest.mark.parametrize(("axis", "place"), [(0, 8), (1, 9), (0, -1), (1, -1)])
def test_places_past_a_table_are_refused(axis, place, spec_of, tmp_path):
    """In the block with a word, in a graph by the look-up; 7 and 8 are the last that have rows."""
    spec = spec_of("learned_axes")
    x = np.random.default_rng(2).standard_normal((1, 3, spec.hidden_size), np.float32)
    good = np.array([[[0, 7, 2]], [[8, 0, 1]]])
    bad = good.copy()
    bad[axis, 0, 1] = place
    block = Attention(spec).load(random_weights(spec, 3))
    assert block(torch.from_numpy(x), torch.from_numpy(good)).output.isfinite().all()
    with pytest.raises(SpecError, match=r"position_ids"):
        block(torch.from_numpy(x), torch.from_numpy(bad))
    bundle = export(spec, tmp_path / "bundle", golden=False)
    session = onnxruntime.InferenceSession(bundle.path / graph_name("portable", "float32"))
    inputs = {"hidden_states": x, "attention_mask": np.ones((1, 3), np.int64), "position_ids": good}
    assert np.isfinite(session.run(None, inputs)[0]).all()
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, inputs | {"position_ids": bad})
