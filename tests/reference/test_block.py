"""Layer: tests. The whole block against scalar formulas, against torch's own attention, and against itself in parts."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portpe.encodings import DefaultSchedule, DynamicSchedule, FixedRegime, LongropeSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.interface import CACHE, stages_of
from portpe.reference import Attention
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from portpe.weight_shapes import weight_shapes

POSITIONS = np.array([[7, 3, 11, 4, 9], [0, 5, 1, 20, 2]])
SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 7, "scale": 0.4}
MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 1, 1]])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def block(spec, weights, dtype=torch.float64):
    return Attention(spec, dtype=dtype).load(weights)


@pytest.mark.parametrize("masked", [False, True])
def test_every_stage_equals_the_scalar_formulas(variant, weights_of, by_hand, states, masked):
    weights, x = weights_of(variant), states(variant, 2, 5)
    mask = MASK if masked else np.ones_like(MASK)
    expected = by_hand(variant, weights, x.numpy(), POSITIONS, mask)
    found = block(variant, weights).stages(x, torch.tensor(POSITIONS), torch.tensor(mask))

    assert set(found) == set(stages_of(variant)) | set(CACHE)
    for name in stages_of(variant):
        np.testing.assert_allclose(found[name].numpy(), expected[name], **CLOSE, err_msg=name)
    cached = "k" if variant.attention == "linear" else "k_rotated"
    np.testing.assert_allclose(found["present_key"].numpy(), expected[cached], **CLOSE)
    np.testing.assert_allclose(found["present_value"].numpy(), expected["v"], **CLOSE)
    scores = np.abs(expected["scores"])
    assert scores.max() > 2 or variant.softcap, "the case is too tame to see a fault"


def test_the_output_is_that_of_torch_attention(spec_of, weights_of, states):
    """X06: causal means bottom-right, so the last of two queries sees all 7 keys; torch needs the mask spelt out."""
    spec = spec_of("none")
    weights, x = weights_of(spec), states(spec, 3, 7)
    whole = block(spec, weights).stages(x)
    q, k, v = whole["q"][:, :, 5:], whole["k"], whole["v"]
    seen = torch.tensor([[True] * 6 + [False], [True] * 7])
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=spec.scale, enable_gqa=True)
    torch.testing.assert_close(whole["context"][:, :, 5:], expected, rtol=1e-13, atol=1e-13)

    step = block(spec, weights)(x[:, 5:], past_key=k[:, :, :5], past_value=v[:, :, :5])
    torch.testing.assert_close(step.output, whole["output"][:, 5:], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("cuts", [[6, 1, 1, 1], [2, 4, 3], [1] * 9], ids=["decode", "chunks", "from one token"])
def test_a_cached_run_equals_the_full_forward(causal_variant, weights_of, states, cuts):
    attention, x = block(causal_variant, weights_of(causal_variant)), states(causal_variant, 2, 9)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    whole = attention(x, attention_mask=mask)
    key = value = None
    outputs, start = [], 0
    for length in cuts:
        end = start + length
        step = attention(x[:, start:end], attention_mask=mask[:, :end], past_key=key, past_value=value)
        key, value = step.present_key, step.present_value
        outputs.append(step.output)
        start = end
    torch.testing.assert_close(torch.cat(outputs, 1), whole.output, **CLOSE)
    torch.testing.assert_close(key, whole.present_key, **CLOSE)
    torch.testing.assert_close(value, whole.present_value, **CLOSE)


@pytest.mark.parametrize(("batch", "seq", "past"), [(2, 5, 0), (5, 2, 3), (1, 1, 0), (3, 1, 8), (1, 6, 1)])
def test_shapes_follow_batch_sequence_and_past(causal_variant, weights_of, states, batch, seq, past):
    """N06: batch and sequence differ, so ids made for one cannot pass for the other."""
    spec = causal_variant
    cache = [torch.zeros(batch, spec.num_kv_heads, past, dim).double() for dim in (spec.head_dim, spec.v_head_dim)]
    found = block(spec, weights_of(spec)).stages(states(spec, batch, seq), past_key=cache[0], past_value=cache[1])
    total = past + seq
    assert found["output"].shape == (batch, seq, 20)
    assert found["probs"].shape == (batch, 6, seq, total)
    assert found["present_key"].shape == (batch, spec.num_kv_heads, total, 8)
    assert found["present_value"].shape == (batch, spec.num_kv_heads, total, 7)


# Units of the last place of each type, relative to 1.
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def test_float32_differs_from_the_truth_by_roundings_only(variant, weights_of, states):
    """Truth: float64 on weights and states that are float32 numbers already."""
    weights = {name: array.astype(np.float32) for name, array in weights_of(variant).items()}
    x, positions, mask = states(variant, 2, 5).float(), torch.tensor(POSITIONS), torch.tensor(MASK)
    low = block(variant, weights, torch.float32).stages(x, positions, mask)
    truth = block(variant, weights).stages(x.double(), positions, mask)
    for name, value in low.items():
        assert value.dtype == torch.float32, name
        far = (value.double() - truth[name]).abs().max() / truth[name].abs().max()
        assert far < 40 * UNIT[torch.float32], name
    assert (low["output"].double() - truth["output"]).abs().max() > 0, "equal to float64: not computed in float32"


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("name", ["interleaved", "softcap_sinks_clip", "norm_before"])
def test_each_stage_is_rounded_to_the_type_once(spec_of, weights_of, states, rotated_by_hand, name, dtype):
    """Each stage against float64 arithmetic on the block's own inputs of that stage: half a unit and float32 sums."""
    spec = spec_of(name)
    weights = {key: torch.from_numpy(array).to(dtype) for key, array in weights_of(spec).items()}
    attention = Attention(spec, dtype=dtype)
    attention.load_state_dict(weights, assign=True)
    stages = attention.stages(states(spec, 2, 5).to(dtype), torch.tensor(POSITIONS))
    wide = {key: value.double().numpy() for key, value in (stages | weights).items()}
    once, sums = UNIT[dtype], 16 * UNIT[torch.float32]

    turned = np.empty_like(wide["q"])
    for b, h, s in np.ndindex(*turned.shape[:3]):
        turned[b, h, s] = rotated_by_hand(spec.rotary, wide["q"][b, h, s], POSITIONS[b, s])
    length = np.sqrt(2) * np.abs(wide["q"]).max()  # cos, sin and the result are each rounded
    assert np.abs(wide["q_rotated"] - turned).max() <= (3 * once + sums) * length

    keys = np.repeat(wide["present_key"], spec.num_heads // spec.num_kv_heads, axis=1)
    scores = np.einsum("bhsd,bhtd->bhst", wide["q_rotated"], keys) * spec.scale
    scores = scores if spec.softcap is None else spec.softcap * np.tanh(scores / spec.softcap)
    assert stages["scores"].dtype == torch.float32
    assert np.abs(wide["scores"] - scores).max() <= sums * np.abs(scores).max()

    weight = np.exp(wide["scores"]) * np.tri(5)
    total = weight.sum(-1, keepdims=True) + (np.exp(wide["sinks"])[:, None, None] if spec.sinks else 0)
    assert stages["probs"].dtype == torch.float32
    assert np.abs(wide["probs"] - weight / total).max() <= sums

    values = np.repeat(wide["present_value"], spec.num_heads // spec.num_kv_heads, axis=1)
    context = wide["probs"] @ values
    assert (np.abs(wide["context"] - context) <= once * np.abs(context) + sums * np.abs(values).max()).all()

    merged = wide["context"].transpose(0, 2, 1, 3).reshape(2, 5, -1)
    output = merged @ wide["o_proj.weight"].T
    terms = np.abs(merged) @ np.abs(wide["o_proj.weight"]).T
    assert (np.abs(wide["output"] - output) <= once * np.abs(output) + sums * terms).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_are_formed_in_float32(dtype):
    """3072 ones: a float16 sum stops at 2048, a bfloat16 one at 256; 3072 itself fits both types."""
    spec = AttentionSpec(
        hidden_size=3072, num_heads=1, num_kv_heads=1, head_dim=2, v_head_dim=2, scale=2.0**-20, causal=False
    )
    ones = {name: np.ones(shape, np.float32) for name, shape in weight_shapes(spec).items()}
    found = block(spec, ones, dtype).stages(torch.ones(1, 3072, 3072, dtype=dtype))
    assert (found["q"] == 3072).all()
    assert (found["context"] == 3072).all()  # 3072 equal keys: a 16-bit softmax sum would be 2048 or 256
    assert (found["output"] == 6144).all()


def test_pad_rows_are_finite_and_do_not_touch_the_rest(variant, weights_of, states):
    """S01: what stands in a pad never reaches a token, and a row with no key at all is no NaN."""
    attention, x = block(variant, weights_of(variant)), states(variant, 2, 6)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    first = attention(x, attention_mask=mask)
    other = x.clone()
    other[0, :3] = 1e3
    second = attention(other, attention_mask=mask)
    assert first.output.isfinite().all()
    assert torch.equal(first.output[0, 3:], second.output[0, 3:])
    assert torch.equal(first.output[1], second.output[1])


def test_parameters_stand_under_the_canonical_names(variant, weights_of):
    weights = weights_of(variant)
    attention = block(variant, weights, torch.float32)
    assert {name: tuple(p.shape) for name, p in attention.named_parameters()} == weight_shapes(variant)
    assert attention.state_dict().keys() == weights.keys()  # tables and slopes are no weights
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in attention.parameters())


def test_bfloat16_weights_are_taken_bit_for_bit(spec_of, weights_of):
    from ml_dtypes import bfloat16

    spec = spec_of("everything")
    weights = {name: array.astype(bfloat16) for name, array in weights_of(spec).items()}
    weights["q_proj.weight"].setflags(write=False)  # as a memory-mapped file gives them
    for name, parameter in block(spec, weights, torch.bfloat16).named_parameters():
        assert np.array_equal(parameter.view(torch.uint16).numpy(), weights[name].view(np.uint16)), name


# --- what is refused ---------------------------------------------------------------------------------------------


def call(spec, weights_of, **changes):
    given = {"hidden_states": torch.zeros(2, 3, 20).double(), **changes}
    return block(spec, weights_of(spec))(**given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_states": torch.zeros(2, 3, 19).double()}, r"hidden_states must have shape \(2, 3, 20\), got"),
        ({"hidden_states": torch.zeros(3, 20).double()}, "hidden_states must be"),
        ({"hidden_states": torch.zeros(2, 0, 20).double()}, "at least one row"),
        ({"hidden_states": torch.zeros(2, 3, 20)}, "hidden_states must have the block's type torch.float64"),
        ({"position_ids": torch.zeros(1, 3).long()}, r"position_ids must have shape \(2, 3\), got \(1, 3\)"),
        ({"position_ids": torch.zeros(2, 3)}, "position_ids must be integers, got torch.float32"),
        ({"position_ids": torch.ones(2, 3).bool()}, r"position_ids must be integers, got torch\.bool"),
        ({"position_ids": torch.full((2, 3), -1)}, "position_ids must be >= 0, got -1"),
        ({"attention_mask": torch.ones(2, 4).long()}, r"attention_mask must have shape \(2, 3\), got \(2, 4\)"),
        ({"attention_mask": torch.full((2, 3), 2)}, "attention_mask must hold 1"),
        ({"attention_mask": torch.zeros(2, 3)}, "attention_mask must be integers"),
        ({"past_key": torch.zeros(2, 2, 4, 8).double()}, "must be given together"),
        (
            {"past_key": torch.zeros(2, 6, 4, 8).double(), "past_value": torch.zeros(2, 6, 4, 7).double()},
            r"past_key must have shape \(2, 2, 4, 8\)",
        ),
        (
            {"past_key": torch.zeros(2, 2, 4, 8).double(), "past_value": torch.zeros(2, 2, 5, 7).double()},
            r"past_value must have shape \(2, 2, 4, 7\)",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(spec_of, weights_of, changes, message):
    with pytest.raises(SpecError, match=message) as caught:
        call(spec_of("half"), weights_of, **changes)
    assert "\n" not in str(caught.value)


def test_a_past_without_causality_is_refused(spec_of, weights_of):
    cache = {"past_key": torch.zeros(2, 2, 4, 8).double(), "past_value": torch.zeros(2, 2, 4, 7).double()}
    with pytest.raises(SpecError, match="past_key must be empty without causality, got 4"):
        call(spec_of("none_without_causality"), weights_of, **cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("k_proj.weight"), "weights.k_proj.weight is required and missing"),
        (lambda w: w.update({"k_proj.bias": np.zeros(16)}), "weights.k_proj.bias is not a tensor of this block"),
        (
            lambda w: w.update({"q_proj.weight": np.zeros((20, 48))}),
            r"weights.q_proj.weight must have shape \(48, 20\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(spec_of, weights_of, change, message):
    spec = spec_of("half")
    weights = weights_of(spec)
    change(weights)
    with pytest.raises(SpecError, match=message):
        block(spec, weights)


def test_a_block_without_weights_or_of_another_type_is_refused(spec_of, weights_of):
    spec, x = spec_of("half"), torch.zeros(1, 2, 20).double()
    with pytest.raises(SpecError, match="weights are not loaded"):
        Attention(spec, dtype=torch.float64)(x)
    with pytest.raises(SpecError, match=r"weights must be torch\.float64, got torch\.float16"):
        block(spec, weights_of(spec)).half()(x)


# --- schedules that follow the length ----------------------------------------------------------------------------

LONG = LongropeSchedule(
    rope_theta=50.0, short_factor=(1.0,) * 4, long_factor=(4.0,) * 4, original_max_position_embeddings=10, factor=1.0
)
GROWING = DynamicSchedule(rope_theta=50.0, factor=2.0, max_position_embeddings=10)


@pytest.mark.parametrize("schedule", [LONG, GROWING], ids=lambda s: s.kind)
def test_the_length_is_the_largest_position_plus_one(schedule, weights_of, states):
    """Position 9 is still within 10; position 10 makes the length 11, for every row of the batch."""
    spec = AttentionSpec(**SIZES, rotary=RotaryEncoding(width=8, schedule=schedule))
    attention, x = block(spec, weights_of(spec)), states(spec, 2, 4)
    plain = block(
        AttentionSpec(**SIZES, rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=50.0))),
        weights_of(spec),
    )
    within, beyond = torch.tensor([[0, 3, 1, 2], [5, 9, 4, 2]]), torch.tensor([[0, 3, 1, 2], [5, 10, 4, 2]])
    torch.testing.assert_close(attention(x, within).output, plain(x, within).output, **CLOSE)
    far = (attention(x, beyond).output - plain(x, beyond).output).abs()
    assert (far.amax((1, 2)) > 1e-2).all()


def test_longrope_beyond_its_length_divides_by_the_long_factors(weights_of, states):
    """All four long factors are 4, so the rotation is that of a quarter of the position."""
    spec = AttentionSpec(**SIZES, rotary=RotaryEncoding(width=8, schedule=LONG))
    quarter = AttentionSpec(**SIZES, rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=50.0)))
    positions, x = torch.tensor([[0, 4, 40, 8]]), states(spec, 1, 4)
    torch.testing.assert_close(
        block(spec, weights_of(spec))(x, positions).output,
        block(quarter, weights_of(quarter))(x, positions // 4).output,
        **CLOSE,
    )


@pytest.mark.parametrize("schedule", [LONG, GROWING], ids=lambda s: s.kind)
def test_a_cache_under_a_length_that_moves_is_refused(schedule, weights_of, states):
    rotary = RotaryEncoding(width=8, schedule=schedule)
    spec = AttentionSpec(**SIZES, rotary=rotary)
    attention, x = block(spec, weights_of(spec)), states(spec, 1, 12)
    first = attention(x[:, :9])
    with pytest.raises(SpecError, match="past_key must be empty where the rotary frequencies follow the length"):
        attention(x[:, 9:], past_key=first.present_key, past_value=first.present_value)

    fixed = AttentionSpec(**SIZES, rotary=rotary.model_copy(update={"regime": FixedRegime(length=12)}))
    attention = block(fixed, weights_of(fixed))
    first = attention(x[:, :9])
    second = attention(x[:, 9:], past_key=first.present_key, past_value=first.present_value)
    torch.testing.assert_close(second.output, attention(x).output[:, 9:], **CLOSE)


def test_tables_of_one_length_are_refused_where_the_length_moves(spec_of):
    tables = table_set(spec_of("half"), 1024)
    spec = AttentionSpec(**SIZES, rotary=RotaryEncoding(width=8, schedule=GROWING))
    with pytest.raises(SpecError, match=r"rotary\.regime is required for tables of a dynamic schedule"):
        Attention(spec, tables=tables)
