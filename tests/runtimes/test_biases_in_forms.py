"""Biases that read a token's hidden states or its queries, in every graph form that carries them, with a cache."""

import pytest

from portpe.exporters.onnx import FORMS, refusal
from portpe.exporting import export
from portpe.parity import check

KINDS = ("distance_bank_clipped",)


@pytest.mark.parametrize("name", KINDS)
def test_every_form_that_carries_the_block_agrees_with_the_truth(name, spec_of, tmp_path):
    spec = spec_of(name, v_head_dim=8)
    forms = tuple(form for form in FORMS if refusal(spec, form) is None)
    assert {"portable", "standard", "shared", "ort"} <= set(forms)
    report = check(export(spec, tmp_path / "bundle", forms=forms), ["onnxruntime"], matrix="quick")
    assert {one.form for one in report.checks} == set(forms)
    assert {"decode", "prefill", "left_padded_decode"} <= {one.case for one in report.checks}
    assert report.passed, report.failures[:3]
