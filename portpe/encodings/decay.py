"""Rotary site: a decay of scores with distance, put into queries and keys as they are turned."""

from __future__ import annotations

from typing import Literal

from portpe.encodings.parts import NonNegativeInt, Part, PositiveReal


class XposDecay(Part):
    """xPos (Sun 2022, section 2.2).

    Pair i of a query at position n is multiplied by zeta_i^((n - centre) / scale_base), pair i of a key at position m
    by zeta_i^(-(m - centre) / scale_base), with zeta_i = (2i / R + gamma) / (1 + gamma) and R the rotary width. A score
    sees the quotient alone, zeta_i^((n - m) / scale_base). ``centre`` is the position where both are 1: it keeps
    numbers in the range of a type and changes no score. torchscale and lucidrains' package take half of the current
    length, which a cached key cannot follow, since it was scaled for an earlier length; so here it is a fixed number.
    """

    kind: Literal["xpos"] = "xpos"
    scale_base: PositiveReal = 512.0
    gamma: PositiveReal = 0.4
    centre: NonNegativeInt = 0
