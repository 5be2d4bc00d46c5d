"""What a decay multiplies queries by, pair by pair; keys take its reciprocal. And how far a type can hold both."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from portpe.encodings import RotaryEncoding
from portpe.errors import SpecError

Exact = NDArray[np.float64]

BITS = {"float64": 500, "float32": 48, "bfloat16": 48, "float16": 5}
"""Scales of a type lie between 2^-bits and 2^bits.

A key that a mask hides may stand as far ahead of a query as positions go, and some operators form its score before they
hide it: times 2^(2 bits) a score still has to be a number, and float16 holds those up to 2^16.
"""

_DIGITS = 50


def rates(rotary: RotaryEncoding) -> Exact:
    """ln(zeta_i) / scale_base, by pair (R/2,), negative; rounded once.

    zeta_i = (2i / R + gamma) / (1 + gamma) (Sun 2022, section 2.2).
    """
    decay = rotary.decay
    assert decay is not None
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        gamma, base = Decimal(decay.gamma), Decimal(decay.scale_base)
        zetas = ((Decimal(2 * i) / rotary.width + gamma) / (1 + gamma) for i in range(rotary.width // 2))
        return np.array([float(zeta.ln() / base) for zeta in zetas])


def scales(rotary: RotaryEncoding, positions: NDArray[np.int64], *, keys: bool = False) -> Exact:
    """zeta_i^((p + offset - centre) / scale_base), float64 (..., R/2), of positions p (...); of keys its inverse."""
    assert rotary.decay is not None
    return steps(rotary, positions + (rotary.offset - rotary.decay.centre), keys=keys)


def steps(rotary: RotaryEncoding, count: NDArray[np.int64], *, keys: bool = False) -> Exact:
    """By how much a scale changes over so many positions (...): zeta_i^(count / scale_base), or its reciprocal."""
    return np.asarray(np.exp(count[..., None] * (-rates(rotary) if keys else rates(rotary))))


def span(rotary: RotaryEncoding, dtype: str) -> tuple[int, int]:
    """The first and the last position whose scales a type holds (see ``BITS``); the first may be below 0."""
    assert rotary.decay is not None
    reach = math.floor(BITS[dtype] * math.log(2) / -float(rates(rotary)[0]))
    middle = rotary.decay.centre - rotary.offset
    return middle - reach, middle + reach


def check(rotary: RotaryEncoding, first: int, last: int, dtype: str) -> None:
    """Refuse positions whose scales a type does not hold. Raises SpecError."""
    if rotary.decay is None:
        return
    low, high = span(rotary, dtype)
    if first < low or last > high:
        got = first if first < low else last
        raise SpecError(
            f"positions must be from {max(low, 0)} to {high} with rotary.decay, whose scales leave what {dtype} holds "
            f"elsewhere, got {got}; move rotary.decay.centre, or give fewer --table-positions"
        )
