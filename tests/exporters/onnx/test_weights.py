"""What the shared weights file holds."""

import ml_dtypes
import numpy as np
import pytest

from portpe.errors import SpecError
from portpe.exporters.onnx import graph_weights
from portpe.weight_shapes import weight_shapes
from tests.exporters.onnx.blocks import SPECS, random_weights


def test_projections_are_transposed_and_nothing_else_is():
    spec = SPECS["all-together"]
    weights = random_weights(spec, "float32")
    found = graph_weights(spec, weights, "float32")
    assert list(found) == list(weight_shapes(spec))
    for name, array in found.items():
        assert array.flags.c_contiguous
        if name.endswith("_proj.weight"):
            np.testing.assert_array_equal(array, weights[name].T)
        else:
            np.testing.assert_array_equal(array, weights[name])


@pytest.mark.parametrize(
    ("name", "q_shape", "k_shape"),
    [
        ("q-k-norm-rms", (8,), (8,)),
        ("q-k-norm-heads", (6, 1, 8), (2, 1, 8)),
        ("q-k-norm-all-heads", (6, 1, 8), (3, 1, 8)),
    ],
)
def test_norm_weights_broadcast_over_heads(name, q_shape, k_shape):
    spec = SPECS[name]
    weights = random_weights(spec, "float32")
    found = graph_weights(spec, weights, "float32")
    for part, shape in (("q_norm.weight", q_shape), ("k_norm.weight", k_shape)):
        assert found[part].shape == shape
        np.testing.assert_array_equal(found[part].ravel(), weights[part].ravel())


def test_a_norms_offset_stays_outside():
    """1 + w has fewer digits left for w."""
    spec = SPECS["input-norm-offset"]
    weights = random_weights(spec, "float32") | {"input_norm.weight": np.full(20, 1e-4, np.float32)}
    found = graph_weights(spec, weights, "bfloat16")["input_norm.weight"]
    np.testing.assert_array_equal(found, np.full(20, 1e-4, ml_dtypes.bfloat16))


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16"])
def test_each_weight_is_rounded_once(source, target):
    spec = SPECS["none"]
    weights = random_weights(spec, source)
    found = graph_weights(spec, weights, target)["o_proj.weight"].astype(np.float64)
    exact = weights["o_proj.weight"].T.astype(np.float64)
    ulp = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[target]
    lossless = source == target or target == "float32"
    allowed = 0 if lossless else ulp * np.abs(exact) + 2.0**-25
    assert (np.abs(found - exact) <= allowed).all()


def test_a_weight_that_the_type_cannot_hold_is_refused():
    spec = SPECS["none"]
    weights = random_weights(spec, "float32")
    weights["k_proj.weight"][3, 4] = 70000.0
    message = r"weights\.k_proj\.weight must fit into float16, got a value of 70000; export another dtype"
    with pytest.raises(SpecError, match=message):
        graph_weights(spec, weights, "float16")
    assert np.isfinite(graph_weights(spec, weights, "bfloat16")["k_proj.weight"].astype(np.float32)).all()


def test_missing_and_misshapen_weights_are_refused():
    spec = SPECS["sinks"]
    weights = random_weights(spec, "float32")
    with pytest.raises(SpecError, match=r"weights\.sinks must have shape \(6,\), got \(2,\)"):
        graph_weights(spec, weights | {"sinks": np.zeros(2, np.float32)}, "float32")
    del weights["sinks"]
    with pytest.raises(SpecError, match=r"weights must hold sinks \(6,\), got none"):
        graph_weights(spec, weights, "float32")
