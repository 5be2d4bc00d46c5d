"""The trained length crossed in decode, by rows of different lengths: each step against a whole sequence of its length.

The truth knows no cache and no pads: the reference in float64 on one row's tokens alone, under the schedule of their
number. The bound is that of the whole call.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from portpe import parity
from portpe.bundle import Bundle
from portpe.exporting import export
from portpe.interface import BlockInputs
from portpe.parity.call import expected
from portpe.parity.layouts import trained_length
from portpe.parity.stages import Block
from portpe.reference import Attention
from portpe.runtimes import base
from portpe.runtimes.base import Configuration
from portpe.runtimes.onnxruntime import BlockDecoder
from tests.kinds import make_spec

FOLLOWING = ("rotary_dynamic_by_length", "rotary_dynamic_yarn_by_length", "rotary_longrope_by_length")
FIXED = ("rotary_dynamic", "rotary_dynamic_yarn", "rotary_longrope")
RUNNERS = {
    "pytorch": ("pytorch", Configuration("module", "float32", "cpu")),
    **{
        f"onnxruntime-{level}": ("onnxruntime", Configuration("portable", "float32", "CPUExecutionProvider", level))
        for level in ("disable", "basic", "extended", "all")
    },
    "onnx-reference": ("onnx-reference", Configuration("portable", "float32")),
    "mlx": ("mlx", Configuration("module", "float32")),
}
PADS = (0, 2, 5)
STEPS = 9


def session_of(bundle, runner):
    name, configuration = RUNNERS[runner]
    return base.get(name).open(bundle, configuration)


def states_of(spec, batch, length, seed=5):
    """Numbers that float32 holds."""
    return np.random.default_rng(seed).standard_normal((batch, length, spec.input_width)).astype(np.float32)


def whole_call(spec, x, pads):
    """A call of a left-padded batch without a cache."""
    batch, rows, _ = x.shape
    mask = (np.arange(rows) >= np.array(pads)[:, None]).astype(np.int64)
    places = np.maximum(np.arange(rows) - np.array(pads)[:, None], 0)
    empty = [np.zeros((batch, spec.num_kv_heads, 0, width), np.float32) for width in (spec.head_dim, spec.v_head_dim)]
    return BlockInputs(x, places, mask, places, *empty)


def step_of(inputs, row, present_key, present_value):
    """The call of slot ``row`` alone, behind the cache of those before it."""
    return BlockInputs(
        inputs.hidden_states[:, row : row + 1],
        inputs.position_ids[:, row : row + 1],
        inputs.attention_mask[:, : row + 1],
        inputs.key_position_ids[:, : row + 1],
        present_key,
        present_value,
    )


def last_row(spec, weights, x, pads):
    """(B, hidden): the last token's output, each row from its own tokens alone."""
    if spec.deferred_rotation:  # a whole sequence, so its own length, and no cache to turn late
        spec = spec.model_copy(update={"rotary": spec.rotary.model_copy(update={"regime": None})})
    block = Attention(spec, dtype=torch.float64).load({name: w.astype(np.float64) for name, w in weights.items()})
    rows = [block(torch.from_numpy(x[b : b + 1, pad:].astype(np.float64))).output[0, -1] for b, pad in enumerate(pads)]
    return torch.stack(rows).numpy()


def bound_of(spec, bundle, inputs):
    """(B, hidden): how far the last row of a whole call may be off, and what it is."""
    batch, rows, _ = inputs.hidden_states.shape
    pairs = np.array([(b, rows - 1) for b in range(batch)])
    golden = SimpleNamespace(case=SimpleNamespace(pairs=pairs, slots=pairs), inputs=inputs, dtype="float32")
    return expected(Block(spec, bundle.weights(), bundle.tables(), "float32"), golden).output


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", [*FOLLOWING, *FIXED])
def test_every_step_equals_the_whole_sequence_of_its_length(bundle_of, name, runner):
    bundle = bundle_of(name)
    spec, weights = bundle.spec, bundle.weights()
    session, prompt = session_of(bundle, runner), trained_length(spec) - 1
    x = states_of(spec, len(PADS), prompt + STEPS)
    whole = whole_call(spec, x, PADS)
    outputs = session.run(whole_call(spec, x[:, :prompt], PADS))
    for row in range(prompt, prompt + STEPS):
        outputs = session.run(step_of(whole, row, outputs.present_key, outputs.present_value))
        truth = last_row(spec, weights, x[:, : row + 1], PADS)
        bound = bound_of(spec, bundle, whole_call(spec, x[:, : row + 1], PADS))
        np.testing.assert_allclose(bound.value, truth, rtol=1e-10, atol=1e-11)
        assert (np.abs(outputs.output[:, 0] - truth) <= bound.error).all(), row - prompt


@pytest.mark.parametrize("name", FOLLOWING)
def test_the_bound_is_far_from_what_keys_of_another_length_would_give(bundle_of, name):
    """Keys turned by the schedule of the trained length, and a query by that of the next: a thousand bounds away."""
    bundle = bundle_of(name)
    spec, trained = bundle.spec, trained_length(bundle.spec)
    x = states_of(spec, 1, trained + 4)
    whole = whole_call(spec, x, (0,))
    bound = bound_of(spec, bundle, whole)

    def fixed(length):
        regime = {"kind": "fixed", "length": length}
        layer = type(spec).from_dict(
            {**spec.to_dict(), "rotary": {**spec.rotary.model_dump(mode="json"), "regime": regime}}
        )
        weights = {name: w.astype(np.float64) for name, w in bundle.weights().items()}
        return Attention(layer, dtype=torch.float64).load(weights)

    states = torch.from_numpy(x.astype(np.float64))
    stale = fixed(trained)(states[:, :-1])
    mixed = fixed(trained + 4)(states[:, -1:], past_key=stale.present_key, past_value=stale.present_value)
    assert (np.abs(mixed.output[0].numpy() - bound.value) / bound.error).max() > 1000


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", FOLLOWING)
def test_the_order_of_calls_changes_no_bit(bundle_of, name, runner):
    """A call after a longer one is what it was before it; also at the trained length itself."""
    bundle = bundle_of(name)
    spec, session = bundle.spec, session_of(bundle, runner)
    for short in (trained_length(spec) // 2, trained_length(spec)):
        x = states_of(spec, 2, 4 * short)
        first = session.run(whole_call(spec, x[:, :short], (0, 3)))
        session.run(whole_call(spec, x, (0, 3)))
        again = session.run(whole_call(spec, x[:, :short], (0, 3)))
        np.testing.assert_array_equal(again.output, first.output)
        np.testing.assert_array_equal(again.present_key, first.present_key)


# --- decode loops -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """A decoder over a kind's bundle in one form, and the bundle."""
    made = {}

    def open_form(name, form):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("crossing") / name
            forms = ("portable", "standard", "shared")
            export(make_spec(name, sinks=False), made[name], forms=forms, golden=False)
        bundle = Bundle.open(made[name])
        return BlockDecoder.open(
            bundle, capacity=trained_length(bundle.spec) + STEPS, batch=len(PADS), form=form
        ), bundle

    return open_form


@pytest.mark.parametrize("form", ["portable", "standard", "shared"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_decode_loop_crosses_and_goes_back(decoded, name, form):
    """Rows of different lengths cross one after the other; after a rewind to before the switch, so they do again."""
    decoder, bundle = decoded(name, form)
    spec, prompt = bundle.spec, trained_length(bundle.spec) - 1
    x = states_of(spec, len(PADS), prompt + STEPS)
    whole = whole_call(spec, x, PADS)
    decoder.prefill(x[:, :prompt], whole.attention_mask[:, :prompt])
    steps = [decoder.step(x[:, row : row + 1]) for row in range(prompt, prompt + STEPS)]
    for row, output in enumerate(steps, start=prompt):
        truth = last_row(spec, bundle.weights(), x[:, : row + 1], PADS)
        bound = bound_of(spec, bundle, whole_call(spec, x[:, : row + 1], PADS)).error
        assert (np.abs(output[:, 0] - truth) <= bound).all(), row - prompt
    assert decoder.position_ids[:, -1].tolist() == [prompt + STEPS - 1 - pad for pad in PADS]
    decoder.rewind(prompt)
    for row, output in enumerate(steps, start=prompt):
        np.testing.assert_array_equal(decoder.step(x[:, row : row + 1]), output)


def test_a_decoder_keeps_every_key_so_it_goes_back_behind_its_window(decoded):
    """Window 9, dozens of tokens, back to 3, and on: as from the first 3 tokens alone. A ring could not do that."""
    decoder, bundle = decoded("rotary_dynamic_by_length", "portable")
    assert bundle.spec.window == 9
    x = states_of(bundle.spec, len(PADS), 40)
    decoder.prefill(x)
    decoder.rewind(3)
    again = decoder.step(x[:, 3:7])
    decoder.prefill(x[:, :3])
    np.testing.assert_array_equal(again, decoder.step(x[:, 3:7]))


def test_keys_are_cached_as_they_were_projected(decoded):
    """The cache holds k, whatever the length; the same keys turned late are the stage k_rotated."""
    decoder, bundle = decoded("rotary_longrope_by_length", "shared")
    spec, rows = bundle.spec, trained_length(bundle.spec) + 3
    x = states_of(spec, len(PADS), rows)
    decoder.prefill(x)
    weights = {name: w.astype(np.float64) for name, w in bundle.weights().items()}
    stages = Attention(spec, dtype=torch.float64).load(weights).stages(torch.from_numpy(x.astype(np.float64)))
    keys, _ = decoder.past_key_values
    np.testing.assert_allclose(keys, stages["k"].numpy(), rtol=0, atol=2e-5)
    assert np.abs(keys - stages["k_rotated"].numpy()).max() > 1


def test_transformers_numbers_switch_by_row_too(tmp_path):
    """precision hf: both sets of transformers' float32 cos and sin stand in the bundle, for every runtime."""
    spec = make_spec("rotary_longrope_by_length", sinks=False)
    forms = ("portable", "standard", "shared")
    bundle = export(spec.with_precision("hf"), tmp_path / "hf", forms=forms, table_positions=300)
    assert {f"{side}_{wave}" for side in ("short", "long") for wave in ("cos", "sin")} == set(bundle.tables())
    assert bundle.tables()["long_cos"].shape == (300, spec.rotary.width // 2)
    report = parity.check(bundle, matrix="quick")
    assert report.passed
    assert {check.runtime for check in report.checks} == set(base.names())
    assert "crossing_trained_length" in {check.case for check in report.checks}
