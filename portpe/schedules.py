"""Inverse frequencies by law: one function a law, exact, rounded once to float64.

Every number of a spec is taken as the float64 that it is. Widths and counts are whole
numbers formed in float64, as model code forms them; everything after that is evaluated
with 50 decimal digits, so a result is the float64 nearest to the formula's value. Pair
index i runs over 0..R/2-1, R is the rotary width, theta_i = rope_theta ** (-2i/R).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.axes import deal
from portpe.encodings import (
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    FixedRegime,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    ProportionalSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.errors import SpecError

Frequencies = NDArray[np.float64]

_DIGITS = 50
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")  # decimal has none
_RAMP_FLOOR = Decimal("0.001")  # keeps a ramp of no width defined


def inv_freq(rotary: RotaryEncoding, seq_len: int | None = None) -> Frequencies:
    """Inverse frequencies of a rotary encoding, in radians a position, one a column of cos and sin.

    Args:
        rotary: the encoding.
        seq_len: length of the sequence in tokens, for schedules that depend on it; others ignore it. A ``fixed``
            regime's own length goes before it.

    Returns:
        float64 (R/2,), in the order of ``portpe.axes`` where a position has several coordinates; never negative:
        ``sign`` and the attention factor belong to cos and sin.

    Raises:
        SpecError: the schedule depends on the length and none is given, a law is undefined, or trained scales are
            left to the weights. Where there are such scales, exp and product are rounded to float64 once more.
    """
    schedule, width = rotary.schedule, rotary.frequency_width
    if not schedule.length_dependent:
        frequencies = LAWS[schedule.kind](schedule, width)
    else:
        frequencies = LENGTH_LAWS[schedule.kind](schedule, width, resolve_length(rotary, seq_len))
    if rotary.log_scales is not None:
        frequencies = frequencies * np.exp(np.array(settled_scales(rotary)))
    return frequencies if rotary.axes is None else frequencies[deal(rotary).frequencies]


def settled_scales(rotary: RotaryEncoding) -> tuple[float, ...]:
    """The log_scales of a rotary encoding that has some. Raises SpecError where they are left to the weights."""
    if rotary.log_scales is None or rotary.log_scales == "learned":
        raise SpecError(
            f"rotary.log_scales must be numbers, got {rotary.log_scales!r}: they are the tensor rotary_log_scales of "
            "the weights, which portpe.learned.settle puts into the spec"
        )
    return rotary.log_scales


def resolve_length(rotary: RotaryEncoding, seq_len: int | None) -> int:
    """The length whose frequencies a length-dependent schedule takes: that of a fixed regime, else ``seq_len``.

    Raises:
        SpecError: there is neither, or the length is not positive.
    """
    length = rotary.regime.length if isinstance(rotary.regime, FixedRegime) else seq_len
    if length is None:
        raise SpecError(
            f"seq_len is required for the length-dependent schedule {rotary.schedule.kind}, got None; "
            "give seq_len, or fix a regime (--context L)"
        )
    if length < 1:
        raise SpecError(f"seq_len must be >= 1, got {length}")
    return int(length)


def magnitude(rotary: RotaryEncoding, seq_len: int | None = None) -> float:
    """The multiplier of cos and sin: the attention factor, times a temperature that follows the length.

    Raises:
        SpecError: the schedule depends on the length and none is given.
    """
    if not rotary.schedule.length_dependent:
        return rotary.magnitude
    return rotary.magnitude * rotary.schedule.temperature(resolve_length(rotary, seq_len))


def default(schedule: DefaultSchedule, width: int) -> Frequencies:
    """theta_i (Su 2021, section 3.2.2)."""
    with _exact():
        return _rounded(_powers(_ln(schedule.rope_theta), width, width // 2))


def linear(schedule: LinearSchedule, width: int) -> Frequencies:
    """theta_i / factor: positions interpolated into the trained range (Chen 2023)."""
    with _exact():
        factor = Decimal(schedule.factor)
        return _rounded(f / factor for f in _powers(_ln(schedule.rope_theta), width, width // 2))


def ntk(schedule: NtkSchedule, width: int) -> Frequencies:
    """NTK-aware: theta_i of base * factor ** (R/(R-2)), the same at every length (Peng 2023, section 3.1)."""
    with _exact():
        return _rounded(_rebased(schedule.rope_theta, Decimal(schedule.factor), width))


def dynamic(schedule: DynamicSchedule, width: int, seq_len: int) -> Frequencies:
    """Dynamic NTK: theta_i of base * (factor L/M - (factor - 1)) ** (R/(R-2)) (Peng 2023, section 3.3).

    L = max(seq_len, M), M is ``max_position_embeddings``. Up to M tokens the result is the default's; it is a
    function of this call's length alone, never of an earlier call's.
    """
    with _exact():
        factor, trained = Decimal(schedule.factor), schedule.max_position_embeddings
        stretch = factor * max(seq_len, trained) / trained - (factor - 1)
        return _rounded(_rebased(schedule.rope_theta, stretch, width))


def ntk_by_parts(schedule: NtkByPartsSchedule, width: int) -> Frequencies:
    """(1 - r_i) theta_i + r_i theta_i / factor (Peng 2023, section 3.2).

    The ramp r_i = clamp((i - low) / (high - low), 0, 1) runs over pair indices, see
    ``correction_range``. There is no temperature here: ``attention_factor`` carries YaRN's.
    """
    with _exact():
        factor = Decimal(schedule.factor)
        return _rounded(kept + stretched / factor for kept, stretched in _by_parts(schedule, width))


def yarn(schedule: YarnSchedule, width: int) -> Frequencies:
    """NTK-by-parts; YaRN's temperature is the attention factor of cos and sin (Peng 2023, section 3.4)."""
    return ntk_by_parts(schedule, width)


def dynamic_yarn(schedule: DynamicYarnSchedule, width: int, seq_len: int) -> Frequencies:
    """YaRN's frequencies for s = max(1, seq_len / original length) (Peng 2023, section 3.3).

    The temperature is the schedule's ``temperature(seq_len)``. Up to the original length s is 1, and the result is the
    default's.
    """
    with _exact():
        factor = max(Decimal(1), Decimal(seq_len) / schedule.original_max_position_embeddings)
        return _rounded(kept + stretched / factor for kept, stretched in _by_parts(schedule, width))


def parts(schedule: NtkByPartsSchedule | DynamicYarnSchedule, width: int) -> tuple[Frequencies, Frequencies]:
    """What NTK-by-parts keeps of each theta_i, and what it divides by the factor."""
    with _exact():
        kept, stretched = zip(*_by_parts(schedule, width), strict=True)
        return _rounded(kept), _rounded(stretched)


def correction_range(schedule: NtkByPartsSchedule | DynamicYarnSchedule, width: int) -> tuple[Decimal, Decimal]:
    """The pair indices between which NTK-by-parts ramps, (low, high), as transformers bounds them.

    A pair turns n times within the original length at index
    R ln(original / (2 pi n)) / (2 ln base); low is taken at beta_fast and high at beta_slow,
    to whole indices outward unless ``truncate`` is False (gpt-oss). high is bounded by
    R - 1 and not by the last index R/2 - 1: model code does so, and it changes the ramp.
    """
    with _exact():
        log_base = _ln(schedule.rope_theta)
        if log_base == 0:
            raise SpecError(f"schedule.rope_theta must differ from 1 for schedule {schedule.kind}, got 1.0")

        def index_of(turns: float) -> Decimal:
            wavelength = schedule.original_max_position_embeddings / (2 * _PI * Decimal(turns))
            return width * wavelength.ln() / (2 * log_base)

        low, high = index_of(schedule.beta_fast), index_of(schedule.beta_slow)
        if schedule.truncate:
            low, high = Decimal(math.floor(low)), Decimal(math.ceil(high))
        low, high = max(low, Decimal(0)), min(high, Decimal(width - 1))
        return low, high + _RAMP_FLOOR if low == high else high


def longrope(schedule: LongropeSchedule, width: int, seq_len: int) -> Frequencies:
    """theta_i / factor_i, the long set from one token past the original length on (Ding 2024)."""
    with _exact():
        is_long = seq_len > schedule.original_max_position_embeddings
        divisors = schedule.long_factor if is_long else schedule.short_factor
        powers = _powers(_ln(schedule.rope_theta), width, width // 2)
        return _rounded(f / Decimal(divisor) for f, divisor in zip(powers, divisors, strict=True))


def llama3(schedule: Llama3Schedule, width: int) -> Frequencies:
    """Long wavelengths are stretched by ``factor``, short ones kept, a ramp between (Llama 3.1).

    With w = 2 pi / theta_i: w > original / low_freq_factor is divided by ``factor``,
    w < original / high_freq_factor is kept, and between them
    s = (original / w - low) / (high - low) weighs the two. Where low is high, as in Llama 4 Scout, nothing is between.
    """
    with _exact():
        factor, original = Decimal(schedule.factor), schedule.original_max_position_embeddings
        low, high = Decimal(schedule.low_freq_factor), Decimal(schedule.high_freq_factor)
        frequencies = []
        for theta in _powers(_ln(schedule.rope_theta), width, width // 2):
            turns = original * theta / (2 * _PI)  # original / wavelength
            if turns < low:
                frequencies.append(theta / factor)
            elif turns > high or low == high:
                frequencies.append(theta)
            else:
                smooth = (turns - low) / (high - low)
                frequencies.append((1 - smooth) * theta / factor + smooth * theta)
        return _rounded(frequencies)


def proportional(schedule: ProportionalSchedule, width: int) -> Frequencies:
    """theta_i / factor for the first floor(prf * R / 2) pairs, 0 after them (Gemma 4; p-RoPE, Barbero 2024).

    R is the whole head here: the exponent's denominator does not shrink with the
    fraction, and pair i is still (i, i + R/2), which partial rotation gets wrong.
    """
    with _exact():
        turned = int(schedule.partial_rotary_factor * width // 2)
        factor = Decimal(schedule.factor)
        frequencies = [f / factor for f in _powers(_ln(schedule.rope_theta), width, turned)]
        return _rounded([*frequencies, *[Decimal(0)] * (width // 2 - turned)])


def sinusoidal(embedding: SinusoidalEncoding) -> Frequencies:
    """Frequencies of a sinusoidal embedding: base ** (-i/n), i = 0, 1, ..., float64 (``frequencies``,).

    n = d/2 in the paper (Vaswani 2017, section 3.5), also where d is odd; floor(d/2) - 1 in tensor2tensor and fairseq.
    """
    with _exact():
        twice_n = embedding.width if embedding.denominator == "half" else 2 * (embedding.width // 2 - 1)
        return _rounded(_powers(_ln(embedding.base), twice_n, embedding.frequencies))


LAWS: dict[str, Callable[[Any, int], Frequencies]] = {
    "default": default,
    "linear": linear,
    "ntk": ntk,
    "ntk_by_parts": ntk_by_parts,
    "yarn": yarn,
    "llama3": llama3,
    "proportional": proportional,
}
LENGTH_LAWS: dict[str, Callable[[Any, int, int], Frequencies]] = {
    "dynamic": dynamic,
    "dynamic_yarn": dynamic_yarn,
    "longrope": longrope,
}


def _exact() -> AbstractContextManager[decimal.Context]:
    """A decimal context of ``_DIGITS`` digits that a caller's own context cannot change."""
    errors = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
    return decimal.localcontext(
        decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN, Emin=-9999, Emax=9999, traps=errors)
    )


def _ln(value: float) -> Decimal:
    return Decimal(value).ln()


def _powers(log_base: Decimal, width: int, count: int) -> list[Decimal]:
    """Powers base ** (-2i/width), i = 0..count-1.

    By repeated multiplication: each step costs half a unit in the 50th digit, so thousands
    of pairs leave more than 45 digits.
    """
    ratio = (-2 * log_base / width).exp()
    powers = [Decimal(1)]
    while len(powers) < count:
        powers.append(powers[-1] * ratio)
    return powers[:count]


def _by_parts(schedule: NtkByPartsSchedule | DynamicYarnSchedule, width: int) -> Iterator[tuple[Decimal, Decimal]]:
    """What of each theta_i is kept, (1 - r_i) theta_i, and what is divided by the factor, r_i theta_i."""
    low, high = correction_range(schedule, width)
    for i, theta in enumerate(_powers(_ln(schedule.rope_theta), width, width // 2)):
        ramp = min(max((i - low) / (high - low), Decimal(0)), Decimal(1))
        yield (1 - ramp) * theta, ramp * theta


def _rebased(rope_theta: float, stretch: Decimal, width: int) -> list[Decimal]:
    """Powers of the NTK-aware base rope_theta * stretch ** (R/(R-2))."""
    return _powers(_ln(rope_theta) + stretch.ln() * width / (width - 2), width, width // 2)


def _rounded(values: Iterable[Decimal]) -> Frequencies:
    return np.array([float(value) for value in values], dtype=np.float64)
