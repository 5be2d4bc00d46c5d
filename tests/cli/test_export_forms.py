"""``portpe export --form``: several graphs at once, and what is said of those that do not run or cannot be made."""

import json

import pytest

from portpe.bundle import Bundle
from tests.kinds import make_spec


@pytest.fixture
def source(tmp_path):
    """A file with the spec of a small layer of this kind."""

    def make(kind, **changes):
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps(make_spec(kind, **changes).to_dict()))
        return path

    return make


def test_forms_stand_beside_each_other_and_pass(portpe, source, tmp_path):
    """Each in both files, its limits in the manifest, every case in every form."""
    folder = tmp_path / "block"
    forms = ("portable", "standard", "shared", "ort")
    asked = [word for form in forms for word in ("--form", form)]
    done = portpe("export", source("rotary_llama3", v_head_dim=8), "-o", folder, *asked)
    assert (done.status, done.err) == (0, "")
    opened = Bundle.open(folder)
    assert opened.forms == forms
    assert set(opened.manifest["capabilities"]) == set(forms)
    assert "v_head_dim equals head_dim" in opened.manifest["capabilities"]["ort"]["limits"]
    names = {path.name for path in (folder / "onnx").iterdir()}
    assert names == {f"{form}_float32{end}.onnx" for form in forms for end in ("", ".stages")} | {
        "weights_float32.data"
    }
    assert portpe("parity", folder, "--quick", "--runtime", "onnxruntime").status == 0
    judged = {check["form"] for check in json.loads((folder / "report.json").read_text())["checks"]}
    assert judged == set(forms)


def test_a_graph_that_does_not_run_here_is_named_at_once(portpe, source, tmp_path):
    asked = ["--form", "standard", "--dtype", "bf16", "--dtype", "fp32", "--no-golden"]
    done = portpe("export", source("rotary_default"), "-o", tmp_path / "block", *asked)
    assert done.status == 0
    said = [line for line in done.out.splitlines() if line.startswith("onnxruntime")]
    assert said == [
        "onnxruntime does not run standard_bfloat16 here: "
        "CPUExecutionProvider has no bfloat16 kernels (MatMul, Add, Mul: NOT_IMPLEMENTED)"
    ]


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("rotary_yarn", ["--form", "standard"], "the operator Attention has no sinks; form portable carries it"),
        ("rotary_default", ["--form", "ort"], "v_head_dim is 10, and the operator GroupQueryAttention takes values"),
        ("alibi_symmetric", ["--form", "shared"], "causal is false, so there is no cache to share; form portable or"),
        ("none", ["--form", "ort", "--dtype", "bf16"], "form ort has dtypes float32, float16, got bfloat16; bfloat16"),
    ],
)
def test_what_a_form_does_not_take_is_refused_before_a_byte(kind, options, reason, refused, source, tmp_path):
    folder = tmp_path / "block"
    assert reason in refused("export", source(kind), "-o", folder, "--form", "portable", *options)
    assert not folder.exists()
