"""The numpy block against the PyTorch reference in float64, stage by stage: two programs, one set of numbers."""

import numpy as np
import pytest

from portpe.golden import kv_heads_of
from portpe.interface import stages_of
from portpe.parity import linear_attention
from portpe.parity.bounds import given
from portpe.parity.call import attend, expected, turned_keys, with_cached
from portpe.parity.stages import Block, visible_keys


def _stages(block, golden):
    """Every stage at a case's places, without a runtime: each computed from the one before."""
    spec, case, inputs = block.spec, golden.case, golden.inputs
    ids, (batch, row) = inputs.position_ids, case.pairs.T
    found, names = {}, stages_of(spec)
    x = hidden = given(inputs.hidden_states)
    for name, step in (("embedded", lambda x: block.embedded(x, ids)), ("normed", block.normed)):
        if name in names:
            x = step(x)
            found[name] = x.value[batch, row]
    turned, features = {}, {}
    kv_heads = kv_heads_of(case.heads, spec.num_heads, spec.num_kv_heads)
    for name, heads in (("q", case.heads), ("k", kv_heads), ("v", kv_heads)):
        turned[name] = block.heads(name, block.seen(name, x, hidden), heads)
        found[name] = turned[name].value[batch, :, row]
        if name == "k":
            turned[name] = with_cached(block, inputs, turned[name], heads)
        if f"{name}_features" in names:
            turned[name] = features[name] = linear_attention.features(turned[name])
            found[f"{name}_features"] = turned[name].value[:, :, -ids.shape[-1] :][batch, :, row]
        if f"{name}_rotated" in names:
            if name == "k":
                turned[name] = turned_keys(block, inputs, turned[name], heads)
            else:
                turned[name] = block.rotated(name, turned[name], ids, heads, inputs.lengths)
            new = turned[name].value[:, :, -ids.shape[-1] :]
            found[f"{name}_rotated"] = new[batch, :, row]
    rows = {name: [] for name in ("scores", "normaliser", "probs", "context", "gated") if name in names}
    plain = (features["q"], features["k"]) if features else None
    for place in case.pairs:
        parts = {name: [] for name in rows}

        def take(name, _heads, value):
            parts[name].append(value.value)  # noqa: B023 - called at once
            return value

        attend(block, inputs, x, turned["q"], turned["k"], turned["v"], tuple(place), case.heads, take, plain)
        for name, part in parts.items():
            rows[name].append(np.concatenate(part))
    return found | {name: np.stack(part) for name, part in rows.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_equals_the_reference(bundle_of, kind, dtype):
    bundle = bundle_of(kind)
    block = Block(bundle.spec, bundle.weights(), bundle.tables(), dtype)
    compared = set()
    for golden in bundle.golden(dtype):
        found = _stages(block, golden)
        found["scores"] = np.where(golden.stages["probs"] != 0, found["scores"], 0.0)
        for name, truth in golden.stages.items():
            np.testing.assert_allclose(found[name], truth, rtol=1e-11, atol=1e-12, err_msg=f"{golden.name} {name}")
            compared.add(name)
        whole = expected(block, golden)
        np.testing.assert_allclose(whole.output.value, golden.output, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(whole.present_key.value, golden.present_key, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(whole.present_value.value, golden.present_value, rtol=1e-11, atol=1e-12)
    assert compared == set(stages_of(bundle.spec)) - {"output"}


def test_golden_scores_are_several_units_wide(bundle_of, kind):
    """Probabilities far from uniform, or a positional fault would hide."""
    prefill = bundle_of(kind).golden("float32")[0]
    probs = prefill.stages["probs"]
    if bundle_of(kind).spec.attention == "linear":  # no exponential makes one key win: no weight lies on the mean
        rows = [row[row != 0] for row in probs.reshape(-1, probs.shape[-1])]
        assert np.median([np.abs(row / row.mean() - 1).max() for row in rows if len(row) > 1]) > 0.25
    else:
        assert np.median(probs.max(axis=-1)) > 0.4


def test_visible_keys_by_hand(spec_of):
    """Past of 3, chunk row 1 (slot 4) of 6 slots; slot 1 is a pad."""
    kept = np.array([1, 0, 1, 1, 1, 1])

    def seen(name, **changes):
        return visible_keys(spec_of(name, **changes), 1, 3, kept).astype(int).tolist()

    assert seen("rotary_default") == [1, 0, 1, 1, 1, 0]
    assert seen("rotary_yarn", window=2) == [0, 0, 0, 1, 1, 0]
    assert seen("rotary_bidirectional", window_radius=2) == [0, 0, 1, 1, 1, 1]
    assert seen("rotary_bidirectional", window_radius=None) == [1, 0, 1, 1, 1, 1]


def test_unturned_channels_need_no_tolerance(bundle_of):
    """A partial rotation passes the rest bit for bit, so their bound is 0."""
    bundle = bundle_of("rotary_last")  # the last 4 of 8 channels
    block = Block(bundle.spec, bundle.weights(), bundle.tables(), "float32")
    x = given(np.random.default_rng(0).standard_normal((1, 2, 3, 8)))
    error = block.rotated("q", x, np.array([[5, 900_000, 7]]), np.array([0, 1])).error
    assert (error[..., :4] == 0).all()
    assert (error[..., 4:] > 0).all()


def test_a_rotations_bound_does_not_grow_with_the_width(spec_of):
    """Two products a number: at head_dim 8 and 128 the same, about a millionth."""
    bounds = []
    for width in (8, 128):
        spec = spec_of("rotary_default", head_dim=width).model_copy(
            update={"rotary": spec_of("rotary_default").rotary.model_copy(update={"width": width})}
        )
        block = Block(spec, {}, {"cos_hi": np.zeros(1)}, "float32")
        x = given(np.ones((1, 1, 1, width)))
        bounds.append(block.rotated("q", x, np.array([[131_071]]), np.array([0])).error.max())
    assert bounds[0] < 2e-6
    assert bounds[1] < 1.2 * bounds[0]
