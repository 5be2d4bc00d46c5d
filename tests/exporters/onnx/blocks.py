"""Blocks of every kind, and calls of them: what the tests of the ONNX side run over."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from portpe.encodings import (
    AlibiEncoding,
    BucketsEncoding,
    DebertaEncoding,
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    FireEncoding,
    FixedRegime,
    ForgetEncoding,
    KerpleEncoding,
    LearnedEncoding,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    PerSequenceRegime,
    ProportionalSchedule,
    RotaryEncoding,
    SandwichEncoding,
    ShawEncoding,
    SinusoidalEncoding,
    TransformerXlEncoding,
    YarnSchedule,
)
from portpe.exporters.onnx import FORMS
from portpe.interface import DTYPES, BlockInputs
from portpe.layer_parts import EmbeddingProjection, Norm, OutputGate, ProjectionBiases
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

LAYER = 3


def _spec(**changes) -> AttentionSpec:
    """6 query heads over 2 of keys, all sizes different."""
    settings = {
        "hidden_size": 20,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "v_head_dim": 8,
        "scale": 8**-0.5,
    }
    return AttentionSpec(**{**settings, **changes})


def _rotary(schedule=None, **changes) -> RotaryEncoding:
    schedule = DefaultSchedule(rope_theta=500000.0) if schedule is None else schedule
    return RotaryEncoding(**{"width": 8, "schedule": schedule, **changes})


ROPE = _rotary()
_FACTORS = {"short_factor": (1.0, 1.1, 1.7, 2.5), "long_factor": (1.2, 3.0, 9.0, 31.0)}
_SCHEDULES = {
    "linear": LinearSchedule(factor=4.0),
    "ntk": NtkSchedule(factor=3.0),
    "ntk_by_parts": NtkByPartsSchedule(factor=8.0, original_max_position_embeddings=64),
    "dynamic": DynamicSchedule(factor=2.0, max_position_embeddings=64),
    "dynamic_yarn": DynamicYarnSchedule(original_max_position_embeddings=16),
    "yarn": YarnSchedule(factor=32.0, original_max_position_embeddings=128),
    "longrope": LongropeSchedule(**_FACTORS, original_max_position_embeddings=64, factor=16.0),
    "llama3": Llama3Schedule(
        rope_theta=500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=128,
    ),
    "proportional": ProportionalSchedule(rope_theta=1000000.0, partial_rotary_factor=0.5),
}
_LENGTHS = {name: FixedRegime(length=777) for name in ("dynamic", "dynamic_yarn", "longrope")}
_RMS = Norm(kind="rms", eps=1e-6)
_LAYER_NORM = Norm(kind="layer", eps=1e-5, bias=True)


def _normed(norm: Norm, **changes) -> AttentionSpec:
    return _spec(q_norm=norm, k_norm=norm, rotary=ROPE, **changes)


def _linear(**changes) -> AttentionSpec:
    return _spec(attention="linear", scale=1.0, **changes)


SPECS: dict[str, AttentionSpec] = {
    "none": _spec(),
    "none-multi-head": _spec(num_kv_heads=6),
    "none-multi-query": _spec(num_kv_heads=1),
    "none-bidirectional": _spec(causal=False),
    "norm-of-values": _spec(v_head_dim=5, v_norm=Norm(kind="layer", eps=1e-3, per_head_weight=True, bias=True)),
    "norm-of-all-values": _spec(rotary=ROPE, v_norm=Norm(kind="rms", eps=1e-3, scope="all_heads", weight_offset=1.0)),
    "gated": _spec(rotary=ROPE, output_gate=OutputGate(scope="channel", bias=True)),
    "gated-softplus": _spec(
        v_head_dim=5, value_scale=1.7, output_gate=OutputGate(scope="channel", activation="softplus")
    ),
    "gated-heads": _spec(causal=False, input_norm=_RMS, output_gate=OutputGate(scope="head")),
    "gated-heads-softplus": _spec(output_gate=OutputGate(scope="head", activation="softplus", bias=True)),
    "sinusoidal-interleaved": _spec(embedding=SinusoidalEncoding(width=20)),
    "sinusoidal-sin-cos": _spec(
        embedding=SinusoidalEncoding(width=20, order="sin_cos", denominator="half_minus_one", offset=2)
    ),
    "sinusoidal-cos-sin": _spec(embedding=SinusoidalEncoding(width=20, order="cos_sin"), embed_scale=4.5),
    "sinusoidal-rows": _spec(
        causal=False,
        embedding=SinusoidalEncoding(width=20, order="sin_cos", denominator="half_minus_one", rows=1500, offset=1),
    ),
    "sinusoidal-hf": _spec(
        embedding=SinusoidalEncoding(
            width=20, order="sin_cos", denominator="half_minus_one", rows=400, offset=2, precision="hf"
        ),
        max_position_embeddings=398,
    ),
    "learned": _spec(embedding=LearnedEncoding(rows=40, width=20)),
    "learned-offset": _spec(
        embedding=LearnedEncoding(rows=42, width=20, offset=2), input_norm=_LAYER_NORM, causal=False
    ),
    "rotary-half": _spec(rotary=ROPE),
    "rotary-interleaved": _spec(rotary=_rotary(pairing="interleaved")),
    "rotary-partial-half-first": _spec(rotary=_rotary(width=6)),
    "rotary-partial-half-last": _spec(rotary=_rotary(width=4, channels="last")),
    "rotary-partial-interleaved-first": _spec(rotary=_rotary(width=4, pairing="interleaved")),
    "rotary-partial-interleaved-last": _spec(rotary=_rotary(width=6, pairing="interleaved", channels="last")),
    "rotary-negative": _spec(rotary=_rotary(sign=-1)),
    "rotary-hf": _spec(rotary=_rotary(precision="hf"), max_position_embeddings=1500),
    "rotary-bidirectional": _spec(rotary=ROPE, causal=False, num_kv_heads=3),
    **{f"rotary-{name}": _spec(rotary=_rotary(law, regime=_LENGTHS.get(name))) for name, law in _SCHEDULES.items()},
    "by-length-dynamic": _spec(rotary=_rotary(_SCHEDULES["dynamic"], regime=PerSequenceRegime())),
    "by-length-dynamic-yarn": _spec(
        rotary=_rotary(_SCHEDULES["dynamic_yarn"], regime=PerSequenceRegime(), pairing="interleaved", sign=-1),
        bias=(AlibiEncoding(),),
    ),
    "by-length-longrope": _spec(rotary=_rotary(_SCHEDULES["longrope"], regime=PerSequenceRegime()), num_kv_heads=1),
    "by-length-bidirectional": _spec(
        rotary=_rotary(_SCHEDULES["longrope"], regime=PerSequenceRegime()), causal=False, q_norm=_RMS, k_norm=_RMS
    ),
    "alibi": _spec(bias=(AlibiEncoding(),)),
    "alibi-mpt": _spec(bias=(AlibiEncoding(bias_max=4.0),), clip_qkv=3.0),
    "alibi-scaled": _spec(bias=(AlibiEncoding(scale=8**-0.5),), num_kv_heads=1),
    "alibi-hf": _spec(bias=(AlibiEncoding(precision="hf", contract="bloom"),), max_position_embeddings=64),
    "alibi-symmetric": _spec(bias=(AlibiEncoding(symmetric=True),), causal=False),
    "buckets": _spec(bias=(BucketsEncoding(num_buckets=15, max_distance=22, bidirectional=False),), window=6),
    "buckets-bidirectional": _spec(bias=(BucketsEncoding(num_buckets=21, max_distance=31),), causal=False, scale=1.0),
    "kerple": _spec(bias=(KerpleEncoding(),), window=6),
    "kerple-power": _spec(bias=(KerpleEncoding(form="power"),), causal=False),
    "fire": _spec(bias=(FireEncoding(width=5),), num_kv_heads=3),
    "sandwich": _spec(bias=(SandwichEncoding(width=14, base=300.0),)),
    "shaw": _spec(bias=(ShawEncoding(left=4, right=2),), causal=False),
    "shaw-values": _spec(bias=(ShawEncoding(left=6, right=0, values=True),), v_head_dim=5, num_kv_heads=3),
    "shaw-descending": _spec(bias=(ShawEncoding(left=3, right=9, descending=True),), rotary=ROPE, window=5),
    "shaw-alibi": _spec(bias=(ShawEncoding(left=2, right=2), AlibiEncoding()), num_kv_heads=6),
    "transformer-xl": _spec(bias=(TransformerXlEncoding(base=500.0),), v_head_dim=5),
    "transformer-xl-conformer": _spec(
        bias=(TransformerXlEncoding(order="interleaved"),),
        causal=False,
        num_kv_heads=6,
        biases=ProjectionBiases(q=True),
    ),
    "transformer-xl-clamped": _spec(bias=(TransformerXlEncoding(clamp=9),), rotary=ROPE, window=5, num_kv_heads=3),
    "transformer-xl-one-key-head": _spec(bias=(TransformerXlEncoding(),), causal=False, num_kv_heads=1, scale=1.0),
    "forget": _spec(bias=(ForgetEncoding(),), v_head_dim=5),
    "forget-rotary": _normed(_RMS, bias=(ForgetEncoding(), AlibiEncoding()), window=6),
    "deberta": _spec(bias=(DebertaEncoding(span=5),), num_kv_heads=6, causal=False),
    "deberta-v2": _spec(
        bias=(DebertaEncoding(span=7, max_distance=12, key_bias=True, norm_eps=1e-5),), num_kv_heads=2, v_head_dim=5
    ),
    "deberta-v3": _spec(
        bias=(DebertaEncoding(span=4, max_distance=30, share_projections=True, norm_eps=1e-5),),
        num_kv_heads=6,
        causal=False,
        biases=ProjectionBiases(q=True, k=True, v=True, o=True),
    ),
    "deberta-keys-alone": _spec(
        bias=(DebertaEncoding(span=6, content_to_position=False),), num_kv_heads=3, causal=False, scale=1.0
    ),
    "linear-rotary": _linear(rotary=_rotary(width=6, pairing="interleaved"), v_head_dim=5),
    "linear-unrotated": _linear(window=3, num_kv_heads=6, biases=ProjectionBiases(q=True, k=True)),
    "linear-bidirectional": _linear(
        rotary=_rotary(width=4, channels="last"), causal=False, num_kv_heads=1, q_norm=_RMS, k_norm=_RMS
    ),
    "linear-by-length": _linear(rotary=_rotary(_SCHEDULES["dynamic"], regime=PerSequenceRegime()), num_kv_heads=3),
    "window": _spec(rotary=ROPE, window=3),
    "window-radius": _spec(causal=False, window_radius=1),
    "softcap": _spec(rotary=ROPE, softcap=2.0),
    "sinks": _spec(rotary=ROPE, sinks=True),
    "sinks-window": _spec(rotary=ROPE, sinks=True, window=2),
    "q-k-norm-rms": _normed(_RMS),
    "q-k-norm-layer": _normed(_LAYER_NORM),
    "q-k-norm-heads": _normed(Norm(kind="layer", eps=1e-5, per_head_weight=True)),
    "q-k-norm-all-heads": _normed(Norm(kind="rms", eps=1e-6, scope="all_heads"), num_kv_heads=3),
    "q-k-norm-after": _normed(Norm(kind="rms", eps=1e-6, weight_offset=1.0, when="after")),
    "q-k-norm-all-heads-after": _normed(Norm(kind="layer", eps=1e-5, scope="all_heads", bias=True, when="after")),
    "q-k-norm-after-unrotated": _normed(Norm(kind="rms", eps=1e-6, when="after")).model_copy(update={"rotary": None}),
    "q-k-norm-no-weight": _normed(Norm(kind="rms", eps=1e-6, affine=False)),
    "input-norm-offset": _spec(rotary=ROPE, input_norm=Norm(kind="rms", eps=1e-6, weight_offset=1.0)),
    "embedding-projection": _spec(
        embedding=LearnedEncoding(rows=40, width=12),
        input_norm=_LAYER_NORM,
        embedding_projection=EmbeddingProjection(width=12),
        causal=False,
    ),
    "embed-scale": _spec(rotary=ROPE, embed_scale=20**0.5),
    "biases": _spec(rotary=ROPE, biases=ProjectionBiases(q=True, k=True, v=True, o=True)),
    "value-width": _spec(rotary=ROPE, v_head_dim=5, scale=1.0),
    "sinks-softcap": _normed(_RMS, window=4, softcap=3.0, sinks=True, clip_qkv=4.0, embed_scale=2.0),
    "alibi-sinks": _spec(bias=(AlibiEncoding(),), sinks=True, window=5, num_kv_heads=3),
    "all-together": _normed(
        _RMS,
        bias=(AlibiEncoding(),),
        embedding=SinusoidalEncoding(width=20),
        embed_scale=2.0,
        input_norm=_LAYER_NORM,
        window=4,
        softcap=7.0,
        sinks=True,
        clip_qkv=4.0,
        biases=ProjectionBiases(q=True, k=True, v=True, o=True),
        v_head_dim=5,
    ),
}


CARRIED = [(form, name) for form in FORMS for name in SPECS if FORMS[form].carries(SPECS[name]) is None]


def random_weights(spec: AttentionSpec, dtype: str, seed: int = 1) -> dict[str, np.ndarray]:
    """Weights in the type, wide enough that scores are several units."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        spread = 1.5 / math.sqrt(shape[-1]) if name.endswith("_proj.weight") else 0.5
        center = 1.0 if name.endswith("norm.weight") else 0.0
        noise = spread * rng.standard_normal(shape)
        weights[name] = (np.exp(noise) if name.startswith("kerple") else center + noise).astype(DTYPES[dtype])
    return weights


# --- inputs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call's sizes and positions. ``pads`` are masked slots at the left of each row."""

    positions: tuple[tuple[int, ...], ...]
    past_positions: tuple[tuple[int, ...], ...] = ()
    pads: tuple[int, ...] = ()


CALLS: dict[str, Call] = {
    "prefill": Call(((0, 1, 2, 3, 4),) * 4),
    "decode": Call(
        ((7,), (31,), (2,), (19,)),
        ((0, 1, 2, 3, 4, 5, 6), (9, 10, 14, 15, 20, 22, 30), (0, 0, 0, 0, 0, 0, 1), (1, 3, 5, 7, 11, 13, 17)),
    ),
    "chunk": Call(
        ((5, 6, 7), (19, 21, 22), (38, 39, 1), (9, 8, 7)),
        ((0, 1, 2, 3, 4), (8, 9, 11, 16, 17), (3, 1, 4, 0, 5), (2, 7, 1, 8, 28)),
    ),
    "left-padded": Call(((0, 0, 0, 1, 2), (0, 1, 2, 3, 4), (0, 0, 0, 0, 0), (0, 0, 1, 2, 3)), pads=(2, 0, 4, 1)),
    "left-padded-decode": Call(((2,), (5,), (1,)), ((0, 0, 0, 0, 1), (0, 1, 2, 3, 4), (0, 0, 0, 0, 0)), pads=(3, 0, 4)),
    "arbitrary": Call(((3, 4, 9), (38, 0, 17), (1, 1, 30), (6, 5, 4))),
}
FAR = Call(
    ((131071, 1000000, 999998), (1000000, 131072, 5), (1023, 1024, 1048575), (65535, 2047, 7)),
    ((1, 131070), (999997, 40), (3, 1022), (65504, 8)),
)
FAR_TOGETHER = Call(
    ((131071, 131072, 131073), (1000000, 1000001, 1000002), (1023, 1024, 1025), (65535, 65536, 65537)),
    ((131069, 131070), (999998, 999999), (1021, 1022), (65533, 65534)),
)


def calls_of(spec: AttentionSpec) -> dict[str, Call]:
    """The calls that a spec serves: no cache without causality, nothing past a short table.

    Keys far away would drown the products of a biased block, so its far positions lie together.
    """
    calls = {**CALLS, "far": FAR_TOGETHER if spec.bias else FAR}
    if spec.precision == "hf" or (spec.embedding is not None and spec.embedding.rows is not None):
        del calls["far"]
    if spec.causal:
        return calls
    return {name: replace(call, past_positions=()) for name, call in calls.items() if "decode" not in name}


def inputs_of(spec: AttentionSpec, call: Call, dtype: str, seed: int = 2) -> BlockInputs:
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    positions = np.array(call.positions, np.int64)
    batch, sequence = positions.shape
    past_positions = np.array(call.past_positions, np.int64).reshape(batch, -1)
    past = past_positions.shape[1]
    mask = np.ones((batch, past + sequence), np.int64)
    for row, pads in enumerate(call.pads):
        mask[row, :pads] = 0
    return BlockInputs(
        hidden_states=rng.standard_normal((batch, sequence, spec.input_width)).astype(kind),
        position_ids=positions,
        attention_mask=mask,
        key_position_ids=np.concatenate([past_positions, positions], axis=1),
        past_key=(1.5 * rng.standard_normal((batch, spec.num_kv_heads, past, spec.head_dim))).astype(kind),
        past_value=rng.standard_normal((batch, spec.num_kv_heads, past, spec.v_head_dim)).astype(kind),
        past_states={
            name: -np.exp(rng.standard_normal((batch, rows, past))).astype(np.float32)
            for name, rows in spec.cached_states.items()
        },
    )
