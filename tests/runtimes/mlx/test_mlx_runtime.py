"""Layer: tests. The runtime: a bundle's mlx folder run through the call that a user makes; mlx is never required."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from portpe.errors import SpecError
from portpe.exporters.mlx import write
from portpe.interface import DTYPES, BlockInputs, stages_of
from portpe.random_weights import random_weights
from portpe.runtimes import base
from portpe.runtimes.base import Configuration
from portpe.runtimes.mlx.runtime import RUNTIME

DTYPE_NAMES = tuple(DTYPES)


@pytest.fixture
def bundle_of(tmp_path):
    """(spec, weights) -> what the runtime asks of a bundle: its folder and its types, never its weights()."""

    def make(spec, weights):
        write(spec, weights, layer=2, folder=tmp_path / "mlx")
        return SimpleNamespace(path=tmp_path, spec=spec, dtypes=DTYPE_NAMES)

    return make


def run(*lines, **environment):
    """A program in a new process; its output."""
    env = {name: value for name, value in os.environ.items() if name != "MLX_ENABLE_TF32"} | environment
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_a_session_equals_the_truth(variant, dtype, bundle_of, inputs_of, truth, ulp):
    """Weights in the bundle are float32; the truth is that of weights rounded to the type."""
    weights = random_weights(variant, 8)
    session = RUNTIME.open(bundle_of(variant, weights), Configuration("module", dtype))
    inputs = inputs_of(variant, dtype)
    found = session.run(inputs, stages=True)
    rounded = {name: value.astype(DTYPES[dtype]) for name, value in weights.items()}
    expected = truth(variant, rounded, inputs)
    real = inputs.attention_mask[:, inputs.past :] == 1

    assert session.provider == ""
    assert tuple(found.stages) == stages_of(variant)
    compared = ("output", "present_key", "present_value") if variant.causal else ("output",)
    assert (found.present_key is None) is (found.present_value is None) is (not variant.causal)
    for name in compared:
        array = getattr(found, name)
        assert array.dtype == DTYPES[dtype]
        assert array.shape == expected[name].shape
        difference = np.abs(array.astype(np.float64) - expected[name])
        if name == "output":
            difference = difference[real]
        assert difference.max() <= (25 if name == "output" else 8) * ulp[dtype] * np.abs(expected[name]).max(), name
    np.testing.assert_array_equal(session.run(inputs).output, found.output)
    assert session.run(inputs).stages == {}


def test_positions_past_the_table_are_refused(spec_of, bundle_of, inputs_of):
    spec = spec_of("kind learned")
    session = RUNTIME.open(bundle_of(spec, random_weights(spec, 8)), Configuration("module", "float32"))
    inputs = inputs_of(spec, "float32")
    far = BlockInputs(**(vars(inputs) | {"position_ids": inputs.position_ids + 48}))
    with pytest.raises(SpecError, match="position_ids must be < 48, the end of the position table, got"):
        session.run(far)


def test_a_past_without_causality_is_refused(spec_of, bundle_of, inputs_of):
    spec = spec_of("window radius")
    session = RUNTIME.open(bundle_of(spec, random_weights(spec, 8)), Configuration("module", "float32"))
    inputs = inputs_of(spec, "float32")
    past = {"past_key": np.zeros((3, 6, 1, 12), np.float32), "past_value": np.zeros((3, 6, 1, 7), np.float32)}
    with pytest.raises(SpecError, match="cache must be None where causal is false"):
        session.run(BlockInputs(**(vars(inputs) | past)))


def test_what_is_shipped_is_what_is_judged(spec_of, bundle_of, inputs_of):
    """One weight of mlx/weights.safetensors off by a tenth shows, whatever else the bundle holds."""
    spec = spec_of("interleaved")
    bundle, inputs = bundle_of(spec, random_weights(spec, 8)), inputs_of(spec, "float32")
    before = RUNTIME.open(bundle, Configuration("module", "float32")).run(inputs).output
    path = bundle.path / "mlx" / "weights.safetensors"
    arrays = dict(mx.load(str(path)))
    arrays["o_proj.weight"][0, 0] += 0.1
    mx.save_safetensors(str(path), arrays)
    after = RUNTIME.open(bundle, Configuration("module", "float32")).run(inputs).output
    assert np.abs(after - before)[..., 0].max() > 0.01
    np.testing.assert_array_equal(after[..., 1:], before[..., 1:])


def test_what_the_runtime_says_of_itself(spec_of, bundle_of):
    assert base.get("mlx") is RUNTIME
    found = RUNTIME.availability()
    assert found.usable
    assert found.version == mx.__version__
    assert found.device.startswith(str(mx.default_device()))
    bundle = bundle_of(spec_of("none"), random_weights(spec_of("none"), 8))
    assert RUNTIME.configurations(bundle) == [Configuration("module", dtype) for dtype in DTYPE_NAMES]
    assert RUNTIME.gaps(bundle) == []
    (bundle.path / "mlx" / "config.json").unlink()
    with pytest.raises(SpecError, match=r"config\.json of the mlx folder cannot be read"):
        RUNTIME.open(bundle, Configuration("module", "float32"))


def test_importing_the_runtime_imports_no_framework():
    program = (
        "import sys",
        "import portpe.runtimes.mlx, portpe.runtimes.mlx.runtime, portpe.exporters.mlx",
        "print(sorted({'mlx', 'torch', 'onnx', 'onnxruntime', 'mlx_lm', 'transformers'} & set(sys.modules)))",
    )
    assert run(*program) == "[]"


def test_running_it_needs_no_torch_and_no_mlx_lm():
    """The block, its tables and a call: what a machine with only mlx has."""
    program = (
        "import sys",
        "for name in ('torch', 'onnx', 'onnxruntime', 'mlx_lm', 'transformers'): sys.modules[name] = None",
        "import mlx.core as mx",
        "from portpe.runtimes.mlx import Attention",
        "from portpe.spec import AttentionSpec",
        "spec = AttentionSpec(hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4, v_head_dim=4, scale=0.5,",
        "    rotary={'width': 4, 'schedule': {'kind': 'default'}})",
        "print(Attention(spec)(mx.ones((1, 3, 8)), 'causal').shape)",
    )
    assert run(*program) == "(1, 3, 8)"


def test_a_missing_mlx_is_a_reason():
    program = (
        "import importlib.util, sys",
        "sys.modules['mlx'] = None",
        "found = importlib.util.find_spec",
        "importlib.util.find_spec = lambda name, *a: None if name == 'mlx' else found(name, *a)",
        "from portpe.runtimes.base import get",
        "print(get('mlx').availability())",
    )
    text = run(*program)
    assert "usable=False" in text
    assert "mlx is not installed; pip install 'portpe[mlx]'" in text


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({"MLX_ENABLE_TF32": "1"}, "1")])
def test_float32_means_float32_unless_the_user_says_otherwise(given, expected):
    """mlx on some GPUs multiplies float32 with 11-bit operands by default; the device tells which it is."""
    program = (
        "import os",
        "from portpe.runtimes.base import get",
        "print(get('mlx').availability().device, os.environ['MLX_ENABLE_TF32'])",
    )
    assert run(*program, **given).endswith(f"MLX_ENABLE_TF32={expected} {expected}")


def test_the_docstring_of_the_package_runs(spec_of, bundle_of, monkeypatch):
    """The lines that a README shows."""
    import portpe.runtimes.mlx as package

    monkeypatch.chdir(bundle_of(spec_of("interleaved"), random_weights(spec_of("interleaved"), 8)).path)
    code = "\n".join(line[4:] for line in package.__doc__.splitlines() if line.startswith("    "))
    names = {}
    exec(code.replace("bundle/mlx", "mlx"), names)
    whole, token = (np.array(names[name].astype(mx.float32)) for name in ("whole", "token"))
    np.testing.assert_allclose(token, whole[:, 11:], rtol=0, atol=0.02)
    assert Path("mlx/config.json").exists()
