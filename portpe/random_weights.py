"""Seeded weights for a block without a checkpoint: wide enough that a positional fault is loud."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from portpe.layer_parts import MlaProjection
from portpe.schedules import magnitude
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SCORE_STD = 3.0  # of q.k * scale for N(0, 1) hidden states: one key of a dozen takes about half of the weight
TABLE_STD = 1.0
GATE_STD = 2.0  # of what an output gate's activation takes: a sigmoid mostly between 0.02 and 0.98
BIAS_STD = 2.0  # of a trained bias on the scores
GATE_LOGIT = 3.0  # of a forget gate: most lie near 1, as trained ones do, some heads' about 1/2, some tokens' near 0
CHUNK = 1 << 20


def random_weights(spec: AttentionSpec, seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights by canonical name in the order of ``weight_shapes``: float32, the same bytes on every platform.

    For N(0, 1) hidden states, scores (before bias and softcap) have a standard deviation of about 3, values and
    outputs of about 1, gated ones of about half; with linear attention queries and keys too. Norm weights lie around a
    centre near 1, never on it; biases, sinks and the position table are large enough that leaving one out shows.
    """
    spread = _spreads(spec)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        centre, std = spread[name]
        noise = _normal(seed, name, math.prod(shape))
        weights[name] = (centre + std * noise).astype(np.float32).reshape(shape)
    return weights


def _spreads(spec: AttentionSpec) -> dict[str, tuple[float, float]]:
    """Centre and standard deviation of every tensor that a block may have."""
    gain = SCORE_STD / (spec.scale * math.sqrt(spec.head_dim) * _turned_gain(spec))
    if spec.attention == "linear":
        gain = 1.0  # features bend there, whatever the width of a head
    head_std = math.sqrt(gain)  # of an element of q and k: then q.k * scale has SCORE_STD
    fan_in = math.sqrt(spec.hidden_size) * _input_std(spec)
    value_std = 1.0 if spec.clip_qkv is None else spec.clip_qkv  # a clip must bite to be seen
    spreads = {
        "position_embedding.weight": (0.0, TABLE_STD),
        **{f"position_embedding.axis_{axis}.weight": (0.0, TABLE_STD) for axis in range(spec.position_axes)},
        "embedding_projection.weight": (0.0, 1 / math.sqrt(spec.input_width)),
        "embedding_projection.bias": (0.0, 0.25),
        "v_proj.weight": (0.0, value_std / fan_in),
        "v_proj.bias": (0.0, 0.5 * value_std),
        "v_norm.weight": (1.0 - (spec.v_norm.weight_offset if spec.v_norm else 0.0), 0.25),
        "v_norm.bias": (0.0, 0.25),
        "relative_key.weight": (0.0, 0.5 * head_std),
        "relative_value.weight": (0.0, 0.5 * value_std),
        "contextual_position.weight": (0.0, 1.5 / (head_std * math.sqrt(spec.head_dim))),
        "relative_embedding.weight": (0.0, TABLE_STD),
        "relative_norm.weight": (1.0, 0.25),
        "relative_norm.bias": (0.0, 0.25),
        "position_key_proj.weight": (0.0, head_std / math.sqrt(spec.hidden_size)),
        "position_key_proj.bias": (0.0, 0.5 * head_std),
        "position_query_proj.weight": (0.0, head_std / math.sqrt(spec.hidden_size)),
        "position_query_proj.bias": (0.0, 0.5 * head_std),
        "relative_proj.weight": (0.0, head_std / math.sqrt(spec.hidden_size)),
        "relative_state_proj.weight": (0.0, 1 / fan_in),
        "relative_state_scale": (1.0, 0.25),
        "distance_bank": (0.0, BIAS_STD),
        "content_bias": (0.0, 0.5 * head_std),
        "position_bias": (0.0, 0.5 * head_std),
        "sinks": (0.0, 1.0),
        "gate_proj.weight": (0.0, GATE_STD / fan_in),
        "gate_proj.bias": (0.0, 0.5 * GATE_STD),
        "rotary_log_scales": (0.0, 0.3),
        "relative_attention_bias.weight": (0.0, BIAS_STD),
        **{f"axis_bias_{axis}.weight": (0.0, BIAS_STD) for axis in range(spec.position_axes)},
        "relative_position_bias_table": (0.0, BIAS_STD),
        "relative_height.weight": (0.0, 1.5 / (head_std * math.sqrt(spec.head_dim))),
        "relative_width.weight": (0.0, 1.5 / (head_std * math.sqrt(spec.head_dim))),
        "grid_in.weight": (0.0, 2.0),
        "grid_in.bias": (0.0, 1.0),
        "grid_out.weight": (0.0, 0.3),
        "kerple_r1": (1.0, 0.2),
        "kerple_r2": (0.6, 0.1),
        "relative_gate.weight": (0.0, 0.75 / (_input_std(spec) * math.sqrt(spec.hidden_size / spec.num_heads))),
        "relative_gate.bias": (0.0, 0.3),
        "relative_gate_scale": (1.0, 0.5),
        "fgate_proj.weight": (0.0, 1.5 / fan_in),
        "fgate_proj.bias": (GATE_LOGIT, 3.0),
        "fire_c": (0.5, 0.1),
        "fire_threshold": (12.0, 1.0),
        "fire_in.weight": (0.0, 2.0),
        "fire_in.bias": (0.0, 1.0),
        "fire_out.weight": (0.0, 0.5),
        "fire_out.bias": (0.0, 1.0),
        "o_proj.weight": (0.0, 1 / (value_std * math.sqrt(spec.num_heads * spec.v_head_dim))),
        "o_proj.bias": (0.0, 0.5),
    }
    for name, input_norm in spec.input_norms.items():
        spreads[f"{name}.weight"] = (1.0 - input_norm.weight_offset, 0.25)
        spreads[f"{name}.bias"] = (0.0, 0.25)
    for name, norm in (("q", spec.q_norm), ("k", spec.k_norm)):
        spreads[f"{name}_proj.weight"] = (0.0, head_std / fan_in)
        spreads[f"{name}_proj.bias"] = (0.0, 0.5 * head_std)
        offset = norm.weight_offset if norm else 0.0
        spreads[f"{name}_norm.weight"] = (head_std - offset, 0.25 * head_std)
        spreads[f"{name}_norm.bias"] = (0.0, 0.25 * head_std)
    return spreads if spec.mla is None else spreads | _latent_spreads(spec.mla, gain, fan_in)


def _latent_spreads(mla: MlaProjection, gain: float, fan_in: float) -> dict[str, tuple[float, float]]:
    """Those of the projections through latents. Keys and values share a matrix, so keys too have elements of about 1
    and queries of ``gain``.
    """
    q_fan_in = fan_in if mla.q_lora_rank is None else math.sqrt(mla.q_lora_rank)
    return {
        "q_a_proj.weight": (0.0, 1 / fan_in),
        "kv_a_proj_with_mqa.weight": (0.0, 1 / fan_in),
        "q_a_proj.bias": (0.0, 0.25),
        "kv_a_proj_with_mqa.bias": (0.0, 0.25),
        "q_a_layernorm.weight": (1.0, 0.25),
        "kv_a_layernorm.weight": (1.0, 0.25),
        f"{mla.q_module}.weight": (0.0, gain / (q_fan_in * mla.q_scale)),
        "kv_b_proj.weight": (0.0, 1 / (math.sqrt(mla.kv_lora_rank) * mla.kv_scale)),
    }


def _turned_gain(spec: AttentionSpec) -> float:
    """By how much an attention factor in cos and sin widens the scores."""
    if spec.rotary is None:
        return 1.0
    turned = spec.rotary.width / spec.head_dim
    return math.sqrt(turned * magnitude(spec.rotary, 1) ** 4 + 1 - turned)


def _input_std(spec: AttentionSpec) -> float:
    """Standard deviation of what q_proj sees, for N(0, 1) hidden states."""
    if spec.input_norms or spec.embedding_projection is not None:
        return 1.0
    added = 0.0
    if spec.embedding is not None:
        added = TABLE_STD**2 if spec.embedding.weight_shapes(spec) else 0.5
    return math.sqrt((spec.embed_scale or 1.0) ** 2 + added)


def _normal(seed: int, name: str, count: int) -> NDArray[np.float64]:
    """``count`` nearly normal numbers of mean 0 and variance 1, by tensor name.

    Each is the sum of the four 16-bit parts of one raw draw (Irwin-Hall), so integers until one division: numpy
    promises that raw PCG64 streams stay, not that ``standard_normal`` does, whose tails go through the platform's log.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, *name.encode()]))
    std = math.sqrt(4 * (2**32 - 1) / 12)
    out = np.empty(count)
    for start in range(0, count, CHUNK):
        raw = bits.random_raw(min(CHUNK, count - start))
        total = sum((raw >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48))
        out[start : start + CHUNK] = (np.asarray(total).astype(np.float64) - 2 * 65535) / std
    return out
