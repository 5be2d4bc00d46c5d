"""Golden values against the truth computed anew: whatever parts from it is refused before a runtime is judged."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from portpe import bundle as bundles
from portpe import parity
from portpe.errors import SpecError


def _resealed(folder, change):
    path = folder / "golden.safetensors"
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    cases = dict.fromkeys(name.partition("/")[0] for name in arrays)
    change(arrays)
    save_file(arrays, path, metadata={"cases": ",".join(cases)})
    _seal(folder)


def _seal(folder):
    bundles.seal(folder, json.loads((folder / "portpe.json").read_text()))


NAMES = ["stage.q", "stage.k", "stage.q_rotated", "stage.k_rotated", "stage.scores", "stage.probs", "stage.context"]


@pytest.mark.parametrize("name", [*NAMES, "output", "present_key", "present_value"])
def test_one_number_that_is_not_the_truth_is_refused(copy_of, name):
    """By a ten thousandth, which is far below what the eye sees and far above what float64 rounds."""
    folder = copy_of("rotary_default")

    def change(arrays):
        flat = arrays[f"decode/float32/{name}"].reshape(-1)
        flat[np.argmax(np.abs(flat))] += 1e-4

    _resealed(folder, change)
    with pytest.raises(
        SpecError, match=rf"{name.removeprefix('stage.')} of decode in float32 is off by 0.0001;"
    ) as error:
        parity.check(folder, ["onnxruntime"])
    assert "\n" not in str(error.value)


def test_values_of_another_spec_are_refused(copy_of, bundle_of):
    """The same weights under another theta: a bundle whose graphs and golden values agree, and its spec does not."""
    folder, other = copy_of("rotary_llama3"), bundle_of("rotary_default", ("float32",)).path
    (folder / "golden.safetensors").write_bytes((other / "golden.safetensors").read_bytes())
    _seal(folder)
    with pytest.raises(SpecError, match="golden values must be the truth of the bundle's spec and weights, and "):
        parity.check(folder, ["onnxruntime"])


def test_values_of_another_shape_are_refused(copy_of):
    folder = copy_of("rotary_default")
    _resealed(folder, lambda arrays: arrays.update({"prefill/float32/output": np.zeros((3, 44))}))
    with pytest.raises(SpecError, match=r"output of prefill in float32 has shape \[3, 44\], its truth \[8, 44\]"):
        parity.check(folder, ["onnxruntime"])
