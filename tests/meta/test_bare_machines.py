"""A bundle made elsewhere, judged on a machine that has one runtime and nothing else, by the command itself."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from portpe import bundle as bundles
from portpe.bundle import Bundle

# Every finder is asked, and those packages are not found: as on a machine where they are not installed.
COMMAND = """
import sys
absent = set(sys.argv.pop(1).split(","))
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from portpe.cli import main
try:
    main()
finally:
    assert absent.isdisjoint(sys.modules), absent & set(sys.modules)
"""
FRAMEWORKS = (
    "torch",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "mlx",
    "mlx_lm",
    "transformers",
    "jinja2",
    "matplotlib",
)


def parity(folder, present):
    absent = ",".join(name for name in FRAMEWORKS if name != present)
    arguments = [sys.executable, "-c", COMMAND, absent, "parity", str(folder)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def _renewed(folder):
    bundles.seal(folder, Bundle.open(folder, verify=False).manifest)


@pytest.fixture
def bundle(copy_of):
    return copy_of("rotary_llama3", ("float32", "float16", "bfloat16"))


@pytest.mark.parametrize(("package", "runtime"), [("onnxruntime", "onnxruntime"), ("mlx", "mlx")])
def test_passes_with_one_runtime_alone(bundle, package, runtime):
    done = parity(bundle, package)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((bundle / "report.json").read_text())
    assert report["passed"] is True
    assert {check["runtime"] for check in report["checks"]} == {runtime}
    stages = {check["stage"] for check in report["checks"]}
    assert {"q_rotated", "scores", "probs", "output", "present_key"} <= stages
    unavailable = {row["runtime"] for row in report["unavailable"] if "installed" in row["reason"]}
    assert unavailable == {"pytorch", "onnxruntime", "onnx-reference", "mlx"} - {runtime}


def test_says_so_when_nothing_can_run(bundle):
    assert parity(bundle, None).returncode == 3


# --- one value that matters ------------------------------------------------------------------


def _scale_column(path, table, column, factor):
    model = onnx.load(path, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == table)
    array = numpy_helper.to_array(tensor).copy()
    array[:, column] *= np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array, table))
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("graph", ["portable_float32.onnx", "portable_float32.stages.onnx"])
@pytest.mark.parametrize("table", ["cos_hi", "sin_hi", "cos_lo", "sin_lo"])
def test_one_scaled_table_column_is_a_difference(copy_of, table, graph):
    """In the production graph alone, where the bound of the whole block must show it, and in the stages graph."""
    bundle = copy_of("rotary_llama3")
    _scale_column(bundle / "onnx" / graph, table, 2, 1 + 1e-3)
    unrenewed = parity(bundle, "onnxruntime")
    assert unrenewed.returncode == 2
    assert unrenewed.stderr.count("\n") == 1
    assert f"onnx/{graph} is not the file that was exported" in unrenewed.stderr
    _renewed(bundle)
    assert parity(bundle, "onnxruntime").returncode == 1


@pytest.mark.parametrize("part", ["q", "k", "v", "o"])
def test_one_weight_changed_by_a_tenth_is_a_difference(copy_of, part):
    """One number of one matrix, of middling size."""
    bundle = copy_of("rotary_llama3")
    path, name = bundle / "mlx" / "weights.safetensors", f"{part}_proj.weight"
    weights = {key: array.copy() for key, array in load_file(path).items()}
    flat = weights[name].reshape(-1)
    place = int(np.argsort(np.abs(flat))[flat.size // 2])
    flat[place] *= np.float32(1.1)
    save_file(weights, path, metadata={"format": "mlx"})
    unrenewed = parity(bundle, "mlx")
    assert unrenewed.returncode == 2
    assert unrenewed.stderr.count("\n") == 1
    _renewed(bundle)
    done = parity(bundle, "mlx")
    assert done.returncode == 1, done.stdout
    first = {"q": "q", "k": "k", "v": "v", "o": "output_projection"}[part]
    assert f"first divergence: {first} " in " ".join(done.stdout.split())
