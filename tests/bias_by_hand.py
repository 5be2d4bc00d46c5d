"""Bias encodings by their papers' formulas, one number at a time: what the score of a query and a key gets."""

from __future__ import annotations

import math


def press_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """Press 2021: a geometric sequence; heads that are no power of two fill up from the next one's odd places."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-bias_max * (h + 1) / power) for h in range(power)]
    return slopes + [2.0 ** (-bias_max * (2 * h + 1) / (2 * power)) for h in range(heads - power)]


def _alibi(encoding, _weights, head, heads, query, key) -> float:
    behind = abs(query - key) if encoding.symmetric else query - key
    return -press_slopes(heads, encoding.bias_max)[head] * encoding.scale * behind


def _buckets(encoding, weights, head, _heads, query, key) -> float:
    """Raffel 2019: beyond half of the buckets by the logarithm, which settings here never bring to a whole number."""
    n = encoding.num_buckets // 2 if encoding.bidirectional else encoding.num_buckets
    exact = n // 2
    bucket = abs(key - query) if encoding.bidirectional else max(query - key, 0)
    if bucket >= exact:
        ratio = math.log(bucket / exact) / math.log(encoding.max_distance / exact)
        bucket = min(exact + int(ratio * (n - exact)), n - 1)
    after = encoding.bidirectional and key > query
    return float(weights["relative_attention_bias.weight"][bucket + n * after, head])


_BY_KIND = {"alibi": _alibi, "buckets": _buckets}


def score_bias(spec, weights, head: int, query, key) -> float:
    """The sum of a layer's biases for one head and pair of positions."""
    return sum(_BY_KIND[each.kind](each, weights, head, spec.num_heads, query, key) for each in spec.bias)
