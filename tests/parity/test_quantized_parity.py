"""Quantised graphs under parity: judged against their own weights, within the rounding of their operator."""

import json
import shutil

import numpy as np
import pytest

from portpe.bundle import Bundle
from portpe.exporters.onnx import FORMS, refusal
from portpe.exporting import export
from portpe.parity import bounds, check
from portpe.report.json import to_json
from portpe.report.summary import quantization_cost

KINDS = ["rotary_yarn", "learned", "alibi", "norm_all_heads", "transformer_xl", "deberta", "distance_bank_clipped"]


@pytest.fixture(scope="module")
def bundle_with(tmp_path_factory, spec_of):
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("quantized") / name
            spec = spec_of(name)
            forms = [form for form in FORMS if refusal(spec, form) is None]
            made[name] = export(spec, folder, forms=forms, dtypes=("float32", "float16"), quantize=("int4", "int8"))
        return made[name]

    return get


@pytest.mark.parametrize("name", KINDS)
def test_each_stage_is_within_its_bound(name, bundle_with):
    report = check(bundle_with(name), ["onnxruntime"], matrix="quick")
    assert report.passed, report.failures[:3]
    counts = {kind: sum(one.dtype == kind for one in report.checks) for kind in bundle_with(name).graph_types}
    assert len(set(counts.values())) == 1
    assert min(counts.values()) >= 50


@pytest.mark.parametrize(("kind", "other"), [("float32_int4", "float32_int8"), ("float32_int8", "float32_int4")])
def test_another_quantisation_of_the_same_weights_fails(kind, other, bundle_with, tmp_path):
    """The bound is no licence: 8 bits in place of 4, and 4 in place of 8, leave it at q."""
    shutil.copytree(bundle_with("learned").path, tmp_path / "b")
    for stages in ("", ".stages"):
        shutil.copy(
            tmp_path / f"b/onnx/portable_{other}{stages}.onnx", tmp_path / f"b/onnx/portable_{kind}{stages}.onnx"
        )
    manifest = json.loads((tmp_path / "b/portpe.json").read_text())
    for stages in ("", ".stages"):
        names = (f"onnx/portable_{one}{stages}.onnx" for one in (kind, other))
        mine, theirs = names
        manifest["files"][mine] = manifest["files"][theirs]
    (tmp_path / "b/portpe.json").write_text(json.dumps(manifest))
    report = check(Bundle.open(tmp_path / "b"), ["onnxruntime"], matrix="quick")
    assert {one.dtype for one in report.failures} == {kind}
    assert {"q", "v", "output"} <= {one.stage for one in report.failures}


def test_the_bound_of_rounded_activations():
    """Against rounding by hand, over two blocks and a part of one: within the bound, and over a third of it."""
    rng = np.random.default_rng(7)
    x, weight = rng.standard_normal((50, 75)), rng.standard_normal((40, 75))
    x[:, 32:64] *= 100
    rounded = np.empty_like(x)
    for start in (0, 32, 64):
        block = x[:, start : start + 32]
        step = np.abs(block).max(axis=1, keepdims=True) / 127
        rounded[:, start : start + 32] = np.round(block / step) * step
    error = np.abs((rounded - x) @ weight.T)
    ratio = error / bounds.rounded_activations(x, np.square(weight))
    assert 0.4 < ratio.max() < 1


def test_reports_say_what_the_weights_cost(bundle_with):
    bundle = bundle_with("alibi")
    report = check(bundle, ["onnxruntime"], matrix="quick")
    assert report.quantization == bundle.quantization_errors
    assert json.loads(to_json(report))["quantization"]["float16_int4"] == bundle.quantization_errors["float16_int4"]
    error = {"max_abs": 0.4256, "relative": 0.12841, "max_output": 3.0326}
    assert quantization_cost("float32_int4", error) == (
        "float32_int4: its weights move the output by 13 % (root mean square) and by at most 0.43, where the largest "
        "output is 3"
    )
    assert "not measured" in quantization_cost("float32_int4", None)
