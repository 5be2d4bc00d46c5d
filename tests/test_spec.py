"""The whole spec: rules between its parts, JSON there and back, the tensors that follow from it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe import encodings
from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
    PerSequenceRegime,
    RotaryEncoding,
    SinusoidalEncoding,
)
from portpe.errors import SpecError
from portpe.layer_parts import EmbeddingProjection, Norm, ProjectionBiases
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SIZES = {"hidden_size": 24, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 5, "scale": 0.1}


def layer(**keys):
    return AttentionSpec(**{**SIZES, **keys})


def refused(data, message):
    with pytest.raises(SpecError) as caught:
        AttentionSpec.from_dict({"portpe_spec": 1, **SIZES, **data})
    assert str(caught.value) == message


WAVES = {"kind": "sinusoidal", "width": 24}
ROPE = {"kind": "rotary", "width": 8, "schedule": {"kind": "default"}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"num_kv_heads": 4}, "num_heads must be a multiple of num_kv_heads = 4, got 6"),
        ({"causal": "no"}, "causal must be a valid boolean, got 'no'"),
        ({"sinks": 1}, "sinks must be a valid boolean, got 1"),
        ({"biases": {"q": "false"}}, "biases.q must be a valid boolean, got 'false'"),
        ({"bias": [{"kind": "alibi", "symmetric": "yes"}]}, "bias.0.symmetric must be a valid boolean, got 'yes'"),
        ({"rotary": {**ROPE, "width": 10}}, "rotary.width must be <= head_dim = 8, got 10"),
        ({"rotary": {**ROPE, "width": 7}}, "rotary.width must be even, got 7; transformers would rotate 8 channels"),
        ({"rotary": {**ROPE, "theta": 1.0}}, "rotary.theta is not a known field; remove it or mend its name"),
        (
            {"rotary": {**ROPE, "schedule": {"kind": "linear", "factor": float("nan")}}},
            "rotary.schedule.factor must be a finite number, got nan",
        ),
        ({"rotary": 5}, "rotary must be a valid dictionary or instance of RotaryEncoding, got 5"),
        (
            {"window": 4, "causal": False},
            "window needs causal true, got window 4; without causality give window_radius",
        ),
        ({"window_radius": 4}, "window_radius needs causal false, got 4; with causality give window"),
        (
            {"embedding": {"kind": "learned", "rows": 9, "width": 8}},
            "embedding.width must equal the width of hidden_states = 24, got 8",
        ),
        (
            {"embedding": {"kind": "fourier"}},
            "embedding.kind must be one of 'sinusoidal', 'learned_axes', 'learned', 'learned_grid', 'sinusoidal_grid', "
            "got 'fourier'",
        ),
        ({"embedding_to": "query_key"}, "embedding_to must be input without an embedding, got query_key"),
        (
            {"embedding": WAVES, "embedding_to": "query_key", "embed_scale": 2.0},
            "embed_scale must be left out where embedding_to is query_key, got one",
        ),
        (
            {"embedding": WAVES, "embedding_to": "query_key", "input_norm": {"kind": "rms", "eps": 1e-6}},
            "input_norm must be left out where embedding_to is query_key, got one",
        ),
        (
            {"embedding": WAVES, "embedding_to": "query_key", "bias": [{"kind": "alibi"}]},
            "bias must be left out where embedding_to is query_key, got one",
        ),
        (
            {"embedding": WAVES, "embedding_to": "query_key", "output_gate": {"scope": "head"}},
            "output_gate must be left out where embedding_to is query_key, got one",
        ),
        (
            {"rotary": {**ROPE, "contract": "float64", "schedule": {"kind": "linear", "factor": 2.0}}},
            "rotary.contract must be cos_sin for all but the default schedule on one axis, got float64",
        ),
        ({"bias": [{"kind": "alibi", "scale": -1}]}, "bias.0.scale must be greater than 0, got -1"),
        ({"bias": {"kind": "alibi"}}, "bias must be a valid tuple, got {'kind': 'alibi'}"),
        (
            {"q_norm": {"kind": "rms", "eps": 1e-6}},
            "q_norm and k_norm must be given together or not at all, got one of them",
        ),
        ({"scale": float("inf")}, "scale must be a finite number, got inf"),
        ({"softcap": 0.0}, "softcap must be greater than 0, got 0.0"),
        ({"hidden_size": 24.0}, "hidden_size must be a valid integer, got 24.0"),
        ({"num_heads": 0}, "num_heads must be greater than 0, got 0"),
        (
            {"bias": [{"kind": "buckets"}, {"kind": "buckets"}]},
            "bias must have each tensor once, got relative_attention_bias.weight in buckets and in buckets",
        ),
        (
            {
                "causal": False,
                "bias": [
                    {"kind": "grid_vectors", "height": 3, "width": 4},
                    {"kind": "grid_network", "height": 5, "width": 5},
                ],
            },
            "encodings of one layer must know one grid, got ['(3, 4)', '(5, 5)']",
        ),
        (
            {"causal": False, "embedding": {"kind": "learned_axes", "rows": [9, 9, 9], "width": 24}},
            "embedding.rows must have a length <= 2, got [9, 9, 9]",
        ),
        (
            {"v_norm": {"kind": "rms", "eps": 1e-6}, "value_scale": 0.5},
            "value_scale must be 1 with v_norm, which divides it out, got 0.5",
        ),
        ({"beyond": ""}, "beyond must have a length >= 1, got ''"),
        (
            {"hidden_size": 2**53 + 1},
            "hidden_size must be less than or equal to 9007199254740992, got 9007199254740993",
        ),
        ({"portpe_spec": 2}, "portpe_spec must be 1, got 2"),
        ({"portpe_spec": None}, "portpe_spec must be 1, got None"),
        ({"portpe_spec": True}, "portpe_spec must be 1, got True"),
        ({"portpe_spec": 1.0}, "portpe_spec must be 1, got 1.0"),
        ({"rope_theta": 10000.0}, "rope_theta is not a known field; remove it or mend its name"),
    ],
)
def test_refusals_are_one_line(data, message):
    refused(data, message)


@pytest.mark.parametrize("data", [[], "spec", None, 3])
def test_a_spec_is_an_object(data):
    with pytest.raises(SpecError, match="a spec must be a JSON object, got"):
        AttentionSpec.from_dict(data)


def test_missing_field():
    with pytest.raises(SpecError, match=r"^scale is required and missing$"):
        AttentionSpec.from_dict({"portpe_spec": 1, **{k: v for k, v in SIZES.items() if k != "scale"}})


def test_ints_equal_floats():
    whole = layer(scale=1, softcap=30, rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=10000)))
    real = layer(scale=1.0, softcap=30.0, rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=10000.0)))
    assert whole == real
    assert whole.to_json() == real.to_json()
    assert hash(whole) == hash(real)


# --- JSON there and back ----------------------------------------------------------------------

reals = st.floats(1e-6, 1e9)
betas = st.floats(0.1, 100.0)
counts = st.integers(2, 10**6)
regimes = st.none() | st.builds(FixedRegime, length=counts) | st.builds(PerSequenceRegime)
precisions = st.sampled_from(["exact", "hf"])


def schedules_for(width):
    divisors = st.lists(reals, min_size=width // 2, max_size=width // 2).map(tuple)
    ramp = {
        "rope_theta": reals,
        "factor": reals,
        "original_max_position_embeddings": counts,
        "beta_fast": betas,
        "beta_slow": betas,
        "truncate": st.booleans(),
    }
    mscale = st.none() | st.floats(0, 10)
    return st.one_of(
        st.builds(encodings.DefaultSchedule, rope_theta=reals),
        st.builds(encodings.LinearSchedule, rope_theta=reals, factor=reals),
        st.builds(encodings.NtkSchedule, rope_theta=reals, factor=reals),
        st.builds(encodings.DynamicSchedule, rope_theta=reals, factor=reals, max_position_embeddings=counts),
        st.builds(encodings.NtkByPartsSchedule, **ramp),
        st.builds(encodings.YarnSchedule, mscale=mscale, mscale_all_dim=mscale, **ramp),
        st.builds(
            encodings.LongropeSchedule,
            rope_theta=reals,
            factor=reals,
            short_factor=divisors,
            long_factor=divisors,
            original_max_position_embeddings=counts,
        ),
        st.builds(
            encodings.Llama3Schedule,
            rope_theta=reals,
            factor=reals,
            low_freq_factor=st.floats(0.1, 1.0),
            high_freq_factor=st.floats(1.1, 9.0),
            original_max_position_embeddings=counts,
        ),
        st.builds(
            encodings.ProportionalSchedule, rope_theta=reals, factor=reals, partial_rotary_factor=st.floats(0.01, 1.0)
        ),
    )


@st.composite
def rotaries(draw, head_dim):
    width = 2 * draw(st.integers(2, head_dim // 2))
    schedule = draw(schedules_for(width))
    return RotaryEncoding(
        width=width,
        channels=draw(st.sampled_from(["first", "last"])),
        pairing=draw(st.sampled_from(["half", "interleaved"])),
        sign=draw(st.sampled_from([1, -1])),
        schedule=schedule,
        attention_factor=draw(st.none() | reals),
        precision=draw(precisions),
        regime=draw(regimes) if schedule.length_dependent else None,
    )


norms = st.builds(
    Norm,
    kind=st.sampled_from(["layer", "rms"]),
    eps=st.floats(1e-12, 1e-3),
    weight_offset=st.sampled_from([0.0, 1.0]),
    scope=st.sampled_from(["head", "all_heads"]),
    affine=st.booleans(),
    when=st.sampled_from(["before", "after"]),
)


@st.composite
def specs(draw):
    head_dim, kv_heads, width = 2 * draw(st.integers(2, 12)), draw(st.integers(1, 4)), 2 * draw(st.integers(2, 20))
    causal, has_norms = draw(st.booleans()), draw(st.booleans())
    embeddings = st.one_of(
        st.none(),
        st.builds(LearnedEncoding, rows=st.integers(9, 99), width=st.just(width), offset=st.integers(0, 8)),
        st.builds(
            SinusoidalEncoding,
            width=st.just(width),
            order=st.sampled_from(["interleaved", "sin_cos", "cos_sin"]),
            denominator=st.sampled_from(["half", "half_minus_one"]),
            base=reals,
            offset=st.integers(0, 8),
            rows=st.none() | st.integers(9, 99),
            precision=precisions,
        ),
    )
    alibis = st.builds(
        AlibiEncoding,
        bias_max=reals,
        symmetric=st.booleans(),
        scale=reals,
        precision=precisions,
        contract=st.sampled_from(["paper", "bloom", "mpt", "falcon"]),
    )
    return AttentionSpec(
        hidden_size=width,
        num_heads=kv_heads * draw(st.integers(1, 5)),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=draw(st.integers(1, 9)),
        causal=causal,
        window=draw(st.none() | counts) if causal else None,
        window_radius=None if causal else draw(st.none() | st.integers(0, 50)),
        scale=draw(reals),
        softcap=draw(st.none() | reals),
        sinks=draw(st.booleans()),
        clip_qkv=draw(st.none() | reals),
        biases=draw(st.builds(ProjectionBiases, q=st.booleans(), k=st.booleans(), v=st.booleans(), o=st.booleans())),
        q_norm=draw(norms) if has_norms else None,
        k_norm=draw(norms) if has_norms else None,
        input_norm=draw(st.none() | norms),
        embedding=draw(embeddings),
        rotary=draw(st.none() | rotaries(head_dim)),
        bias=tuple(draw(st.lists(alibis, max_size=2))),
        max_position_embeddings=draw(st.none() | counts),
    )


@settings(max_examples=200, deadline=None)
@given(specs())
def test_json_there_and_back(spec):
    text = spec.to_json()
    back = AttentionSpec.from_dict(json.loads(text))
    assert back == spec
    assert hash(back) == hash(spec)
    assert back.to_json() == text
    assert text.endswith("}\n")
    if spec.rotary is not None:
        assert type(back.rotary.schedule) is type(spec.rotary.schedule)


@settings(max_examples=50, deadline=None)
@given(specs())
def test_precision_is_turned_everywhere_and_nothing_else(spec):
    hf = spec.with_precision("hf")
    has_numbers = spec.rotary is not None or isinstance(spec.embedding, SinusoidalEncoding) or bool(spec.bias)
    assert hf.precision == ("hf" if has_numbers else "exact")
    assert hf.with_precision("exact") == spec.with_precision("exact")
    assert AttentionSpec.from_dict(hf.to_dict()) == hf


# --- what follows from a spec -----------------------------------------------------------------


def test_weight_shapes_by_hand():
    spec = layer(
        embedding=LearnedEncoding(rows=50, width=16, offset=2),
        embedding_projection=EmbeddingProjection(width=16),
        input_norm=Norm(kind="layer", eps=1e-5, bias=True),
        q_norm=Norm(kind="rms", eps=1e-6, scope="all_heads"),
        k_norm=Norm(kind="layer", eps=1e-6, per_head_weight=True, bias=True),
        biases=ProjectionBiases(q=True, o=True),
        sinks=True,
    )
    assert list(weight_shapes(spec).items()) == [
        ("position_embedding.weight", (50, 16)),
        ("input_norm.weight", (16,)),
        ("input_norm.bias", (16,)),
        ("embedding_projection.weight", (24, 16)),
        ("embedding_projection.bias", (24,)),
        ("q_proj.weight", (48, 24)),
        ("q_proj.bias", (48,)),
        ("k_proj.weight", (16, 24)),
        ("v_proj.weight", (10, 24)),
        ("q_norm.weight", (48,)),
        ("k_norm.weight", (2, 8)),
        ("k_norm.bias", (2, 8)),
        ("sinks", (6,)),
        ("o_proj.weight", (24, 30)),
        ("o_proj.bias", (24,)),
    ]
    assert spec.input_width == 16
    no_affine = Norm(kind="layer", eps=1e-5, affine=False)
    assert "q_norm.weight" not in weight_shapes(layer(q_norm=no_affine, k_norm=no_affine))


def test_length_dependence_ends_with_a_regime():
    schedule = DynamicSchedule(factor=2.0, max_position_embeddings=64)
    free = layer(rotary=RotaryEncoding(width=8, schedule=schedule))
    fixed = layer(rotary=RotaryEncoding(width=8, schedule=schedule, regime=FixedRegime(length=99)))
    assert (free.length_dependent, fixed.length_dependent, layer().length_dependent) == (True, False, False)


def test_a_regime_of_each_row_turns_keys_late_and_asks_for_their_positions():
    schedule = DynamicSchedule(factor=2.0, max_position_embeddings=50)
    specs = [
        layer(rotary=RotaryEncoding(width=8, schedule=schedule, regime=regime))
        for regime in (None, FixedRegime(length=99), PerSequenceRegime())
    ]
    assert [spec.deferred_rotation for spec in (layer(), *specs)] == [False, False, False, True]
    assert [spec.needs_key_positions for spec in specs] == [False, False, True]
    assert not specs[2].length_dependent
    assert AttentionSpec.from_dict(specs[2].to_dict()) == specs[2]


def test_key_positions_are_needed_by_biases_alone():
    rope = RotaryEncoding(width=8, schedule=DefaultSchedule())
    assert layer(bias=(AlibiEncoding(),)).needs_key_positions
    assert not layer(rotary=rope, embedding=SinusoidalEncoding(width=24)).needs_key_positions
