"""Rows of query temperatures."""

from __future__ import annotations

from portpe.encodings import LogarithmicTemperature, PowerTemperature, SteppedTemperature
from portpe.registry.rows import EncodingRow

QUERY_ROWS = (
    EncodingRow(
        kind="stepped",
        site="query",
        spec_class=SteppedTemperature,
        title="Stepped query temperature",
        formula="q *= 1 + beta ln(1 + floor((p + offset) / interval)), after the rotation",
        source="Nakanishi 2025; transformers (Llama 4, layers without RoPE: offset 1; Ministral 3: offset 0)",
        example=SteppedTemperature(interval=13, offset=1, beta=0.3),
    ),
    EncodingRow(
        kind="logarithmic",
        site="query",
        spec_class=LogarithmicTemperature,
        title="Logarithmic query temperature",
        formula="q *= 1 + beta ln(max((p + offset) / interval, 1))",
        source="transformers (Inkling)",
        example=LogarithmicTemperature(interval=11, offset=1, beta=0.2),
    ),
    EncodingRow(
        kind="power",
        site="query",
        spec_class=PowerTemperature,
        title="Query temperature by a power",
        formula="q *= (1 + (p + offset) / interval)^exponent",
        source="transformers (Beam)",
        example=PowerTemperature(interval=17, offset=1, exponent=0.2),
    ),
)
