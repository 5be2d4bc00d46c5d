"""Bias encodings by their papers' formulas, one number at a time: what the score of a query and a key gets."""

from __future__ import annotations

import math


def press_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """Press 2021: a geometric sequence; heads that are no power of two fill up from the next one's odd places."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-bias_max * (h + 1) / power) for h in range(power)]
    return slopes + [2.0 ** (-bias_max * (2 * h + 1) / (2 * power)) for h in range(heads - power)]


def _alibi(encoding, spec, _weights, _q, head, query, key) -> float:
    behind = abs(query - key) if encoding.symmetric else query - key
    return -press_slopes(spec.num_heads, encoding.bias_max)[head] * encoding.scale * behind


def _buckets(encoding, _spec, weights, _q, head, query, key) -> float:
    """Raffel 2019: beyond half of the buckets by the logarithm, which settings here never bring to a whole number."""
    n = encoding.num_buckets // 2 if encoding.bidirectional else encoding.num_buckets
    exact = n // 2
    bucket = abs(key - query) if encoding.bidirectional else max(query - key, 0)
    if bucket >= exact:
        ratio = math.log(bucket / exact) / math.log(encoding.max_distance / exact)
        bucket = min(exact + int(ratio * (n - exact)), n - 1)
    after = encoding.bidirectional and key > query
    return float(weights["relative_attention_bias.weight"][bucket + n * after, head])


def shaw_row(encoding, query, key) -> int:
    """Shaw 2018: one row a distance, between two ends."""
    clipped = min(max(key - query, -encoding.left), encoding.right)
    return encoding.right - clipped if encoding.descending else clipped + encoding.left


def _shaw(encoding, spec, weights, q, _head, query, key) -> float:
    row = weights["relative_key.weight"][shaw_row(encoding, query, key)]
    return sum(float(q[d] * row[d]) for d in range(len(q))) * spec.scale


_BY_KIND = {"alibi": _alibi, "buckets": _buckets, "shaw": _shaw}


def score_bias(spec, weights, q, head: int, query: int, key: int) -> float:
    """What all biases of a layer add to the score of a query ``q`` (head_dim,) and a key, by head and positions."""
    return sum(_BY_KIND[each.kind](each, spec, weights, q, head, query, key) for each in spec.bias)
