"""Linear attention with RoPE (Su 2021, equation 19): the formula in loops, its recurrence, its laws, its refusals."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from portpe.bundle import Bundle
from portpe.diff import compare
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, refusal
from portpe.exporting import export
from portpe.interface import stages_of
from portpe.reference import Attention
from portpe.report.budget import attention_flops, cache_bytes, state_size
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate
from portpe.weight_shapes import weight_shapes

SIZES = {"portpe_spec": 1, "hidden_size": 13, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 5}
ROPE = {"kind": "rotary", "width": 6, "pairing": "interleaved", "schedule": {"kind": "default", "rope_theta": 70.0}}
PAST_TRAINING = [[3, 0, 11, 4, 70, 9, 71], [40, 41, 2, 90, 7, 6, 0]]  # of a trained length of 60
MASK = [[0, 1, 1, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1, 1]]


def make(**changes):
    fields = {**SIZES, "attention": "linear", "scale": 1.0, "rotary": ROPE, "max_position_embeddings": 60}
    return AttentionSpec.from_dict(fields | changes)


def loaded(spec, dtype=torch.float64, wide=1.6):
    random = np.random.default_rng(4)
    weights = {
        name: wide / math.sqrt(shape[-1]) * random.standard_normal(shape) for name, shape in weight_shapes(spec).items()
    }
    return Attention(spec, dtype=dtype).load(weights), weights


def hidden(batch=2, rows=7, seed=5):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((batch, rows, SIZES["hidden_size"])))


def phi(x):
    return [value + 1 if value > 0 else math.exp(value) for value in x]


def turned(features, position):
    """Pairs of neighbours within the first 6 channels, by p * 70^(-2i/6)."""
    out = list(features)
    for i in range(3):
        angle = position * 70.0 ** (-2 * i / 6)
        a, b = features[2 * i], features[2 * i + 1]
        out[2 * i] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def by_the_paper(weights, x, positions, sees):
    """Every output row as equation 19 has it, one product after the other."""
    batch, rows, _ = x.shape
    heads = {}
    for name, count in (("q", 6), ("k", 2), ("v", 2)):
        heads[name] = np.einsum("bsi,oi->bso", x, weights[f"{name}_proj.weight"]).reshape(batch, rows, count, -1)
    output = np.zeros((batch, rows, weights["o_proj.weight"].shape[0]))
    for b, i in np.ndindex(batch, rows):
        context = []
        for h in range(6):
            q, above, below = phi(heads["q"][b, i, h]), np.zeros(5), 0.0
            for j in (j for j in range(rows) if sees(b, i, j)):
                k = phi(heads["k"][b, j, h // 3])
                both = zip(turned(q, positions[b][i]), turned(k, positions[b][j]), strict=True)
                above = above + sum(one * other for one, other in both) * heads["v"][b, j, h // 3]
                below += sum(one * other for one, other in zip(q, k, strict=True))
            context += list(above / below if below else above)
        output[b, i] = weights["o_proj.weight"] @ np.array(context)
    return output


@pytest.mark.parametrize(
    ("changes", "sees"),
    [
        ({}, lambda b, i, j: j <= i and MASK[b][j]),
        ({"window": 3}, lambda b, i, j: i - 3 < j <= i and MASK[b][j]),
        ({"causal": False}, lambda b, i, j: MASK[b][j]),
        ({"causal": False, "window_radius": 2}, lambda b, i, j: abs(i - j) <= 2 and MASK[b][j]),
        ({"chunk": 20}, lambda b, i, j: j <= i and MASK[b][j] and near(b, i) == near(b, j)),
    ],
    ids=["causal", "window", "bidirectional", "radius", "chunks"],
)
def test_the_output_is_that_of_the_paper(changes, sees):
    spec = make(**changes)
    block, weights = loaded(spec)
    x = hidden()
    found = block(x, torch.tensor(PAST_TRAINING), torch.tensor(MASK)).output
    expected = by_the_paper(weights, x.numpy(), PAST_TRAINING, sees)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-13)
    assert np.abs(expected).max() > 0.5


def near(batch, row):
    return PAST_TRAINING[batch][row] // 20


def test_without_a_rotation_it_is_that_of_katharopoulos():
    """Against torch's own elu and cumulative sums: sum phi(k) v^T and sum phi(k), both up to the query's own key."""
    spec = make(rotary=None, num_kv_heads=6)
    block, _ = loaded(spec)
    stages = block.stages(hidden())
    q, k = (torch.nn.functional.elu(stages[name]) + 1 for name in ("q", "k"))
    above = torch.einsum("bhsd,bhsde->bhse", q, (k[..., None] * stages["v"][..., None, :]).cumsum(2))
    below = torch.einsum("bhsd,bhsd->bhs", q, k.cumsum(2))[..., None]
    torch.testing.assert_close(stages["context"], above / below, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(stages["normaliser"], below, rtol=1e-12, atol=0)
    assert "q_rotated" not in stages


def test_a_state_of_constant_size_gives_the_same_step_by_step():
    """S += (R_j phi(k_j)) v_j^T, z += phi(k_j); context_i = (R_i phi(q_i)) S / (phi(q_i) . z)."""
    spec = make()
    block, _ = loaded(spec)
    stages = block.stages(hidden(), torch.tensor(PAST_TRAINING))
    for b, h in np.ndindex(2, 6):
        state, total = np.zeros((8, 5)), np.zeros(8)
        assert state.size + total.size == state_size(spec) // spec.num_kv_heads
        for row, position in enumerate(PAST_TRAINING[b]):
            k, v = (stages[name][b, h // 3, row].numpy() for name in ("k", "v"))
            state += np.outer(turned(phi(k), position), v)
            total += phi(k)
            q = phi(stages["q"][b, h, row].numpy())
            context = np.array(turned(q, position)) @ state / (np.array(q) @ total)
            np.testing.assert_allclose(stages["context"][b, h, row].numpy(), context, rtol=1e-11, atol=1e-13)


def test_decode_and_chunks_equal_the_whole_at_positions_of_their_own():
    """Keys are cached as they were projected, so a later call turns them by the positions that it is told."""
    spec = make(window=4, q_norm={"kind": "rms", "eps": 1e-5}, k_norm={"kind": "rms", "eps": 1e-5})
    block, _ = loaded(spec)
    x, places, mask = hidden(), torch.tensor(PAST_TRAINING), torch.tensor(MASK)
    whole = block(x, places, mask)
    for cuts in ([1] * 7, [3, 1, 3], [5, 2]):
        key = value = None
        start, outputs = 0, []
        for rows in cuts:
            end = start + rows
            call = {"past_key": key, "past_value": value, "key_position_ids": places[:, :end]}
            step = block(x[:, start:end], places[:, start:end], mask[:, :end], **call)
            key, value, start = step.present_key, step.present_value, end
            outputs.append(step.output)
        torch.testing.assert_close(torch.cat(outputs, 1), whole.output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(key, block.stages(x, places, mask)["k"], rtol=1e-12, atol=1e-13)


def test_only_differences_of_positions_count():
    block, _ = loaded(make())
    x, places = hidden(), torch.tensor(PAST_TRAINING)
    near, far = block(x, places).output, block(x, places + 1000).output
    torch.testing.assert_close(near, far, rtol=1e-10, atol=1e-11)
    assert (near - block(x, places * 2).output).abs().max() > 0.05


def test_weights_may_be_negative_and_need_not_add_up_to_one():
    """What a rotated normaliser, or a softmax, could not give: the normaliser has no position in it."""
    block, _ = loaded(make())
    stages = block.stages(hidden(), torch.tensor(PAST_TRAINING))
    assert stages["probs"].min() < -0.02
    assert (stages["probs"].sum(-1) - 1).abs().max() > 0.2
    moved = block.stages(hidden(), torch.tensor(PAST_TRAINING) * 3)
    torch.testing.assert_close(stages["normaliser"], moved["normaliser"], rtol=0, atol=0)


def test_one_key_alone_gives_its_value():
    block, _ = loaded(make(window=1))
    stages = block.stages(hidden(), torch.tensor(PAST_TRAINING))
    torch.testing.assert_close(stages["context"], stages["v"].repeat_interleave(3, 1), rtol=1e-12, atol=1e-13)


def test_a_row_without_keys_gives_the_output_projections_bias():
    spec = make(biases={"o": True})
    block, weights = loaded(spec)
    found = block(hidden(), attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])).output
    expected = np.tile(weights["o_proj.bias"], (2, 1))
    np.testing.assert_array_equal(found[0, :2].numpy(), expected)
    assert found.isfinite().all()


def test_small_features_keep_their_digits_in_float16():
    """Queries and keys of about -30: their features are 1e-13, and 0 in float16; so is exp(-30) - 1 + 1 in float32."""
    spec = make(rotary=None, causal=False, biases={"q": True, "k": True})
    block, weights = loaded(spec)
    weights = {name: array - 30 if name in ("q_proj.bias", "k_proj.bias") else array for name, array in weights.items()}
    rounded = {name: array.astype(np.float16) for name, array in weights.items()}
    truth = block.load({name: array.astype(np.float64) for name, array in rounded.items()})
    x = hidden().half()
    exact = truth.stages(x.double())
    found = Attention(spec, dtype=torch.float16).load(rounded).stages(x)
    assert 0 < exact["k_features"].max() < 1e-8
    assert exact["probs"].min() < 0.1
    off = (found["probs"].double() - exact["probs"]).abs().max() / exact["probs"].max()
    assert off < 0.05  # q and k are rounded to 2^-6 there, a feature is off by as much


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 0.35}, "scale must be 1 with attention linear: .*, got 0.35"),
        ({"softcap": 5.0}, "softcap must be left out .*, got 5.0"),
        ({"sinks": True}, "sinks must be false .*, got true"),
        ({"bias": [{"kind": "alibi"}]}, "bias must be empty .*, got alibi"),
        ({"bias": [{"kind": "buckets"}, {"kind": "kerple"}]}, "bias must be empty .*, got buckets, kerple"),
        ({"query_scale": {"kind": "stepped", "interval": 7, "beta": 0.1}}, "query_scale must be .*, got stepped"),
        ({"q_norm": {"kind": "rms", "eps": 1e-5, "when": "after"}}, "q_norm.when and .* be before .*, got after"),
        ({"rotary": {**ROPE, "attention_factor": 1.25}}, "rotary.attention_factor must be 1 .*, got 1.25"),
        ({"rotary": {**ROPE, "softmax_scale_multiplier": 1.5}}, "softmax_scale_multiplier must be 1 .*, got 1.5"),
        ({"rotary": {**ROPE, "pairing_out": "half"}}, "rotary.pairing_out must be left out .*, got half"),
        ({"rotary": {**ROPE, "decay": {"kind": "xpos"}}}, "rotary.decay must be left out .*, got xpos"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_belongs_to_a_softmax_is_refused(changes, message):
    if "q_norm" in changes:
        changes = {**changes, "k_norm": changes["q_norm"]}
    with pytest.raises(SpecError, match=message) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)
    softmax = {**changes, "attention": "softmax", "scale": 0.4}
    assert make(**softmax).attention == "softmax", "and it is fine with a softmax"


def test_latents_are_refused():
    mla = {"kv_lora_rank": 6, "qk_rope_head_dim": 2}
    fields = {"projection": "mla", "mla": mla, "num_kv_heads": 6, "rotary": None}
    with pytest.raises(SpecError, match=r"projection must be standard with attention linear: .*, got mla"):
        make(**fields)


YARN = {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"short_factor": [1.0] * 3, "long_factor": [2.0] * 3, "original_max_position_embeddings": 32, "factor": 4.0}


def test_temperatures_of_schedules_are_refused_and_their_frequencies_are_not():
    """A factor of cos and sin reaches the numerator alone; 1.0 says that the frequencies are wanted without it."""
    plain = {"kind": "rotary", "width": 6}
    for schedule in (YARN, {"kind": "longrope", **LONGROPE}):
        with pytest.raises(SpecError, match=r"rotary\.attention_factor must be 1"):
            make(rotary={**plain, "schedule": schedule})
        assert make(rotary={**plain, "schedule": schedule, "attention_factor": 1.0}).rotary.magnitude == 1
    with pytest.raises(SpecError, match=r"rotary\.schedule must multiply cos and sin by 1 .*, got dynamic_yarn"):
        make(rotary={**plain, "schedule": {"kind": "dynamic_yarn", "original_max_position_embeddings": 32}})
    sides = {"kind": "longrope", **LONGROPE, "short_mscale": 1.1, "long_mscale": 1.2}
    with pytest.raises(SpecError, match=r"rotary\.schedule must multiply cos and sin by 1 .*, got longrope"):
        make(rotary={**plain, "schedule": sides, "attention_factor": 1.0})


def test_key_positions_are_taken_where_keys_are_turned():
    dynamic = {"kind": "dynamic", "factor": 2.0, "max_position_embeddings": 32}
    by_length = make(rotary={**ROPE, "schedule": dynamic, "regime": {"kind": "per_sequence"}})
    named = {
        name: (spec.needs_key_positions, spec.deferred_rotation, spec.rotation_by_length, spec.caches_projected_keys)
        for name, spec in {"rotary": make(), "none": make(rotary=None), "by length": by_length}.items()
    }
    assert named == {
        "rotary": (True, True, False, True),
        "none": (False, False, False, True),
        "by length": (True, True, True, True),
    }
    block, _ = loaded(make())
    cache = {"past_key": torch.zeros(2, 2, 3, 8).double(), "past_value": torch.zeros(2, 2, 3, 5).double()}
    with pytest.raises(SpecError, match="key_position_ids are required with rotation with linear attention"):
        block(hidden(), torch.tensor(PAST_TRAINING), **cache)


def test_tables_are_those_of_the_rotation_alone():
    places = [0, 3, 71, 131071]
    linear, softmax = (tabulate(make(attention=kind), places) for kind in ("linear", "softmax"))
    assert set(linear) == set(softmax)
    for name, numbers in linear.items():
        np.testing.assert_array_equal(numbers, softmax[name], err_msg=name)


def test_a_diff_says_that_the_second_token_is_the_first_to_differ():
    """The first has one key, which has the whole weight in both; rotations differ from where they do with a softmax."""
    found = {one.field: one.first_position for one in compare(make(scale=1.0), make(attention="softmax")).differences}
    assert found == {"attention": 1}
    block, _ = loaded(make())
    softmax, _ = loaded(make(attention="softmax"))
    apart = (block(hidden()).output - softmax(hidden()).output).abs().amax(-1)
    assert apart[:, 0].max() < 1e-13
    assert apart[:, 1:].min() > 1e-3


def test_other_forms_refuse_with_the_form_that_can():
    for form in FORMS:
        reason = refusal(make(v_head_dim=8), form)
        if form == "portable":
            assert reason is None
        else:
            assert reason == (
                f"form {form} cannot carry this spec: attention is linear, and its operator computes a softmax; "
                "form portable carries it"
            )


def test_costs_count_pairs_and_the_normalisers_sums():
    """5 tokens: 15 pairs; 6 heads of 8 + 5 products, and 2 kv heads of 8 for the normaliser, two operations each."""
    spec = make()
    assert attention_flops([spec], 5) == 15 * 2 * (6 * 13 + 2 * 8)
    assert attention_flops([make(attention="softmax")], 5) == 15 * 2 * 6 * 13
    assert cache_bytes([spec], 5, 2) == 2 * 13 * 2 * 5
    assert state_size(spec) == 2 * (8 * 5 + 8)


PAGE = (Path(__file__).parents[1] / "docs" / "linear_attention.md").read_text(encoding="utf-8")


def test_the_documented_spec_is_one(tmp_path, capsys):
    from portpe.cli import run

    [text] = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "linear.json").write_text(text)
    spec = AttentionSpec.from_dict(json.loads(text))
    assert (spec.attention, spec.rotary.width) == ("linear", 32)
    assert run(["spec", str(tmp_path / "linear.json")]) == 0
    shown = capsys.readouterr().out
    assert "attention  Linear; Katharopoulos 2020" in shown
    assert "a state of 8,320 numbers at any length would do, and is not kept here" in shown
    assert run(["bench", str(tmp_path / "linear.json"), "--quick"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.endswith("must be softmax for bench, whose peers and limits are those of a softmax, got linear")


def test_a_bundle_names_its_own_stages(tmp_path):
    import onnx

    bundle = export(make(), tmp_path / "bundle")
    assert Bundle.open(tmp_path / "bundle").spec == make()
    graph = onnx.load(bundle.path / "onnx" / "portable_float32.stages.onnx", load_external_data=False).graph
    stages = [value.name for value in graph.output][3:]
    assert stages == [name for name in stages_of(make()) if name != "output"]
    assert {"q_features", "k_features", "normaliser"} <= set(stages)
    assert not [node.op_type for node in graph.node if node.op_type in ("Softmax", "Elu")]
