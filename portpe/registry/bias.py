"""Rows of the bias site."""

from __future__ import annotations

from portpe.encodings import AlibiEncoding
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
)
