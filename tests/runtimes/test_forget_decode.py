"""FoX's forgetting bias while a cache grows, and over ranges that one running sum in float32 does not hold."""

import math

import mlx.core as mx
import numpy as np
import pytest

from portpe.biases.forget import SUM_BLOCK
from portpe.encodings import ForgetEncoding
from portpe.errors import SpecError
from portpe.interface import BlockInputs
from portpe.parity import bounds
from portpe.random_weights import random_weights
from portpe.runtimes import onnx_reference
from portpe.runtimes.mlx import Attention, PastCache
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.spec import AttentionSpec
from tests.exporters.onnx.blocks import LAYER
from tests.exporters.onnx.files import write

SIZES = {"hidden_size": 12, "num_heads": 3, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 5, "scale": 0.4}
SPEC = AttentionSpec(**SIZES, bias=(ForgetEncoding(),))
LONG = 100_003
GATES = (-3e-4, -0.1, -9.1)  # of the three heads: near 1, as trained ones are; of middling length; nearly shut


@pytest.fixture(scope="module")
def weights():
    return random_weights(SPEC, 6)


@pytest.fixture(scope="module")
def files(weights, tmp_path_factory):
    return {
        form: write(tmp_path_factory.mktemp(form), SPEC, weights, "float32", form=form)
        for form in ("portable", "standard")
    }


def long_call(gates, mask=None):
    """Three new tokens behind LONG cached ones, whose keys are 0: scores are the bias alone but for the new ones."""
    rng = np.random.default_rng(8)
    slots = np.arange(LONG + 3)[None]
    return BlockInputs(
        hidden_states=rng.standard_normal((1, 3, 12), np.float32),
        position_ids=slots[:, LONG:],
        attention_mask=np.ones((1, LONG + 3), np.int64) if mask is None else mask,
        key_position_ids=slots,
        past_key=np.zeros((1, 1, LONG, 8), np.float32),
        past_value=np.zeros((1, 1, LONG, 5), np.float32),
        past_states={"gate": gates[None]},
    )


def constant():
    """Every token's gate alike: errors of a running sum have one sign."""
    return np.repeat(np.array(GATES, np.float32)[:, None], LONG, axis=1)


def scattered():
    draws = np.random.default_rng(2).standard_normal((3, LONG)).astype(np.float32)
    return constant() * np.exp(draws)


def run(runtime, files, weights, inputs):
    """(heads, 3, LONG + 3) of scores, and the gates of the new tokens."""
    if runtime == "mlx":
        block = Attention(SPEC)
        block.load(weights)
        ids = inputs.position_ids, inputs.attention_mask
        past = (mx.array(inputs.past_key), mx.array(inputs.past_value))
        states = {"gate": mx.array(inputs.past_states["gate"])}
        given = {"key_position_ids": inputs.key_position_ids, "past_states": states}
        found = block.stages(mx.array(inputs.hidden_states), *ids, *past, **given)
        return np.array(found["scores"])[0], np.array(found["present_gate"])[0]
    session = {
        "onnxruntime": lambda: OnnxRuntimeSession(SPEC, LAYER, files.path, files.stages_path, files.end),
        "onnx-reference": lambda: onnx_reference.OnnxReferenceSession(
            SPEC, LAYER, files.path, files.stages_path, files.end
        ),
    }[runtime]()
    found = session.run(inputs, stages=True)
    return found.stages["scores"][0], found.present_states["gate"][0]


def exact_sums(gates, end):
    """Of the slot before ``end`` some cached keys, near and far, and the sums (heads, keys) behind them, each correctly
    rounded.
    """
    places = [LONG - distance for distance in (1, 3, 20, 200, 255, 256, 300, 2500, 9000, 33000, 70001, LONG)]
    sums = [[math.fsum(head[place + 1 : end]) for place in places] for head in gates.astype(np.float64)]
    return places, np.array(sums)


def bound_of(sums):
    return bounds.blocked_sum(LONG, SUM_BLOCK) * np.abs(sums) + bounds.C * 2.0**-24 * np.abs(sums)


@pytest.mark.parametrize("drawn", [constant, scattered])
@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx-reference", "mlx"])
def test_a_range_of_100000_tokens_has_its_digits(runtime, drawn, files, weights):
    """Against sums that are correctly rounded; past keys are 0, so their scores are the bias alone."""
    inputs = long_call(drawn())
    scores, gates = run(runtime, files["portable"], weights, inputs)
    np.testing.assert_array_equal(gates[:, :LONG], inputs.past_states["gate"][0])
    for row in (0, 2):
        places, sums = exact_sums(gates, LONG + row + 1)
        errors = np.abs(scores[:, row, places] - sums)
        assert (errors <= bound_of(sums)).all()
        assert errors[np.abs(sums) < 3.0].max() < 4e-6  # of the keys that still count


def test_what_runtimes_must_not_do_leaves_the_bound():
    """One float32 sum from the first token on and differences of it, or one from the query back without blocks."""
    gates = constant()
    places, sums = exact_sums(gates, LONG)
    running = np.cumsum(gates, axis=1, dtype=np.float32)
    of_differences = running[:, -1:] - running[:, places]
    assert (np.abs(of_differences - sums) > bound_of(sums)).any(axis=1).all()
    back = np.cumsum(gates[:, ::-1], axis=1, dtype=np.float32)[:, ::-1]
    of_one_sum = (back - gates)[:, places]
    assert (np.abs(of_one_sum - sums) > bound_of(sums)).any()


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx-reference", "mlx"])
def test_slots_that_are_masked_in_the_middle_add_nothing(runtime, files, weights):
    mask = (np.random.default_rng(3).random((1, LONG + 3)) < 0.7).astype(np.int64)
    mask[:, LONG:] = 1
    inputs = long_call(scattered(), mask)
    scores, gates = run(runtime, files["portable"], weights, inputs)
    places, sums = exact_sums(gates * mask, LONG + 3)
    assert 4 < mask[0, places].sum() < len(places)
    seen = mask[0, places] == 1
    assert (np.abs(scores[:, 2, places] - sums) <= bound_of(sums))[:, seen].all()


# --- a cache that grows ------------------------------------------------------------------------


def test_steps_and_chunks_equal_the_whole_in_mlx(weights):
    """PastCache keeps the gates; a batch with left padding, its mask by array."""
    block = Attention(SPEC)
    block.load(weights)
    x = mx.array(np.random.default_rng(1).standard_normal((2, 11, 12)).astype(np.float32))
    pads = np.array([0, 3])
    kept = np.arange(11)[None] >= pads[:, None]
    causal = np.tril(np.ones((11, 11), bool))[None, None] & kept[:, None, None, :]
    whole = np.array(block(x, mx.array(causal)))
    cache, start, parts = PastCache.empty(SPEC, 2), 0, []
    for count in (4, 1, 1, 3, 2):
        end = start + count
        parts.append(np.array(block(x[:, start:end], mx.array(causal[:, :, start:end, :end]), cache)))
        start = end
    assert cache.states["gate"].shape == (2, 3, 11)
    found = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(found[kept], whole[kept], rtol=0, atol=3e-6)
    alone = np.array(block(x[1:, 3:], "causal"))
    np.testing.assert_allclose(whole[1, 3:], alone[0], rtol=0, atol=3e-6)


def test_caches_of_mlx_lm_are_refused_by_name(weights):
    from mlx_lm.models import cache as mlx_caches

    block = Attention(SPEC)
    block.load(weights)
    for kind in (mlx_caches.KVCache(), mlx_caches.RotatingKVCache(8), mlx_caches.BatchKVCache([0])):
        message = rf"^cache must keep gate besides keys and values \(update_states\), got {type(kind).__name__}; "
        with pytest.raises(SpecError, match=message + r"use PastCache\.empty\(spec\)$"):
            block(mx.zeros((1, 2, 12)), None, kind)


def test_a_cache_whose_gates_are_of_other_tokens_is_refused(weights):
    block = Attention(SPEC)
    block.load(weights)
    keys, values = mx.zeros((1, 1, 4, 8)), mx.zeros((1, 1, 4, 5))
    for states, found in (({}, "none"), ({"gate": mx.zeros((1, 3, 3))}, r"\(1, 3, 3\)")):
        with pytest.raises(SpecError, match=rf"^past_states\.gate must have shape \(1, 3, 4\), got {found}$"):
            block(mx.zeros((1, 1, 12)), None, PastCache(keys, values, states))


@pytest.mark.parametrize("form", ["portable", "standard"])
def test_a_graph_is_not_run_without_its_gates(form, files):
    session = OnnxRuntimeSession(SPEC, LAYER, files[form].path, None, files[form].end)
    inputs = long_call(constant())
    with pytest.raises(
        SpecError, match=r"^past_states must hold gate \(1, 3, 100003\), which an earlier call gave, got none$"
    ):
        session.run(BlockInputs(**{**vars(inputs), "past_states": {}}))
    half = {"gate": inputs.past_states["gate"].astype(np.float16)}
    with pytest.raises(SpecError, match=r"^past_states\.gate must be float32, got float16$"):
        session.run(BlockInputs(**{**vars(inputs), "past_states": half}))
