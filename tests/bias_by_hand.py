"""Bias encodings by their papers' formulas, one number at a time: what the score of a query and a key gets."""

from __future__ import annotations

import math


def press_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """Press 2021: a geometric sequence; heads that are no power of two fill up from the next one's odd places."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-bias_max * (h + 1) / power) for h in range(power)]
    return slopes + [2.0 ** (-bias_max * (2 * h + 1) / (2 * power)) for h in range(heads - power)]


def _alibi(encoding, spec, _weights, _q, _k, head, query, key) -> float:
    behind = abs(query - key) if encoding.symmetric else query - key
    return -press_slopes(spec.num_heads, encoding.bias_max)[head] * encoding.scale * behind


def _buckets(encoding, _spec, weights, _q, _k, head, query, key) -> float:
    """Raffel 2019: beyond half of the buckets by the logarithm, which settings here never bring to a whole number."""
    return float(weights["relative_attention_bias.weight"][bucket_of(encoding, query, key), head]) * encoding.scale


def bucket_of(buckets, query, key) -> int:
    """The bucket of one distance."""
    n = buckets.num_buckets // 2 if buckets.bidirectional else buckets.num_buckets
    exact = n // 2
    bucket = abs(key - query) if buckets.bidirectional else max(query - key, 0)
    if bucket >= exact:
        ratio = math.log(bucket / exact) / math.log(buckets.max_distance / exact)
        bucket = min(exact + int(ratio * (n - exact)), n - 1)
    return bucket + n * (buckets.bidirectional and key > query)


def shaw_row(encoding, query, key) -> int:
    """Shaw 2018: one row a distance, between two ends."""
    clipped = min(max(key - query, -encoding.left), encoding.right)
    return encoding.right - clipped if encoding.descending else clipped + encoding.left


def _shaw(encoding, spec, weights, q, _k, _head, query, key) -> float:
    if encoding.beyond == "nothing" and not -encoding.left <= key - query <= encoding.right:
        return 0.0
    row = weights["relative_key.weight"][shaw_row(encoding, query, key)]
    return sum(float(q[d] * row[d]) for d in range(len(q))) * spec.scale


def _transformer_xl(encoding, spec, weights, q, k, head, query, key) -> float:
    """Dai 2019, equation 5 less its first term: u . k + (q + v) . (W r), r the sinusoids of the distance."""
    distance = query - key
    if encoding.clamp is not None:
        distance = min(max(distance, -encoding.clamp), encoding.clamp)
    half = spec.hidden_size // 2
    angles = [distance * encoding.base ** (-c / half) for c in range(half)]
    sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    waves = sines + cosines
    if encoding.order == "interleaved":
        waves = [channel for pair in zip(sines, cosines, strict=True) for channel in pair]
    total = 0.0
    for d in range(len(q)):
        projected = float(weights["relative_proj.weight"][head * len(q) + d] @ waves)
        total += weights["content_bias"][head, d] * k[d] + (q[d] + weights["position_bias"][head, d]) * projected
    return total * spec.scale


def _deberta(encoding, spec, weights, q, k, head, query, key) -> float:
    """He 2021: q . K(delta) + k . Q(delta), where the paper's delta(i, j) is the row of a projected table."""
    row = query - key
    if encoding.max_distance is not None and abs(row) > (mid := encoding.span // 2):
        ratio = math.log(abs(row) / mid) / math.log((encoding.max_distance - 1) / mid)
        row = (math.ceil(ratio * (mid - 1) - 1e-12) + mid) * (1 if row > 0 else -1)
    row = min(max(row + encoding.span, 0), 2 * encoding.span - 1)
    vector = weights["relative_embedding.weight"][row]
    if encoding.norm_eps is not None:
        centred = vector - vector.mean()
        vector = centred / math.sqrt(float((centred**2).mean()) + encoding.norm_eps)
        vector = vector * weights["relative_norm.weight"] + weights["relative_norm.bias"]
    total = 0.0
    for part, other, wanted in (
        ("key", q, encoding.content_to_position),
        ("query", k, encoding.position_to_content),
    ):
        name = f"{part[0]}_proj" if encoding.share_projections else f"position_{part}_proj"
        for d in range(len(q) if wanted else 0):
            channel = head * len(q) + d
            bias = weights[f"{name}.bias"][channel] if f"{name}.bias" in weights else 0.0
            total += float(other[d] * (weights[f"{name}.weight"][channel] @ vector + bias))
    return total * spec.scale


def _kerple(encoding, _spec, weights, _q, _k, head, query, key) -> float:
    """Chi 2022, KERPLE, equations of section 4."""
    r1, r2, apart = float(weights["kerple_r1"][head]), float(weights["kerple_r2"][head]), abs(query - key)
    return -r1 * (math.log(1 + r2 * apart) if encoding.form == "logarithmic" else apart**r2)


def _fire(encoding, _spec, weights, _q, _k, head, query, key) -> float:
    """Li 2023, equation 5 and its listing."""
    c, threshold = abs(float(weights["fire_c"][0])), abs(float(weights["fire_threshold"][0]))
    x = math.log(c * abs(query - key) + 1) / (math.log(c * max(query, threshold) + 1) + encoding.epsilon)
    total = float(weights["fire_out.bias"][head])
    for unit in range(encoding.width):
        inner = float(weights["fire_in.weight"][unit, 0]) * x + float(weights["fire_in.bias"][unit])
        total += float(weights["fire_out.weight"][head, unit]) * max(inner, 0.0)
    return total


def _sandwich(encoding, spec, _weights, _q, _k, head, query, key) -> float:
    """Chi 2022, Sandwich, section 4."""
    waves = (math.cos((query - key) * encoding.base ** (-2 * k / encoding.width)) for k in range(encoding.width // 2))
    return 8 * (head + 1) / spec.num_heads * sum(waves)


_BY_KIND = {
    "alibi": _alibi,
    "buckets": _buckets,
    "deberta": _deberta,
    "fire": _fire,
    "kerple": _kerple,
    "sandwich": _sandwich,
    "shaw": _shaw,
    "transformer_xl": _transformer_xl,
}


def score_bias(spec, weights, q, k, head: int, query: int, key: int) -> float:
    """What all biases of a layer add to the score of a query ``q`` and a key ``k`` (head_dim,)."""
    kinds = [each for each in spec.bias if not each.cached_states(spec)]  # those are no matter of one key alone
    return sum(_BY_KIND[each.kind](each, spec, weights, q, k, head, query, key) for each in kinds)
