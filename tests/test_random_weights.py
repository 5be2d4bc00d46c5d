"""Weights without a checkpoint: by seed and name alone, the same bytes everywhere, wide enough to see a fault."""

import numpy as np
import pytest

from portpe.checkpoint import random_weights
from portpe.layer_parts import Norm, ProjectionBiases
from portpe.weight_shapes import weight_shapes
from tests.checkpoints import NORM, SPEC

SPECS = {
    "plain": SPEC,
    "wide heads": SPEC.model_copy(update={"head_dim": 64, "v_head_dim": 64, "scale": 0.125, "hidden_size": 96}),
    "unscaled (T5)": SPEC.model_copy(update={"head_dim": 16, "v_head_dim": 16, "scale": 1.0}),
    "tiny scale": SPEC.model_copy(update={"head_dim": 128, "v_head_dim": 128, "scale": 1 / 128}),
    "q and k norm": SPEC.model_copy(update={"q_norm": NORM, "k_norm": NORM, "head_dim": 32, "scale": 32**-0.5}),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_scores_are_several_units_whatever_the_scale(spec):
    weights = random_weights(spec, seed=5)
    x = np.random.default_rng(1).normal(size=(96, spec.hidden_size))
    q = (x @ weights["q_proj.weight"].T).reshape(96, spec.num_heads, -1)
    k = (x @ weights["k_proj.weight"].T).reshape(96, spec.num_kv_heads, -1)
    if spec.q_norm is not None:
        q, k = (z / np.sqrt((z**2).mean(-1, keepdims=True)) for z in (q, k))
        q, k = q * weights["q_norm.weight"], k * weights["k_norm.weight"]
    k = np.repeat(k, spec.num_heads // spec.num_kv_heads, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) * spec.scale
    assert 2 < scores.std() < 4.5
    probs = np.exp(scores[..., :12] - scores[..., :12].max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    assert probs.max(-1).mean() > 0.4  # uniform would be 0.083


def test_every_tensor_is_seen():
    """Nothing is zero, constant or, for norms, one: leaving it out must change numbers."""
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    spec = SPEC.model_copy(
        update={
            "biases": ProjectionBiases(q=True, k=True, v=True, o=True),
            "sinks": True,
            "input_norm": norm,
            "q_norm": norm,
            "k_norm": norm.model_copy(update={"weight_offset": 1.0}),
        }
    )
    weights = random_weights(spec, seed=0)
    assert {name: array.shape for name, array in weights.items()} == weight_shapes(spec)
    for name, array in weights.items():
        assert array.dtype == np.float32
        assert np.abs(array).max() < 10
        assert array.std() > 0.1 or name.endswith("_proj.weight")
    assert np.abs(weights["input_norm.weight"] - 1).mean() > 0.1
    assert abs(weights["k_norm.weight"].mean() + 1 - weights["q_norm.weight"].mean()) < 0.8


def test_random_weights_depend_on_seed_and_name_alone():
    first, again, other = random_weights(SPEC, 7), random_weights(SPEC, 7), random_weights(SPEC, 8)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert not np.array_equal(first["q_proj.weight"], other["q_proj.weight"])
    assert not np.array_equal(first["k_proj.weight"], first["v_proj.weight"])
    biased = random_weights(SPEC.model_copy(update={"biases": ProjectionBiases(q=True)}), 7)
    assert all(first[name].tobytes() == biased[name].tobytes() for name in first)


def test_random_weights_are_the_same_bytes_everywhere():
    """The recipe by hand: four 16-bit parts of each PCG64 draw, summed, centred, scaled."""
    seed = np.random.SeedSequence([7, *b"q_proj.weight"])
    draws = [int(x) for x in np.random.PCG64(seed).random_raw(480)]
    sums = [sum(x >> shift & 0xFFFF for shift in (0, 16, 32, 48)) - 131070 for x in draws]
    head_std = np.sqrt(3 / (0.5 * np.sqrt(4)))  # scores: scale * sqrt(head_dim) * head_std ** 2 = 3
    std = head_std / np.sqrt(20)  # hidden size 20
    got = random_weights(SPEC, 7)["q_proj.weight"].ravel().astype(float)
    np.testing.assert_allclose(got, std * np.array(sums) / np.sqrt((2**32 - 1) / 3), rtol=2**-23)
    assert [value.hex() for value in got[:3]] == PINNED


PINNED = ["-0x1.a9bd880000000p-3", "-0x1.34d9940000000p-3", "0x1.22b4d00000000p-2"]
