"""What a block computes by the written definition, in float64.

It shares nothing with the graphs: rotations are complex products, softmax is summed row by row over the keys that a
query sees, and positions are looked up in no table, unless transformers' own tables are the definition.
"""

from __future__ import annotations

import numpy as np

from portpe import schedules
from portpe.interface import BlockInputs, stages_of
from portpe.spec import AttentionSpec
from tests.bias_by_hand import score_bias


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
    linear = spec.attention == "linear"
    past_key, late = inputs.past_key.astype(np.float64), spec.deferred_rotation or linear
    cached = np.concatenate([past_key, found["k"]], axis=2)
    new = {"q": (found["q"], inputs.position_ids), "k": (found["k"], inputs.position_ids)}
    if late:
        new["k"] = (cached, inputs.key_position_ids)
    if linear:
        for part in "qk":
            new[part] = (_elu_plus_one(new[part][0]), new[part][1])
            found[f"{part}_features"] = new[part][0]
    for part, (heads, places) in new.items():
        turned = _rotate(spec, heads, places, tables, _lengths(inputs))
        found[f"{part}_rotated"] = _head_norm(spec, w, turned, part, "after")
    keys = found["k_rotated"] if late else np.concatenate([past_key, found["k_rotated"]], axis=2)
    values = np.concatenate([inputs.past_value.astype(np.float64), found["v"]], axis=2)
    gates = _gates(spec, w, x, inputs)
    group = spec.num_heads // spec.num_kv_heads
    if linear:
        found |= _quotients(spec, found, inputs)
    else:
        found["scores"], found["probs"] = _attend(spec, w, found["q_rotated"], keys, inputs, gates)
    found["context"] = np.einsum("bhst,bhtd->bhsd", found["probs"], np.repeat(values, group, axis=1))
    found["context"] += _value_terms(spec, w, found["probs"], inputs)
    found["gated"] = _gated(spec, w, found["context"], x)
    rows = np.concatenate([found["gated"][:, head] for head in range(spec.num_heads)], axis=-1)
    found["output"] = rows @ w["o_proj.weight"].T + w.get("o_proj.bias", 0.0)
    found = {stage: found[stage] for stage in stages_of(spec)}
    states = {} if gates is None else {"present_gate": gates}
    return {**found, "present_key": cached if late else keys, "present_value": values, **states}


def _gates(spec, w, x, inputs):
    """FoX: the logarithm of each token's gate (B, heads, T), cached ones first; None without."""
    if "fgate_proj.weight" not in w:
        return None
    f = 1 / (1 + np.exp(-(x @ w["fgate_proj.weight"].T + w["fgate_proj.bias"])))
    return np.concatenate([inputs.past_states["gate"].astype(np.float64), np.log(f).transpose(0, 2, 1)], axis=2)


def _faded(gates, inputs, b, h, row, slot):
    """FoX: the sum over the keys behind a slot up to the query's, pads left out."""
    between = range(slot + 1, inputs.past + row + 1)
    return 0.0 if gates is None else sum(gates[b, h, l] for l in between if inputs.attention_mask[b, l] == 1)


def _elu_plus_one(x):
    return np.where(x > 0, x, np.expm1(x)) + 1


def _quotients(spec, found, inputs):
    """Numerator, normaliser and weights, query by query."""
    group = spec.num_heads // spec.num_kv_heads
    rotated, plain = (np.repeat(found[name], group, axis=1) for name in ("k_rotated", "k_features"))
    scores = np.einsum("bhsd,bhtd->bhst", found["q_rotated"], rotated)
    below, probs = np.zeros((*scores.shape[:3], 1)), np.zeros_like(scores)
    for b, row in np.ndindex(scores.shape[0], scores.shape[2]):
        seen = [slot for slot in range(scores.shape[3]) if sees(spec, inputs, b, row, slot)]
        for h in range(spec.num_heads if seen else 0):
            below[b, h, row] = sum(found["q_features"][b, h, row] @ plain[b, h, slot] for slot in seen)
            probs[b, h, row, seen] = scores[b, h, row, seen] / below[b, h, row]
    return {"scores": scores, "normaliser": below, "probs": probs}


def _lengths(inputs):
    """One more than the largest position of each row's keys that are no pads."""
    rows = zip(inputs.key_position_ids, inputs.attention_mask, strict=True)
    return [1 + max(int(place) for place, kept in zip(*row, strict=True) if kept) for row in rows]


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
    norm = {"q": spec.q_norm, "k": spec.k_norm, "v": spec.v_norm}[part]
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
    projected = projected * (spec.value_scale if part == "v" else 1.0)
    width = spec.v_head_dim if part == "v" else spec.head_dim
    heads = np.stack(np.split(projected, projected.shape[-1] // width, axis=-1), axis=1)
    return _head_norm(spec, w, heads, part, "before")


def _rotate(spec, x, positions, tables, lengths):
    """Each pair is a complex number, multiplied by A exp(sign j p theta_i), theta_i that of the row's length."""
    rotary = spec.rotary
    if rotary is None:
        return x
    turned = x.copy()
    start = 0 if rotary.channels == "first" else spec.head_dim - rotary.width
    exact = rotary.precision == "exact"
    frequencies = np.stack([schedules.inv_freq(rotary, length) for length in lengths]) if exact else None
    factors = np.array([schedules.magnitude(rotary, length) for length in lengths])[:, None]
    for i in range(rotary.width // 2):
        a, b = (i, i + rotary.width // 2) if rotary.pairing == "half" else (2 * i, 2 * i + 1)
        if frequencies is None:
            by = tables["cos"].astype(np.float64)[positions, i] + 1j * tables["sin"].astype(np.float64)[positions, i]
        else:
            by = factors * np.exp(1j * rotary.sign * positions * frequencies[:, i : i + 1])
        pair = (x[..., start + a] + 1j * x[..., start + b]) * by[:, None, :]
        turned[..., start + a], turned[..., start + b] = pair.real, pair.imag
    return turned


def sees(spec: AttentionSpec, inputs: BlockInputs, batch: int, row: int, slot: int) -> bool:
    """Whether the query of this row sees the key at this slot."""
    query = inputs.past + row
    if inputs.attention_mask[batch, slot] != 1:
        return False
    if spec.causal:
        return slot <= query and (spec.window is None or query - slot < spec.window)
    return spec.window_radius is None or abs(query - slot) <= spec.window_radius


def shaw_vectors(encoding, table, behind):
    """The table's row for each distance, (T, width)."""
    ascending = table[::-1] if encoding.descending else table
    return np.stack([ascending[encoding.left + max(-encoding.left, min(encoding.right, -int(d)))] for d in behind])


def _value_terms(spec, w, probs, inputs):
    total = np.zeros((*probs.shape[:3], spec.v_head_dim))
    for encoding in spec.bias:
        if encoding.reads_probs:
            for b, row in np.ndindex(probs.shape[0], probs.shape[2]):
                behind = inputs.position_ids[b, row] - inputs.key_position_ids[b]
                total[b, :, row] += probs[b, :, row] @ shaw_vectors(encoding, w["relative_value.weight"], behind)
    return total


def _gated(spec, w, context, x):
    """The context, each head times its own numbers."""
    if spec.output_gate is None:
        return context
    rows = x @ w["gate_proj.weight"].T + w.get("gate_proj.bias", 0.0)
    factors = 1 / (1 + np.exp(-rows)) if spec.output_gate.activation == "sigmoid" else np.log(1 + np.exp(rows))
    of_heads = np.split(factors, spec.num_heads, axis=-1)
    return np.stack([context[:, head] * of_heads[head] for head in range(spec.num_heads)], axis=1)


def _attend(spec, w, q, keys, inputs, gates):
    batch, heads, sequence, _ = q.shape
    total = keys.shape[2]
    group = heads // spec.num_kv_heads
    scores, probs = np.zeros((batch, heads, sequence, total)), np.zeros((batch, heads, sequence, total))
    for b, h, row in np.ndindex(batch, heads, sequence):
        line = keys[b, h // group] @ q[b, h, row] * spec.scale
        query, key = int(inputs.position_ids[b, row]), keys[b, h // group]
        line = line + [
            score_bias(spec, w, q[b, h, row], key[slot], h, query, int(place)) + _faded(gates, inputs, b, h, row, slot)
            for slot, place in enumerate(inputs.key_position_ids[b])
        ]
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
