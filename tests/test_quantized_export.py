"""Bundles with quantised weights: their files, what the manifest says of them, and what is refused."""

import json
import math

import numpy as np
import pytest

from portpe.bundle import Bundle
from portpe.errors import SpecError
from portpe.exporters.onnx import dequantized_weights
from portpe.exporting import estimate, export
from portpe.runtimes import base
from portpe.runtimes.base import Configuration
from portpe.runtimes.onnxruntime import RUNTIME, BlockDecoder
from portpe.weight_shapes import weight_shapes

FORMS = ("portable", "ort")
DTYPES = ("float32", "float16")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, spec_of):
    folder = tmp_path_factory.mktemp("quantized") / "bundle"
    return export(spec_of("rotary_llama3", v_head_dim=8), folder, forms=FORMS, dtypes=DTYPES, quantize=("int4", "int8"))


def test_every_form_and_type_has_a_graph(bundle):
    kinds = ("float32", "float32_int4", "float32_int8", "float16", "float16_int4", "float16_int8")
    assert bundle.graph_types == kinds
    assert bundle.dtypes == DTYPES
    for kind in kinds:
        assert f"onnx/weights_{kind}.data" in bundle.manifest["files"]
        for form in FORMS:
            assert bundle.graph(form, kind).name == f"{form}_{kind}.onnx"
            assert bundle.graph(form, kind, stages=True).is_file()
    found = RUNTIME.configurations(bundle)
    assert {(one.form, one.dtype) for one in found} == {(form, kind) for form in FORMS for kind in kinds}


def test_the_manifest_states_the_settings(bundle):
    facts = bundle.manifest["quantization"]["int4"]
    assert facts["operator"] == "com.microsoft.MatMulNBits"
    assert (facts["bits"], facts["block_size"], facts["symmetric"], facts["accuracy_level"]) == (4, 32, False, 4)
    assert bundle.manifest["quantization"]["int8"]["bits"] == 8
    assert "onnxruntime" in bundle.manifest["versions"]


def test_the_bundles_tensors_are_those_of_its_graphs(bundle):
    """Read twice: by the manifest's places, and by onnx from the graph itself."""
    import onnx

    for kind in ("float32_int4", "float16_int8"):
        mine = bundle.quantized(kind)
        model = onnx.load(bundle.graph("ort", kind))
        theirs = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        used = [name for name in mine if name in theirs]
        assert len([name for name in used if name.endswith(".qweight")]) == 4
        for name in used:
            np.testing.assert_array_equal(mine[name], theirs[name])


def test_the_error_is_that_of_the_output(bundle):
    """Measured again, on the reference in float64 with whole weights, through another form and the bundle alone."""
    for kind, error in bundle.quantization_errors.items():
        dtype = kind.split("_")[0]
        session = RUNTIME.open(bundle, Configuration("ort", kind))
        distances, outputs = [], []
        for case in bundle.golden(dtype):
            batch, row = case.case.pairs.T
            found = session.run(case.inputs).output[batch, row].astype(np.float64)
            distances.append(np.abs(found - case.output).ravel())
            outputs.append(np.abs(case.output).ravel())
        distance, output = np.concatenate(distances), np.concatenate(outputs)
        relative = math.sqrt((distance**2).sum() / (output**2).sum())
        assert error["relative"] == pytest.approx(relative, rel=0.05)
        assert error["max_abs"] == pytest.approx(distance.max(), rel=0.2)
        assert error["max_output"] == output.max()
    costs = {kind: error["relative"] for kind, error in bundle.quantization_errors.items()}
    assert 0.005 < costs["float32_int8"] < 0.02 < 0.08 < costs["float32_int4"] < 0.2


def test_a_quantised_truth_stands_on_the_graphs_own_weights(bundle):
    """v of the first case, by a product of the inputs with the restored weight."""
    own = dequantized_weights(bundle.quantized("float32_int4"), "int4", weight_shapes(bundle.spec))
    whole, quantised = (bundle.golden(kind)[0] for kind in ("float32", "float32_int4"))
    batch, row = whole.case.pairs.T
    x = whole.inputs.hidden_states[batch, row].astype(np.float64)
    v = (x @ own["v_proj.weight"].T).reshape(len(x), bundle.spec.num_kv_heads, -1)
    kv_heads = np.unique(whole.case.heads // 3)
    np.testing.assert_allclose(quantised.stages["v"], v[:, kv_heads], rtol=0, atol=1e-12)
    assert np.abs(whole.stages["v"] - v[:, kv_heads]).max() > 0.01
    assert quantised.dtype == "float32"


def test_equal_exports_give_equal_bytes(bundle, tmp_path, spec_of):
    again = export(
        spec_of("rotary_llama3", v_head_dim=8),
        tmp_path / "again",
        forms=FORMS,
        dtypes=DTYPES,
        quantize=("int4", "int8", "int4"),
    )
    assert again.manifest == bundle.manifest


def test_whole_weights_are_not_touched(bundle, tmp_path, spec_of):
    plain = export(spec_of("rotary_llama3", v_head_dim=8), tmp_path / "plain", forms=FORMS, dtypes=DTYPES)
    assert "quantization" not in plain.manifest
    assert plain.quantization_errors == {}
    for name, entry in plain.manifest["files"].items():
        if name != "golden.safetensors":
            assert bundle.manifest["files"][name] == entry, name


def test_without_golden_values_the_error_is_unknown(tmp_path, spec_of):
    bundle = export(spec_of("alibi"), tmp_path / "b", quantize=("int8",), golden=False)
    assert bundle.quantization_errors == {"float32_int8": None}


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_a_loop_on_quantised_weights(bundle, quantization):
    """Row by row and all at once: the same, because no row's rounding hangs on another row."""
    x = np.random.default_rng(4).standard_normal((2, 9, 44)).astype(np.float32)
    decoder = BlockDecoder.open(bundle, capacity=9, batch=2, quantization=quantization)
    assert decoder.session.path.name == f"ort_float32_{quantization}.onnx"
    whole = decoder.prefill(x)
    rows = [decoder.prefill(x[:, :5]), *(decoder.step(x[:, i : i + 1]) for i in range(5, 9))]
    # a context that differs in its last bit may be rounded to the next of 255 steps before o_proj
    np.testing.assert_allclose(np.concatenate(rows, axis=1), whole, rtol=0, atol=0.02 * np.abs(whole).max())
    expected = BlockDecoder.open(bundle, capacity=9, batch=2).prefill(x)
    assert np.abs(whole - expected).max() > 0.005


def test_other_runtimes_say_that_they_have_none(bundle):
    gaps = dict(base.get("onnx-reference").gaps(bundle))
    assert gaps["portable_float32_int4"] == "MatMulNBits is an operator of ONNX Runtime's own"
    assert "portable_float32" not in gaps
    with pytest.raises(SpecError, match=r"^bundle has no weights in float32_int3; it has float32, float32_int4, "):
        bundle.quantized("float32_int3")


def test_a_manifest_that_lies_about_places_is_refused(bundle, tmp_path):
    import shutil

    shutil.copytree(bundle.path, tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "portpe.json").read_text())
    manifest["quantization"]["int4"]["tensors"]["float32"]["q_proj.weight.scales"][1] += 1
    (tmp_path / "b" / "portpe.json").write_text(json.dumps(manifest))
    with pytest.raises(SpecError, match=r"^weights_float32_int4.data cannot be read as portpe.json says: "):
        Bundle.open(tmp_path / "b").quantized("float32_int4")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantize": ("int3",)}, r"quantize must be one of int4, int8, got 'int3'"),
        (
            {"quantize": ("int4",), "dtypes": ("float32", "bfloat16")},
            r"quantize int4 needs dtype float32 or float16, got bfloat16; export that one apart",
        ),
    ],
)
def test_what_cannot_be_quantised_is_refused_before_a_byte_is_written(settings, message, tmp_path, spec_of):
    with pytest.raises(SpecError, match=f"^{message}$"):
        export(spec_of("none"), tmp_path / "b", **settings)
    assert list(tmp_path.iterdir()) == []


def test_an_estimate_counts_them(spec_of):
    spec = spec_of("none")
    plain = estimate(spec, ("portable",), ("float32",), golden=False).disk
    elements = sum(math.prod(shape) for shape in weight_shapes(spec).values())
    assert estimate(spec, ("portable",), ("float32",), golden=False, quantize=("int8",)).disk >= plain + elements
