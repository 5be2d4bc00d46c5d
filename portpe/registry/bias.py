"""Rows of the bias site."""

from __future__ import annotations

from portpe.encodings import AlibiEncoding, BucketsEncoding
from portpe.registry.rows import EncodingRow

BIAS_ROWS = (
    EncodingRow(
        kind="alibi",
        site="bias",
        spec_class=AlibiEncoding,
        title="ALiBi",
        formula="score -= scale * m_h * (i - j), or |i - j| where symmetric; m_h = 2^(-bias_max h / H) for H = 2^n",
        source="Press 2021, section 3; its released code for other head counts; MPT for bias_max",
        example=AlibiEncoding(bias_max=6.0, scale=0.5),
    ),
    EncodingRow(
        kind="buckets",
        site="bias",
        spec_class=BucketsEncoding,
        title="T5 buckets",
        formula="score += table[bucket(j - i), h]; of n buckets a direction, n/2 = e hold one distance each, others "
        "e + floor(log(|i - j| / e) / log(max_distance / e) * (n - e)), at most n - 1",
        source="Raffel 2019, section 2.1; its released code for the buckets",
        example=BucketsEncoding(num_buckets=20, max_distance=50),
        weights=("relative_attention_bias.weight",),
    ),
)
