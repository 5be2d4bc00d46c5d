"""Rows of the rotary site: the rotation, and decays of scores that it may carry."""

from __future__ import annotations

from portpe.encodings import DefaultSchedule, RotaryEncoding, XposDecay
from portpe.registry.rows import DecayRow, EncodingRow

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

DECAY_ROWS = (
    DecayRow(
        kind="xpos",
        spec_class=XposDecay,
        title="xPos",
        formula="pair i of a query times zeta_i^e, of a key times zeta_i^-e, e = (p - centre) / scale_base, zeta_i = "
        "(2i / R + gamma) / (1 + gamma); the centre keeps numbers in range and changes no score",
        source="Sun 2022, section 2.2; torchscale and lucidrains' package, whose centre moves with the length",
        example=XposDecay(scale_base=256.0, gamma=0.5, centre=512),
    ),
)
