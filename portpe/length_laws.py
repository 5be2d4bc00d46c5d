"""Laws whose frequencies follow every further token, as a program that forms angles itself evaluates them.

Constants are exact and rounded once to float64. Evaluated in float64 a frequency has a relative error of a few units
of 2 ** -53, and so has an angle: 1e-9 at position a million, where float32 products would be off by 6e-2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from portpe import schedules
from portpe.encodings import DefaultSchedule, DynamicSchedule, DynamicYarnSchedule, LongropeSchedule, RotaryEncoding

Constants = NDArray[np.float64]


@dataclass(frozen=True)
class Rebased:
    """Dynamic NTK: f_i = ``theta``_i * stretch ** ``exponents``_i, stretch = max(1, factor L / trained - (factor - 1)).

    It is theta_i of the base times stretch ** (R/(R-2)), taken apart: exponents_i = -2i/(R-2).
    """

    theta: Constants  # (R/2,)
    exponents: Constants  # (R/2,)
    factor: float
    trained: int


@dataclass(frozen=True)
class Ramped:
    """Dynamic YaRN: f_i = ``kept``_i + ``stretched``_i / s, s = max(1, L / ``trained``).

    cos and sin are multiplied by 0.1 ln s + 1 besides.
    """

    kept: Constants  # (R/2,)
    stretched: Constants  # (R/2,)
    trained: int


def of(rotary: RotaryEncoding) -> Rebased | Ramped:
    """The law of an encoding whose schedule follows every token.

    Raises SpecError: the law is undefined.
    """
    schedule, width = rotary.schedule, rotary.width
    if isinstance(schedule, DynamicSchedule):
        theta = schedules.default(DefaultSchedule(rope_theta=schedule.rope_theta), width)
        exponents = -2.0 * np.arange(width // 2) / (width - 2)
        return Rebased(theta, exponents, schedule.factor, schedule.max_position_embeddings)
    assert isinstance(schedule, DynamicYarnSchedule)
    kept, stretched = schedules.parts(schedule, width)
    return Ramped(kept, stretched, schedule.original_max_position_embeddings)


def settled(rotary: RotaryEncoding, length: int) -> int:
    """The least length that has the frequencies of ``length``: what a table of them is to be kept under."""
    schedule = rotary.schedule
    if isinstance(schedule, LongropeSchedule):
        original = schedule.original_max_position_embeddings
        return original + 1 if length > original else 1
    return length if length > of(rotary).trained else 1
