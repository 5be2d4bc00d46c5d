"""Each stage is judged alone: a fault is found where it arises, and nowhere else."""

import dataclasses

import numpy as np
import pytest

from portpe.interface import BlockOutputs, stages_of
from portpe.parity import call, walk
from portpe.parity.stages import Block
from portpe.runtimes import base
from portpe.runtimes.base import Configuration


@pytest.fixture(scope="module")
def ran(bundle_of):
    """One call of the PyTorch runtime that is right: the block, the case, its outputs and stages."""

    def get(kind="rotary_yarn", case="chunked_prefill", dtype="float32"):
        bundle = bundle_of(kind)
        block = Block(bundle.spec, bundle.weights(), bundle.tables(), dtype)
        golden = next(one for one in bundle.golden(dtype) if one.name == case)
        session = base.get("pytorch").open(bundle, Configuration("module", dtype, "cpu"))
        return block, golden, session.run(golden.inputs, stages=True)

    return get


def _failed(found):
    return [one.stage for one in found if not one.passed]


def _stages(ran_call, **changed):
    block, golden, outputs = ran_call
    return walk.each_stage(block, golden, {**outputs.stages, **changed})


def test_every_stage_is_judged_once_and_in_order(ran):
    found = _stages(ran("learned"))
    assert [one.stage for one in found] == [*stages_of(ran("learned")[0].spec)[:-1], "output_projection"]
    assert _failed(found) == []


@pytest.mark.parametrize("stage", ["q", "k", "v", "q_rotated", "k_rotated", "scores", "probs", "context", "output"])
def test_a_fault_is_named_where_it_arises(ran, stage):
    """One stage scaled by 1 + 1e-3, and everything after it computed rightly from that: one failure."""
    block, golden, outputs = ran()
    changed = _continued(block, golden.inputs, outputs.stages, stage)
    named = "output_projection" if stage == "output" else stage
    assert _failed(walk.each_stage(block, golden, changed)) == [named]


def _continued(block, inputs, stages, faulty):
    """The stages after a faulty one, by torch from the faulty values: what a runtime with that fault would give."""
    import torch

    from portpe.reference import Attention, dot_product
    from portpe.reference.bias import ScoreInputs
    from portpe.reference.inputs import Inputs
    from portpe.reference.mask import visible

    spec = block.spec
    weights = {name: np.asarray(array, np.float32) for name, array in block._weights.items()}
    reference = Attention(spec).load(weights)
    found = {name: torch.from_numpy(array.copy()) for name, array in stages.items()}
    found[faulty] = found[faulty] * (1 + 1e-3)
    order = stages_of(spec)
    after = order[order.index(faulty) + 1 :]
    call_inputs = Inputs(
        *(torch.from_numpy(getattr(inputs, name)) for name in ("hidden_states", "position_ids", "key_position_ids")),
        torch.from_numpy(inputs.attention_mask).bool(),
        torch.from_numpy(inputs.past_key),
        torch.from_numpy(inputs.past_value),
    )
    if faulty in ("q", "k"):
        found |= reference._rotate(found["q"], found["k"], call_inputs)
    keys = torch.cat((call_inputs.past_key, found["k_rotated"]), dim=2)
    values = torch.cat((call_inputs.past_value, found["v"]), dim=2)
    rows = inputs.hidden_states.shape[1]
    seen = visible(spec, rows, inputs.past, call_inputs.attention_mask, torch.device("cpu"))
    if "scores" in after:
        ids = (call_inputs.query_positions, call_inputs.key_positions)
        found["scores"] = reference._score(
            ScoreInputs(call_inputs.hidden_states, found["q_rotated"], keys, *ids, seen, {}, reference._project_rows)
        )
    if "probs" in after:
        found["probs"] = dot_product.probabilities(found["scores"], seen, reference.sinks)
    if "context" in after:
        found["context"] = dot_product.mix(found["probs"], values)
    if "output" in after:
        found["output"] = reference.o_proj(found["context"].transpose(1, 2).flatten(2))
    return {name: tensor.numpy() for name, tensor in found.items()}


def test_a_masked_key_must_have_probability_zero(ran):
    block, golden, outputs = ran(case="left_padded")
    batch, row = next(pair for pair in golden.case.pairs if golden.inputs.attention_mask[pair[0], 0] == 0)
    probs = outputs.stages["probs"].copy()
    probs[batch, :, row, 0] = 1e-30  # a pad
    found = {one.stage: one for one in walk.each_stage(block, golden, {**outputs.stages, "probs": probs})}
    assert not found["probs"].passed


def test_masked_scores_hold_no_meaning(ran):
    block, golden, outputs = ran(case="left_padded")
    hidden = np.triu(np.ones(outputs.stages["scores"].shape[-2:], bool), 1)
    for value in (-np.inf, np.nan, 1e30):
        scores = np.where(hidden, np.float32(value), outputs.stages["scores"])
        assert _failed(walk.each_stage(block, golden, {**outputs.stages, "scores": scores})) == []


def test_pad_rows_are_not_compared_but_must_be_finite(ran):
    block, golden, outputs = ran(case="left_padded")
    pad = golden.inputs.attention_mask == 0
    q = outputs.stages["q"].copy().swapaxes(1, 2)
    q[pad] += 100
    changed = {**outputs.stages, "q": q.swapaxes(1, 2)}
    assert "q" not in _failed(walk.each_stage(block, golden, changed))
    q[pad] = np.nan
    found = {one.stage: one for one in walk.each_stage(block, golden, {**changed, "q": q.swapaxes(1, 2)})}
    assert found["q"].problem == "it has NaN or infinity"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda q: q[:, :, :-1], "shape must be"),
        (lambda q: q.swapaxes(1, 2), "shape must be"),
        (lambda q: q.astype(np.float64), "type must be float32, got float64"),
        (lambda q: np.where(q == q.max(), np.inf, q), "NaN or infinity"),
    ],
)
def test_a_stage_that_cannot_be_compared_fails(ran, change, problem):
    found = {one.stage: one for one in _stages(ran(), q=change(ran()[2].stages["q"]))}
    assert problem in found["q"].problem
    assert _failed(found.values()) == ["q"]


def test_a_missing_stage_is_bridged(ran):
    """A runtime with one fused operator gives no scores and no probs: its context is judged from q, k and v."""
    block, golden, outputs = ran()
    given = {name: array for name, array in outputs.stages.items() if name not in ("scores", "probs", "q_rotated")}
    found = walk.each_stage(block, golden, given)
    assert {"scores", "probs", "q_rotated"}.isdisjoint(one.stage for one in found)
    assert _failed(found) == []
    given["context"] = given["context"] * np.float32(1 + 1e-3)
    assert _failed(walk.each_stage(block, golden, given))[0] == "context"


def test_full_judges_every_head_and_row(ran):
    """A fault in one row of one head that no sample holds."""
    block, golden, outputs = ran(case="prefill")
    kept = np.argwhere(golden.inputs.attention_mask[:, golden.inputs.past :] == 1)
    sampled = {tuple(pair) for pair in golden.case.pairs}
    batch, row = next(tuple(pair) for pair in kept if tuple(pair) not in sampled)
    probs = outputs.stages["probs"].copy()
    probs[batch, 2, row, 0] += 0.01
    changed = {**outputs.stages, "probs": probs}
    assert "probs" not in _failed(walk.each_stage(block, golden, changed))
    assert "probs" in _failed(walk.each_stage(block, golden, changed, full=True))


# --- the whole call --------------------------------------------------------------------------


def _judged(ran_call, **changed):
    block, golden, outputs = ran_call
    replaced = dataclasses.replace(outputs, **changed)
    return {one.stage: one for one in call.judge(block, golden, call.expected(block, golden), replaced)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_call_passes(ran, dtype):
    found = _judged(ran(dtype=dtype))
    assert list(found) == ["output", "present_key", "present_value"]
    assert _failed(found.values()) == []


@pytest.mark.parametrize("name", ["output", "present_key", "present_value"])
def test_each_result_is_judged(ran, name):
    one = ran()
    array = getattr(one[2], name)
    found = _judged(one, **{name: array * np.float32(1 + 1e-3)})
    assert _failed(found.values()) == [name]
    assert "shape must be" in _judged(one, **{name: array[:, :-1]})[name].problem
    assert "type must be" in _judged(one, **{name: array.astype(np.float16)})[name].problem
    nan = np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array).astype(np.float32)
    assert "NaN" in _judged(one, **{name: nan})[name].problem


def test_the_cache_must_come_back_bit_for_bit(ran):
    """One cached number moved by one unit in the last place, in a place that nobody samples."""
    one = ran()
    key = one[2].present_key.copy()
    key[1, 1, 3, 2] = np.nextafter(key[1, 1, 3, 2], np.float32(9))
    assert _judged(one, present_key=key)["present_key"].problem.startswith("cached entries were changed")


def test_a_causal_block_must_give_its_cache_and_an_encoder_need_not(ran):
    assert _judged(ran(), present_key=None)["present_key"].problem == "it is missing"
    encoder = ran("rotary_bidirectional", case="prefill")
    assert list(_judged(encoder, present_key=None, present_value=None)) == ["output"]
    assert isinstance(encoder[2], BlockOutputs)
