"""Rows of the rotary site."""

from __future__ import annotations

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.registry.rows import EncodingRow

ROTARY_ROWS = (
    EncodingRow(
        kind="rotary",
        site="rotary",
        spec_class=RotaryEncoding,
        title="Rotary (RoPE)",
        formula="pair i of q and k, (a, b), becomes A * (a cos - b sin, a sin + b cos) of sign * p * f_i",
        source="Su 2021, section 3.2; half pairing as in GPT-NeoX and transformers",
        example=RotaryEncoding(width=12, pairing="interleaved", schedule=DefaultSchedule(rope_theta=500000.0)),
    ),
)
