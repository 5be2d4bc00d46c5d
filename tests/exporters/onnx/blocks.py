"""Blocks of every kind, their inputs, and what they compute by the written definition, in float64.

The truth here shares nothing with the graphs: rotations are complex products, softmax is summed row by row over the
keys that a query sees, and positions are never looked up in a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from portpe import schedules
from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    ProportionalSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.exporters.onnx import ExternalWeight, build, graph_weights
from portpe.interface import DTYPES, BlockInputs, BlockOutputs, stages_of
from portpe.spec import AttentionSpec, EmbeddingProjection, Norm, ProjectionBiases, weight_shapes
from portpe.tables import end_of, table_set

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
_LENGTHS = {name: FixedRegime(length=777) for name in ("dynamic", "longrope")}
_RMS = Norm(kind="rms", eps=1e-6)
_LAYER_NORM = Norm(kind="layer", eps=1e-5, bias=True)


def _normed(norm: Norm, **changes) -> AttentionSpec:
    return _spec(q_norm=norm, k_norm=norm, rotary=ROPE, **changes)


SPECS: dict[str, AttentionSpec] = {
    "none": _spec(),
    "none-multi-head": _spec(num_kv_heads=6),
    "none-multi-query": _spec(num_kv_heads=1),
    "none-bidirectional": _spec(causal=False),
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
    "alibi": _spec(bias=(AlibiEncoding(),)),
    "alibi-mpt": _spec(bias=(AlibiEncoding(bias_max=4.0),), clip_qkv=3.0),
    "alibi-scaled": _spec(bias=(AlibiEncoding(scale=8**-0.5),), num_kv_heads=1),
    "alibi-hf": _spec(bias=(AlibiEncoding(precision="hf", contract="bloom"),), max_position_embeddings=64),
    "alibi-symmetric": _spec(bias=(AlibiEncoding(symmetric=True),), causal=False),
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


def random_weights(spec: AttentionSpec, dtype: str, seed: int = 1) -> dict[str, np.ndarray]:
    """Weights in the type, wide enough that scores are several units."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        spread = 1.5 / math.sqrt(shape[-1]) if name.endswith("_proj.weight") else 0.5
        center = 1.0 if name.endswith("norm.weight") else 0.0
        weights[name] = (center + spread * rng.standard_normal(shape)).astype(DTYPES[dtype])
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
    )


# --- the truth -----------------------------------------------------------------------------


def truth(spec: AttentionSpec, weights: dict[str, np.ndarray], inputs: BlockInputs, tables=None) -> dict:
    """Every stage, present_key and present_value, by the definition, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = inputs.hidden_states.astype(np.float64) * (spec.embed_scale or 1.0)
    found = {"embedded": x + _embedding(spec, w, inputs.position_ids, tables)}
    x = found["embedded"]
    if spec.input_norm is not None:
        x = _norm(x, spec.input_norm, w, "input_norm")
    if spec.embedding_projection is not None:
        x = x @ w["embedding_projection.weight"].T + w.get("embedding_projection.bias", 0.0)
    found["normed"] = x
    found |= {part: _heads(spec, w, x, part) for part in ("q", "k", "v")}
    for part in ("q", "k"):
        turned = _rotate(spec, found[part], inputs.position_ids, tables)
        found[f"{part}_rotated"] = _head_norm(spec, w, turned, part, "after")
    keys = np.concatenate([inputs.past_key.astype(np.float64), found["k_rotated"]], axis=2)
    values = np.concatenate([inputs.past_value.astype(np.float64), found["v"]], axis=2)
    found["scores"], found["probs"] = _attend(spec, w, found["q_rotated"], keys, inputs)
    group = spec.num_heads // spec.num_kv_heads
    found["context"] = np.einsum("bhst,bhtd->bhsd", found["probs"], np.repeat(values, group, axis=1))
    rows = np.concatenate([found["context"][:, head] for head in range(spec.num_heads)], axis=-1)
    found["output"] = rows @ w["o_proj.weight"].T + w.get("o_proj.bias", 0.0)
    found = {stage: found[stage] for stage in stages_of(spec)}
    return {**found, "present_key": keys, "present_value": values}


def _embedding(spec, w, positions, tables):
    encoding = spec.embedding
    if encoding is None:
        return 0.0
    if encoding.kind == "learned":
        return w["position_embedding.weight"][positions + encoding.offset]
    if encoding.precision == "hf":
        return tables["embedding"].astype(np.float64)[positions]
    rows = np.zeros((*positions.shape, encoding.width))
    half = encoding.width // 2
    for i in range(half):
        angle = (positions + encoding.offset) * encoding.base ** (
            -i / (half if encoding.denominator == "half" else half - 1)
        )
        sin, cos = {"interleaved": (2 * i, 2 * i + 1), "sin_cos": (i, half + i), "cos_sin": (half + i, i)}[
            encoding.order
        ]
        rows[..., sin], rows[..., cos] = np.sin(angle), np.cos(angle)
    return rows


def _norm(x, norm, w, name, axes=(-1,)):
    if norm.kind == "layer":
        x = x - x.mean(axis=axes, keepdims=True)
    x = x / np.sqrt(np.mean(x**2, axis=axes, keepdims=True) + norm.eps)
    if norm.affine:
        x = x * (w[f"{name}.weight"] + norm.weight_offset)
    return x + w.get(f"{name}.bias", 0.0)


def _head_norm(spec, w, x, part, when):
    """(B, H, S, D): over one head, or over all heads of a token side by side, as the weight lies."""
    norm = spec.q_norm if part == "q" else spec.k_norm
    if norm is None or norm.when != when:
        return x
    batch, heads, sequence, width = x.shape
    tokens = x.transpose(0, 2, 1, 3)
    if norm.scope == "all_heads":
        tokens = tokens.reshape(batch, sequence, heads * width)
    tokens = _norm(tokens, norm, w, f"{part}_norm").reshape(batch, sequence, heads, width)
    return tokens.transpose(0, 2, 1, 3)


def _heads(spec, w, x, part):
    projected = x @ w[f"{part}_proj.weight"].T + w.get(f"{part}_proj.bias", 0.0)
    if spec.clip_qkv is not None:
        projected = np.clip(projected, -spec.clip_qkv, spec.clip_qkv)
    width = spec.v_head_dim if part == "v" else spec.head_dim
    heads = np.stack(np.split(projected, projected.shape[-1] // width, axis=-1), axis=1)
    return heads if part == "v" else _head_norm(spec, w, heads, part, "before")


def _rotate(spec, x, positions, tables):
    """Each pair is a complex number, multiplied by A exp(sign j p theta_i)."""
    rotary = spec.rotary
    if rotary is None:
        return x
    turned = x.copy()
    start = 0 if rotary.channels == "first" else spec.head_dim - rotary.width
    frequencies = schedules.inv_freq(rotary) if rotary.precision == "exact" else None
    for i in range(rotary.width // 2):
        a, b = (i, i + rotary.width // 2) if rotary.pairing == "half" else (2 * i, 2 * i + 1)
        if frequencies is None:
            by = tables["cos"].astype(np.float64)[positions, i] + 1j * tables["sin"].astype(np.float64)[positions, i]
        else:
            by = rotary.magnitude * np.exp(1j * rotary.sign * positions * frequencies[i])
        pair = (x[..., start + a] + 1j * x[..., start + b]) * by[:, None, :]
        turned[..., start + a], turned[..., start + b] = pair.real, pair.imag
    return turned


def press_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """Press 2021: a geometric sequence; heads that are no power of two fill up from the next one's odd places."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-bias_max * (h + 1) / power) for h in range(power)]
    return slopes + [2.0 ** (-bias_max * (2 * h + 1) / (2 * power)) for h in range(heads - power)]


def sees(spec: AttentionSpec, inputs: BlockInputs, batch: int, row: int, slot: int) -> bool:
    """Whether the query of this row sees the key at this slot."""
    query = inputs.past + row
    if inputs.attention_mask[batch, slot] != 1:
        return False
    if spec.causal:
        return slot <= query and (spec.window is None or query - slot < spec.window)
    return spec.window_radius is None or abs(query - slot) <= spec.window_radius


def _attend(spec, w, q, keys, inputs):
    batch, heads, sequence, _ = q.shape
    total = keys.shape[2]
    group = heads // spec.num_kv_heads
    scores, probs = np.zeros((batch, heads, sequence, total)), np.zeros((batch, heads, sequence, total))
    for b, h, row in np.ndindex(batch, heads, sequence):
        line = keys[b, h // group] @ q[b, h, row] * spec.scale
        for encoding in spec.bias:
            behind = inputs.position_ids[b, row] - inputs.key_position_ids[b]
            behind = np.abs(behind) if encoding.symmetric else behind
            line = line - press_slopes(heads, encoding.bias_max)[h] * encoding.scale * behind
        if spec.softcap is not None:
            line = spec.softcap * np.tanh(line / spec.softcap)
        scores[b, h, row] = line
        seen = [slot for slot in range(total) if sees(spec, inputs, b, row, slot)]
        if not seen:
            continue
        logits = line[seen]
        sink = [w["sinks"][h]] if spec.sinks else []
        largest = max([*logits, *sink])
        shares = np.exp(logits - largest)
        probs[b, h, row, seen] = shares / (shares.sum() + sum(np.exp(logit - largest) for logit in sink))
    return scores, probs


# --- the judgement -------------------------------------------------------------------------

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def excess(spec: AttentionSpec, inputs: BlockInputs, outputs: BlockOutputs, expected: dict, dtype: str) -> dict:
    """Each tensor's largest error in units of what rounding explains: above 1 there is a fault.

    Pad queries and pad keys are left out, and still have to be finite. Rounding explains a few units of the type at a
    tensor's largest value; behind the softmax the error of a score before its cap multiplies that.
    """
    found = {"output": outputs.output, **outputs.stages}
    if spec.causal:
        found |= {"present_key": outputs.present_key, "present_value": outputs.present_value}
    q, keys = expected.get("q_rotated", expected["q"]), expected["present_key"]
    products = np.abs(np.einsum("bhsd,bhtd->bhst", q, np.repeat(keys, q.shape[1] // keys.shape[1], axis=1))).max()
    largest = spec.scale * products + (np.abs(expected["scores"]).max() if spec.bias else 0.0)
    ratios = {}
    for name, array in found.items():
        reference = expected[name]
        assert array.shape == reference.shape, name
        assert np.isfinite(array.astype(np.float64)).all(), name
        kept = _kept(name, inputs, array.shape)
        if name == "scores":
            allowed = 8 * _UNIT[dtype] * largest
        elif name in ("probs", "context", "output"):
            allowed = 4 * _UNIT[dtype] * np.abs(reference[kept]).max() * (1 + largest)
        else:
            allowed = 8 * _UNIT[dtype] * np.abs(reference[kept]).max()
        ratios[name] = float(np.abs(array.astype(np.float64) - reference)[kept].max() / allowed)
    return ratios


def _kept(name: str, inputs: BlockInputs, shape: tuple[int, ...]) -> np.ndarray:
    """Bool of the tensor's leading axes: (batch, token), or (batch, heads, token | slot)."""
    slots = inputs.attention_mask == 1
    tokens = slots[:, inputs.past :]
    if name in ("embedded", "normed", "output"):
        return tokens
    return np.broadcast_to((slots if name.startswith("present") else tokens)[:, None, :], shape[:3])


# --- files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """A block on disk: the production graph, the stages graph, and where its tables end."""

    path: Path
    stages_path: Path
    end: int | None


def place(weights: dict[str, np.ndarray], location: str) -> tuple[bytes, dict[str, ExternalWeight]]:
    """The bytes of a data file, each tensor at a multiple of 64, and where each lies."""
    data, places = bytearray(), {}
    for name, array in weights.items():
        data += bytes(-len(data) % 64)
        places[name] = ExternalWeight(location, len(data), array.nbytes, array.dtype.name, array.shape)
        data += array.tobytes()
    return bytes(data), places


def write(folder: Path, spec: AttentionSpec, weights: dict[str, np.ndarray], dtype: str, tables=None) -> Files:
    """Build both graphs and write them beside their weights."""
    tables = table_set(spec) if tables is None else tables
    data, places = place(graph_weights(spec, weights, dtype), f"weights_{dtype}.data")
    (folder / f"weights_{dtype}.data").write_bytes(data)
    paths = []
    for stages in (False, True):
        path = folder / f"portable_{dtype}{'.stages' if stages else ''}.onnx"
        path.write_bytes(
            build(spec, form="portable", dtype=dtype, layer=LAYER, tables=tables, weights=places, stages=stages)
        )
        paths.append(path)
    return Files(paths[0], paths[1], end_of(spec, tables))
