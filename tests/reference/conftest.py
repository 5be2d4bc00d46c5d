"""The block once more, as scalar formulas in loops: what the reference is compared with.

Nothing here comes from portpe but the spec itself, which is data.
"""

import math

import numpy as np
import pytest
import torch

from portpe.encodings import (
    AlibiEncoding,
    BucketsEncoding,
    DebertaEncoding,
    DefaultSchedule,
    FireEncoding,
    KerpleEncoding,
    LearnedEncoding,
    LinearSchedule,
    RotaryEncoding,
    SandwichEncoding,
    ShawEncoding,
    SinusoidalEncoding,
    TransformerXlEncoding,
    XposDecay,
)
from portpe.layer_parts import EmbeddingProjection, Norm, OutputGate, ProjectionBiases
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes
from tests.bias_by_hand import score_bias, shaw_row

torch.set_num_threads(1)

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 7, "scale": 0.4}
PLAIN = DefaultSchedule(rope_theta=50.0)  # a small base: every frequency moves within a few positions
HEAD_RMS = Norm(kind="rms", eps=1e-3, weight_offset=1.0)

# name -> the fields of a spec that differ from SIZES
VARIANTS = {
    "none": {},
    "none_without_causality": {"causal": False},
    "half": {"rotary": RotaryEncoding(width=8, schedule=PLAIN)},
    "interleaved": {"rotary": RotaryEncoding(width=8, pairing="interleaved", schedule=PLAIN)},
    "partial_first": {"rotary": RotaryEncoding(width=4, schedule=LinearSchedule(rope_theta=50.0, factor=4.0))},
    "partial_last_negative": {
        "rotary": RotaryEncoding(width=6, channels="last", pairing="interleaved", sign=-1, schedule=PLAIN)
    },
    "decay": {"rotary": RotaryEncoding(width=6, schedule=PLAIN, decay=XposDecay(scale_base=900.0, centre=1700))},
    "magnitude": {"rotary": RotaryEncoding(width=8, schedule=PLAIN, attention_factor=1.25)},
    "alibi": {"bias": (AlibiEncoding(),), "biases": ProjectionBiases(q=True, k=True, v=True, o=True)},
    "buckets": {"bias": (BucketsEncoding(num_buckets=11, max_distance=30),), "causal": False},
    "kerple": {"bias": (KerpleEncoding(),), "softcap": 6.0},
    "kerple_power": {"bias": (KerpleEncoding(form="power"),), "causal": False},
    "fire": {"bias": (FireEncoding(width=4),), "window": 6},
    "sandwich": {"bias": (SandwichEncoding(width=6, base=30.0),), "causal": False},
    "alibi_symmetric": {"causal": False, "bias": (AlibiEncoding(symmetric=True, scale=0.5, bias_max=4.0),)},
    "shaw": {"causal": False, "bias": (ShawEncoding(left=3, right=1, values=True),)},
    "shaw_descending": {"bias": (ShawEncoding(left=2, right=4, descending=True), AlibiEncoding()), "window": 4},
    "transformer_xl": {"bias": (TransformerXlEncoding(base=50.0),), "window": 5},
    "transformer_xl_conformer": {
        "bias": (TransformerXlEncoding(order="interleaved", base=50.0, clamp=4),),
        "causal": False,
        "num_kv_heads": 6,
    },
    "deberta": {"bias": (DebertaEncoding(span=4),), "window": 6},
    "deberta_v2": {
        "bias": (DebertaEncoding(span=4, max_distance=6, key_bias=True, norm_eps=1e-3),),
        "num_kv_heads": 6,
        "causal": False,
    },
    "deberta_v3": {
        "bias": (DebertaEncoding(span=5, max_distance=7, share_projections=True, norm_eps=1e-3),),
        "num_kv_heads": 6,
        "causal": False,
        "biases": ProjectionBiases(q=True, k=True),
    },
    "deberta_keys_alone": {
        "bias": (DebertaEncoding(span=3, content_to_position=False),),
        "causal": False,
    },
    "learned": {
        "embedding": LearnedEncoding(rows=40, width=20, offset=2),
        "embed_scale": 3.0,
        "input_norm": Norm(kind="layer", eps=1e-3, bias=True),
    },
    "sinusoidal": {
        "embedding": SinusoidalEncoding(width=20, offset=3),
        "input_norm": Norm(kind="rms", eps=1e-3, weight_offset=1.0),
    },
    "sinusoidal_halves": {"embedding": SinusoidalEncoding(width=20, order="sin_cos", denominator="half_minus_one")},
    "projected": {
        "embedding": LearnedEncoding(rows=30, width=12),
        "embedding_projection": EmbeddingProjection(width=12),
        "input_norm": Norm(kind="layer", eps=1e-3),
    },
    "multi_query_window": {"num_kv_heads": 1, "window": 3, "rotary": RotaryEncoding(width=8, schedule=PLAIN)},
    "window_radius": {
        "causal": False,
        "window_radius": 2,
        "num_kv_heads": 6,
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "softcap_sinks_clip": {
        "softcap": 2.0,
        "sinks": True,
        "clip_qkv": 1.5,
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "norm_before": {"q_norm": HEAD_RMS, "k_norm": HEAD_RMS, "rotary": RotaryEncoding(width=8, schedule=PLAIN)},
    "norm_after_per_head": {
        "q_norm": Norm(kind="layer", eps=1e-3, per_head_weight=True, bias=True, when="after"),
        "k_norm": Norm(kind="layer", eps=1e-3, per_head_weight=True, when="after"),
        "rotary": RotaryEncoding(width=4, schedule=PLAIN),
    },
    "norm_all_heads": {
        "q_norm": Norm(kind="rms", eps=1e-3, scope="all_heads"),
        "k_norm": Norm(kind="rms", eps=1e-3, scope="all_heads"),
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "norm_of_values": {
        "v_norm": Norm(kind="layer", eps=1e-3, per_head_weight=True, bias=True),
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "norm_without_weight": {
        "v_norm": Norm(kind="rms", eps=1e-3, affine=False),
        "q_norm": Norm(kind="rms", eps=1e-3, affine=False, when="after"),
        "k_norm": Norm(kind="rms", eps=1e-3, affine=False, when="after"),
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "gated": {
        "output_gate": OutputGate(scope="channel"),
        "value_scale": 0.6,
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "gated_heads": {"output_gate": OutputGate(scope="head", activation="softplus", bias=True), "input_norm": HEAD_RMS},
    "linear": {
        "attention": "linear",
        "scale": 1.0,
        "rotary": RotaryEncoding(width=6, pairing="interleaved", schedule=PLAIN),
        "q_norm": HEAD_RMS,
        "k_norm": HEAD_RMS,
    },
    "linear_window": {
        "attention": "linear",
        "scale": 1.0,
        "window": 3,
        "num_kv_heads": 1,
        "rotary": RotaryEncoding(width=4, channels="last", sign=-1, schedule=PLAIN),
    },
    "linear_unrotated": {"attention": "linear", "scale": 1.0, "clip_qkv": 1.5},
    "linear_without_causality": {
        "attention": "linear",
        "scale": 1.0,
        "causal": False,
        "window_radius": 2,
        "num_kv_heads": 6,
        "rotary": RotaryEncoding(width=8, schedule=PLAIN),
    },
    "everything": {
        "embedding": LearnedEncoding(rows=40, width=20),
        "rotary": RotaryEncoding(width=4, schedule=PLAIN),
        "bias": (AlibiEncoding(), AlibiEncoding(symmetric=True)),
        "window": 4,
        "sinks": True,
        "biases": ProjectionBiases(q=True),
    },
}


def make_spec(name):
    return AttentionSpec(**(SIZES | VARIANTS[name]))


def make_weights(spec, seed=0):
    """Weights so wide that scores are several units."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        fan_in = shape[-1] if name.endswith(("proj.weight", "projection.weight")) else 1
        weights[name] = rng.standard_normal(shape) * (1.7 / math.sqrt(fan_in))
        if name.startswith("kerple"):  # positive, and below the power's 2
            weights[name] = np.exp(weights[name] / 4)
    return weights


def _addend(encoding, weights, position):
    if encoding is None:
        return 0.0
    if encoding.kind == "learned":
        return weights["position_embedding.weight"][position + encoding.offset]
    half = encoding.width // 2
    below = half if encoding.denominator == "half" else half - 1
    angles = [(position + encoding.offset) * encoding.base ** (-i / below) for i in range(half)]
    sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    if encoding.order == "interleaved":
        return np.array([channel for pair in zip(sines, cosines, strict=True) for channel in pair])
    return np.array(sines + cosines if encoding.order == "sin_cos" else cosines + sines)


def _norm(norm, x, weights, name, head=None):
    if norm is None:
        return x
    mean = sum(x) / len(x) if norm.kind == "layer" else 0.0
    centred = np.array([value - mean for value in x])
    centred = centred / math.sqrt(sum(c * c for c in centred) / len(x) + norm.eps)
    for part, join in (("weight", lambda y, w: y * (w + norm.weight_offset)), ("bias", lambda y, w: y + w)):
        if f"{name}.{part}" in weights:
            w = weights[f"{name}.{part}"]
            centred = join(centred, w[head] if head is not None and w.ndim == 2 else w)
    return centred


def _norm_heads(norm, rows, weights, name):
    """rows (heads, head_dim)"""
    if norm is not None and norm.scope == "all_heads":
        return _norm(norm, rows.reshape(-1), weights, name).reshape(rows.shape)
    return np.array([_norm(norm, row, weights, name, head) for head, row in enumerate(rows)])


def rotate_by_hand(rotary, vector, position, key=False):
    """One head's vector turned, pair by pair; under a decay a key's is divided by what a query's is multiplied by."""
    result = np.array(vector, dtype=np.float64)
    start = 0 if rotary.channels == "first" else len(vector) - rotary.width
    pairs = rotary.width // 2
    for i in range(pairs):
        a, b = (i, i + pairs) if rotary.pairing == "half" else (2 * i, 2 * i + 1)
        angle = position * rotary.schedule.rope_theta ** (-2 * i / rotary.width)
        angle = rotary.sign * angle / getattr(rotary.schedule, "factor", 1.0)
        x, y = vector[start + a], vector[start + b]
        factor = rotary.attention_factor
        if (decay := rotary.decay) is not None:
            zeta = (2 * i / rotary.width + decay.gamma) / (1 + decay.gamma)
            factor *= zeta ** ((position - decay.centre) / decay.scale_base * (-1 if key else 1))
        result[start + a] = factor * (x * math.cos(angle) - y * math.sin(angle))
        result[start + b] = factor * (x * math.sin(angle) + y * math.cos(angle))
    return result


def _sees(spec, i, j):
    if spec.causal and j > i:
        return False
    if spec.window is not None and j <= i - spec.window:
        return False
    return spec.window_radius is None or abs(i - j) <= spec.window_radius


def block_by_hand(spec, weights, x, positions, mask=None):
    """Every stage of a full forward, in float64. x (B, S, width), positions (B, S), mask (B, S) of 0 and 1."""
    batch, seq, _ = x.shape
    mask = np.ones((batch, seq), int) if mask is None else mask
    names = ("embedded", "normed", "q", "k", "v", "q_rotated", "k_rotated")
    if spec.attention == "linear":
        names += ("q_features", "k_features")
    stages = {name: [[None] * seq for _ in range(batch)] for name in names}
    for b in range(batch):
        for s in range(seq):
            row = x[b, s] * (spec.embed_scale or 1.0) + _addend(spec.embedding, weights, int(positions[b, s]))
            stages["embedded"][b][s] = row
            row = _norm(spec.input_norm, row, weights, "input_norm")
            if spec.embedding_projection is not None:
                row = weights["embedding_projection.weight"] @ row + weights["embedding_projection.bias"]
            stages["normed"][b][s] = row
            for name, norm, heads in (
                ("q", spec.q_norm, spec.num_heads),
                ("k", spec.k_norm, spec.num_kv_heads),
                ("v", spec.v_norm, spec.num_kv_heads),
            ):
                y = weights[f"{name}_proj.weight"] @ row + weights.get(f"{name}_proj.bias", 0.0)
                if spec.clip_qkv is not None:
                    y = np.array([min(max(value, -spec.clip_qkv), spec.clip_qkv) for value in y])
                y = y.reshape(heads, -1) * (spec.value_scale if name == "v" else 1.0)
                y = _norm_heads(norm, y, weights, f"{name}_norm") if norm and norm.when == "before" else y
                stages[name][b][s] = y
                if name == "v":
                    continue
                if spec.attention == "linear":
                    y = np.array([[math.exp(c) if c < 0 else c + 1 for c in head] for head in y])
                    stages[f"{name}_features"][b][s] = y
                if spec.rotary is not None:
                    y = np.array([rotate_by_hand(spec.rotary, head, int(positions[b, s]), name == "k") for head in y])
                y = _norm_heads(norm, y, weights, f"{name}_norm") if norm and norm.when == "after" else y
                stages[f"{name}_rotated"][b][s] = y
    found = {name: np.array(rows) for name, rows in stages.items()}
    for name in names[2:]:
        found[name] = found[name].transpose(0, 2, 1, 3)
    return found | _attend(spec, weights, found, positions, mask)


def _attend(spec, weights, found, positions, mask):
    q, k, v = found["q_rotated"], found["k_rotated"], found["v"]
    batch, heads, seq, _ = q.shape
    group = heads // k.shape[1]
    scores, probs = np.zeros((batch, heads, seq, seq)), np.zeros((batch, heads, seq, seq))
    context, below = np.zeros((batch, heads, seq, v.shape[-1])), np.zeros((batch, heads, seq, 1))
    for b, h, i in np.ndindex(batch, heads, seq):
        keys = [j for j in range(seq) if _sees(spec, i, j) and mask[b, j]]
        for j in range(seq):
            score = sum(q[b, h, i, d] * k[b, h // group, j, d] for d in range(q.shape[-1])) * spec.scale
            score += score_bias(
                spec, weights, q[b, h, i], k[b, h // group, j], h, int(positions[b, i]), int(positions[b, j])
            )
            scores[b, h, i, j] = spec.softcap * math.tanh(score / spec.softcap) if spec.softcap else score
        if spec.attention == "linear":
            plain, others = found["q_features"][b, h, i], found["k_features"][b, h // group]
            below[b, h, i] = total = sum(plain[d] * others[j, d] for j in keys for d in range(len(plain)))
            for j in keys:
                probs[b, h, i, j] = scores[b, h, i, j] / total
                context[b, h, i] += probs[b, h, i, j] * v[b, h // group, j]
            continue
        total = sum(math.exp(scores[b, h, i, j]) for j in keys)
        total += math.exp(weights["sinks"][h]) if spec.sinks else 0.0
        for j in keys:
            probs[b, h, i, j] = math.exp(scores[b, h, i, j]) / total
            context[b, h, i] += probs[b, h, i, j] * v[b, h // group, j]
            for encoding in spec.bias:
                if encoding.reads_probs:
                    row = shaw_row(encoding, int(positions[b, i]), int(positions[b, j]))
                    context[b, h, i] += probs[b, h, i, j] * weights["relative_value.weight"][row]
    gated = context.copy()
    for b, h, i in np.ndindex(batch, heads, seq) if spec.output_gate else ():
        row = weights["gate_proj.weight"] @ found["normed"][b, i] + weights.get("gate_proj.bias", 0.0)
        for d in range(context.shape[-1]):
            x = row[h] if spec.output_gate.scope == "head" else row[h * context.shape[-1] + d]
            plain = spec.output_gate.activation == "sigmoid"
            gated[b, h, i, d] *= 1 / (1 + math.exp(-x)) if plain else math.log(1 + math.exp(x))
    merged = gated.transpose(0, 2, 1, 3).reshape(batch, seq, -1)
    output = merged @ weights["o_proj.weight"].T + weights.get("o_proj.bias", 0.0)
    found = {"scores": scores, "normaliser": below, "probs": probs, "context": context}
    return {**found, "gated": gated, "output": output}


@pytest.fixture(params=list(VARIANTS))
def variant(request):
    """Every variant in turn: its spec."""
    return make_spec(request.param)


@pytest.fixture(params=[name for name, fields in VARIANTS.items() if fields.get("causal", True)])
def causal_variant(request):
    """Every variant that can have a cache, in turn: its spec."""
    return make_spec(request.param)


@pytest.fixture
def spec_of():
    return make_spec


@pytest.fixture
def weights_of():
    return make_weights


@pytest.fixture
def by_hand():
    return block_by_hand


@pytest.fixture
def rotated_by_hand():
    return rotate_by_hand


@pytest.fixture
def states():
    """(spec, batch, seq, seed) -> hidden states, float64 torch."""

    def make(spec, batch, seq, seed=1):
        rng = np.random.default_rng(seed)
        return torch.from_numpy(rng.standard_normal((batch, seq, spec.input_width)))

    return make


@pytest.fixture(scope="module")
def weights_of_spec():
    """``weights_of`` for hypothesis, whose examples share a fixture."""
    return make_weights
