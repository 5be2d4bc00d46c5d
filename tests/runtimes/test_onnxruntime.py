"""ONNX Runtime against the written definition: every kind of block, at every optimisation level."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS
from portpe.interface import DTYPES, stages_of
from portpe.runtimes import base
from portpe.runtimes.onnxruntime import LEVELS, RUNTIME, OnnxRuntimeSession, load, run_session
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CALLS, CARRIED, LAYER, SPECS, calls_of, inputs_of, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import Files, write
from tests.exporters.onnx.judgement import excess


@dataclass
class BundleOnDisk:
    """As much of a bundle as a runtime reads."""

    spec: AttentionSpec
    files: Files
    dtypes: tuple[str, ...] = ("float32",)
    forms: tuple[str, ...] = ("portable",)
    layer: int = LAYER

    @property
    def graph_types(self):
        return self.dtypes

    def tables(self):
        return table_set(self.spec)

    def graph(self, form, dtype, stages=False):
        return self.files.stages_path if stages else self.files.path


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("form", "name"), CARRIED)
def test_every_block_at_every_level(form, name, dtype, tmp_path):
    spec, weights = SPECS[name], random_weights(SPECS[name], dtype)
    tables = table_set(spec)
    files = write(tmp_path, spec, weights, dtype, tables, form=form)
    expected_stages = set(stages_of(spec)) - set(FORMS[form].absent_stages)
    both_ends = dtype != "float32" and form != "portable"  # parity runs all four
    sessions = {
        level: OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end, optimization=level)
        for level in (("disable", "all") if both_ends else LEVELS)
    }
    for case, call in calls_of(spec).items():
        inputs = inputs_of(spec, call, dtype)
        expected = truth(spec, weights, inputs, tables)
        for level, session in sessions.items():
            for stages in (False, True) if level in ("disable", "all") else (False,):
                outputs = session.run(inputs, stages=stages)
                assert set(outputs.stages) == (expected_stages if stages else set())
                assert outputs.output.dtype == DTYPES[dtype]
                ratios = excess(spec, inputs, outputs, expected, dtype)
                assert max(ratios.values()) <= 1, (case, level, ratios)


FAULTS = {
    "pairing": ("rotary-half", {"rotary": SPECS["rotary-interleaved"].rotary}),
    "theta": ("rotary-half", {"rotary": RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=10000.0))}),
    "sign": ("rotary-half", {"rotary": SPECS["rotary-negative"].rotary}),
    "scaling": ("rotary-llama3", {"rotary": SPECS["rotary-half"].rotary}),
    "attention factor": ("rotary-yarn", {"rotary": SPECS["rotary-ntk_by_parts"].rotary}),
    "window": ("window", {"window": 4}),
    "radius": ("window-radius", {"window_radius": 2}),
    "softcap": ("softcap", {"softcap": None}),
    "symmetric": ("alibi-symmetric", {"bias": SPECS["alibi"].bias}),
    "slopes": ("alibi-mpt", {"bias": SPECS["alibi"].bias}),
    "table order": ("sinusoidal-cos-sin", {"embedding": SPECS["sinusoidal-interleaved"].embedding}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_judgement_catches_a_fault(fault, tmp_path):
    name, change = FAULTS[fault]
    spec, weights = SPECS[name], random_weights(SPECS[name], "float32")
    wrong = spec.model_copy(update=change)
    files = write(tmp_path, wrong, weights, "float32")
    session = OnnxRuntimeSession(wrong, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, calls_of(spec)["chunk"], "float32")
    ratios = excess(spec, inputs, session.run(inputs), truth(spec, weights, inputs), "float32")
    assert ratios["output"] > 1000


@pytest.mark.parametrize("length", [4, 8, 9, 16, 33])
def test_a_graph_serves_every_length(length, tmp_path):
    """Nothing of the length at build time is left in a graph: there was none."""
    spec = SPECS["rotary-llama3"]
    weights = random_weights(spec, "float32")
    files = write(tmp_path, spec, weights, "float32")
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    call = replace(CALLS["prefill"], positions=(tuple(range(length)), tuple(range(7, 7 + length))))
    inputs = inputs_of(spec, call, "float32")
    ratios = excess(spec, inputs, session.run(inputs, stages=True), truth(spec, weights, inputs), "float32")
    assert max(ratios.values()) <= 1, ratios


def test_positions_are_read_and_not_counted(tmp_path):
    """Positions 3, 4, 9 are rows 3, 4, 9 of the learned table, not its first three."""
    spec = SPECS["learned"]
    weights = random_weights(spec, "float32")
    files = write(tmp_path, spec, weights, "float32")
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    inputs = inputs_of(spec, replace(CALLS["arbitrary"], positions=((3, 4, 9),)), "float32")
    embedded = session.run(inputs, stages=True).stages["embedded"]
    rows = weights["position_embedding.weight"]
    np.testing.assert_array_equal(embedded[0], inputs.hidden_states[0] + rows[[3, 4, 9]])
    assert np.abs(embedded[0] - inputs.hidden_states[0] - rows[:3]).max() > 0.1


def test_bfloat16_is_refused_on_the_cpu(tmp_path):
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "bfloat16"), "bfloat16")
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        load(files.path, "CPUExecutionProvider", "all")
    bundle = BundleOnDisk(spec, files, dtypes=("float32", "bfloat16"))
    assert {c.dtype for c in RUNTIME.configurations(bundle)} == {"float32"}
    [(artefact, reason)] = RUNTIME.gaps(bundle)
    assert artefact == "portable_bfloat16"
    assert "no bfloat16 kernels" in reason


def test_bfloat16_goes_in_and_comes_out():
    """By a graph of casts, which the CPU has for bfloat16."""
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["wide", "wide"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.BFLOAT16),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["a", "b"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "casts", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    x = np.array([[1.5, -2.25], [300.0, 1e-3], [0.0, 7.0]]).astype(DTYPES["bfloat16"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y = run_session(session, {"x": x.T})["y"]  # a view that is not contiguous
    assert y.dtype == DTYPES["bfloat16"]
    np.testing.assert_array_equal(y, (x + x).T)


def test_configurations_are_forms_types_and_levels(tmp_path):
    spec = SPECS["none"]
    bundle = BundleOnDisk(spec, write(tmp_path, spec, random_weights(spec, "float32"), "float32"))
    found = RUNTIME.configurations(bundle, "cpu")
    assert [(c.form, c.dtype, c.provider, c.optimization) for c in found] == [
        ("portable", "float32", "CPUExecutionProvider", level) for level in ("disable", "basic", "extended", "all")
    ]
    session = RUNTIME.open(bundle, found[-1])
    assert session.provider == "CPUExecutionProvider"
    inputs = inputs_of(spec, CALLS["decode"], "float32")
    assert session.run(inputs).output.shape == (4, 1, 20)


def test_an_unknown_provider_is_refused(tmp_path):
    spec = SPECS["none"]
    bundle = BundleOnDisk(spec, write(tmp_path, spec, random_weights(spec, "float32"), "float32"))
    with pytest.raises(SpecError, match=r"provider must be one of .*CPUExecutionProvider.*, got 'quantum'"):
        RUNTIME.configurations(bundle, "quantum")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_the_provider_reported_is_the_one_that_runs(tmp_path, monkeypatch):
    """ONNX Runtime falls back to the CPU without an exception when a provider it lists cannot start."""
    spec = SPECS["none"]
    bundle = BundleOnDisk(spec, write(tmp_path, spec, random_weights(spec, "float32"), "float32"))
    offered = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: offered)
    [*_, configuration] = RUNTIME.configurations(bundle, "cuda")
    assert configuration.provider == "CUDAExecutionProvider"
    assert RUNTIME.open(bundle, configuration).provider == "CPUExecutionProvider"


def test_it_is_found_with_its_version():
    found = RUNTIME.availability()
    assert (found.usable, found.version, found.reason) == (True, onnxruntime.__version__, None)
    assert "CPUExecutionProvider" in found.device
    assert base.get("onnxruntime") is RUNTIME


def test_it_needs_neither_torch_nor_onnx(tmp_path):
    """A session runs where only onnxruntime is installed."""
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    (tmp_path / "spec.json").write_text(spec.to_json())
    inputs = inputs_of(spec, CALLS["chunk"], "float32")
    arrays = {name: array for name, array in vars(inputs).items() if isinstance(array, np.ndarray)}
    np.savez(tmp_path / "call.npz", **arrays)
    code = f"""
import json, sys
from pathlib import Path
import numpy as np
for name in ("torch", "onnx", "onnx_ir", "transformers", "mlx"):
    sys.modules[name] = None
from portpe.interface import BlockInputs
from portpe.runtimes import base
from portpe.runtimes.onnxruntime import open_graph
from portpe.spec import AttentionSpec
spec = AttentionSpec.from_dict(json.loads(Path("spec.json").read_text()))
outputs = open_graph(Path({files.path.name!r}), spec, layer={LAYER}).run(BlockInputs(**np.load("call.npz")))
np.save("output.npy", outputs.output)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={"PYTHONPATH": str(root)})
    here = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end).run(inputs).output
    np.testing.assert_array_equal(np.load(tmp_path / "output.npy"), here)
