"""The float32 numbers that transformers 5.24 makes, bit for bit: ``precision="hf"``.

Each function repeats transformers' operations in their order, on whole arrays of the
shape that transformers has there: torch's vectorised pow rounds the last elements of an
array, which do not fill a vector, by another routine. cos and sin do not depend on an
array's length (a test holds torch to that), so rows may be made in any portions.

ntk, ntk_by_parts and dynamic_yarn do not exist in transformers; here they are what its
dynamic and yarn would compute for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from portpe.axes import by_column, deal, on_every_axis
from portpe.encodings import (
    AlibiEncoding,
    BiasEncoding,
    DefaultSchedule,
    DynamicSchedule,
    DynamicYarnSchedule,
    LinearSchedule,
    Llama3Schedule,
    LogarithmicTemperature,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    PowerTemperature,
    ProportionalSchedule,
    RotaryEncoding,
    Schedule,
    SinusoidalEncoding,
    SteppedTemperature,
)
from portpe.encodings.temperature import Temperature
from portpe.errors import SpecError
from portpe.schedules import magnitude, resolve_length, settled_scales
from portpe.spec import AttentionSpec
from portpe.tables import arrange, sides

Table = NDArray[np.float32]

_ROWS_AT_ONCE = 65536  # bounds the memory that a long table takes while it is made


def inv_freq(rotary: RotaryEncoding, seq_len: int | None = None) -> torch.Tensor:
    """The inverse frequencies of transformers, float32 (R/2,), one a column as ``schedules.inv_freq`` has them.

    Args:
        rotary: the encoding; the length of a fixed regime goes before ``seq_len``.
        seq_len: length of the sequence, for schedules that depend on it.

    Raises:
        SpecError: the schedule depends on the length and none is given.
    """
    schedule, width = rotary.schedule, rotary.frequency_width
    if schedule.length_dependent:
        frequencies = _LENGTH_LAWS[schedule.kind](schedule, width, resolve_length(rotary, seq_len))
    else:
        frequencies = _LAWS[schedule.kind](schedule, width)
    if rotary.log_scales is not None:
        frequencies = frequencies * torch.tensor(settled_scales(rotary), dtype=torch.float32).exp()
    return frequencies if rotary.axes is None else frequencies[torch.from_numpy(deal(rotary).frequencies)]


def cos_sin(rotary: RotaryEncoding, positions: NDArray[np.int64], seq_len: int | None = None) -> tuple[Table, Table]:
    """The cos and sin of transformers before any cast to the activations' type, float32 (..., R/2) each.

    The attention factor and the encoding's sign are in them. Positions as ``tables.cos_sin`` takes them.
    """
    if rotary.contract == "float64":
        return _in_float64(rotary, positions)
    frequencies = inv_freq(rotary, seq_len)
    if rotary.coordinates == "centred":
        angles = _centred_angles(rotary, positions)
    else:
        angles = _multiplied(
            rotary, torch.from_numpy(by_column(rotary, positions + rotary.offset)).float(), frequencies
        )
    cos, sin = angles.cos(), angles.sin()
    if rotary.contract == "polar":
        turns = torch.polar(torch.ones_like(angles), angles)
        cos, sin = turns.real, turns.imag
    factor = magnitude(rotary, seq_len)
    cos, sin = cos * factor, sin * factor
    return cos.numpy(), (sin * rotary.sign).numpy()


def sinusoid(embedding: SinusoidalEncoding, positions: NDArray[np.int64]) -> Table:
    """The sinusoidal rows of transformers, float32 (..., width), ``offset`` added inside.

    ``half_minus_one`` as Whisper, MusicGen and M2M100 make them (angles in float32);
    ``half`` as DistilBERT and Marian do (angles in float64, rounded once), or as CTRL does (float32). In
    transformers the order follows from the model; here each order takes its denominator's arithmetic.
    """
    rows, half = positions + embedding.offset, embedding.width // 2
    if embedding.contract == "ctrl":
        channels = torch.arange(embedding.width, dtype=torch.int64).float()
        rates = 1 / torch.pow(embedding.base, (2 * (channels // 2)) / embedding.width)
        turned = torch.from_numpy(rows)[..., None].float() * rates
        cos, sin = turned[..., 1::2].cos(), turned[..., ::2].sin()
    elif embedding.denominator == "half_minus_one":
        increment = math.log(embedding.base) / (half - 1)
        timescales = torch.exp(torch.arange(half, dtype=torch.int64).float() * -increment)
        scaled_time = torch.from_numpy(rows)[..., None].float() * timescales
        cos, sin = scaled_time.cos(), scaled_time.sin()
    else:
        angles = rows[..., None] / np.power(embedding.base, 2 * np.arange(embedding.frequencies) / embedding.width)
        cos, sin = torch.from_numpy(np.cos(angles)).float(), torch.from_numpy(np.sin(angles)).float()
    arranged: Table = arrange(embedding, cos.numpy(), sin.numpy())
    return arranged * np.float32(embedding.scale)


def query_scale(temperature: Temperature, positions: NDArray[np.int64]) -> Table:
    """The query temperature of transformers, float32 (...).

    ``stepped`` as Llama 4 forms it where the offset is 1, else as Ministral 3 does; ``power`` as Beam,
    ``logarithmic`` as Inkling does.
    """
    counts = torch.from_numpy(positions + temperature.offset)
    if isinstance(temperature, SteppedTemperature):
        steps = torch.floor(counts / temperature.interval)
        if temperature.offset:
            return (torch.log1p(steps) * temperature.beta + 1.0).numpy()
        return (1 + temperature.beta * torch.log(1 + steps)).numpy()
    if isinstance(temperature, PowerTemperature):
        return torch.exp(temperature.exponent * torch.log1p(counts.float() / temperature.interval)).numpy()
    assert isinstance(temperature, LogarithmicTemperature)
    return (1.0 + temperature.beta * torch.log(torch.clamp(counts.float() / temperature.interval, min=1.0))).numpy()


def relative_sinusoid(
    encoding: BiasEncoding, wave: SinusoidalEncoding, distances: NDArray[np.int64]
) -> tuple[Table, Table]:
    """The cos and sin of distances in transformers, float32 (..., frequencies), angles in float32.

    Frequencies are 1 / base ** x as in XLNet and Parakeet, or exp(-x ln base) as in wav2vec 2's Conformers, whichever
    ``encoding.contract`` says.
    """
    channels = torch.arange(0, wave.width, 2, dtype=torch.int64).float()
    if getattr(encoding, "contract", None) == "conformer":
        rates = torch.exp(channels * -(math.log(wave.base) / wave.width))
    else:
        rates = 1 / torch.pow(wave.base, channels / wave.width)
    angles = torch.from_numpy(distances)[..., None].float() * rates
    return angles.cos().numpy(), angles.sin().numpy()


def alibi_slopes(encoding: AlibiEncoding, num_heads: int) -> Table:
    """The slopes that ``encoding.contract`` names, times ``scale``, float32 (num_heads,), positive.

    BLOOM raises a float32 base to whole powers; Falcon rounds BLOOM's slopes to bfloat16; MPT
    takes 1 / 2 ** exponent in float32, and the paper has no code in transformers: its slopes
    are MPT's. Falcon also rounds the product of slope and key index to bfloat16, which no slope can
    express: that part of its code is a known divergence, not a contract.

    Raises:
        SpecError: ``bias_max`` is not 8 where the owner's code has no such setting.
    """
    if encoding.contract in ("paper", "mpt"):
        slopes = _mpt_slopes(num_heads, encoding.bias_max)
    else:
        if encoding.bias_max != 8:
            raise SpecError(f"bias_max must be 8.0 for contract {encoding.contract}, got {encoding.bias_max}")
        slopes = _bloom_slopes(num_heads)
        if encoding.contract == "falcon":
            slopes = slopes.bfloat16().float()
    return (slopes.double() * encoding.scale).float().numpy()


def table_set(spec: AttentionSpec, end: int) -> dict[str, Table]:
    """The ``hf`` tables of one layer: ``cos, sin`` (end, R/2), ``embedding`` (rows, width), ``slopes`` (heads,),
    ``relative_cos, relative_sin`` (end, frequencies) of distances.

    Encodings of precision ``exact`` are left out. ``embedding`` ends at ``end`` or at the last legal
    position of the model's own table, whichever comes first.

    Raises:
        SpecError: a schedule depends on the length without a regime, or follows every token of a per_sequence one.
    """
    tables: dict[str, Table] = {}
    if spec.rotary is not None and spec.rotary.precision == "hf":
        if spec.rotary.coordinates == "centred":
            raise SpecError(
                "precision must be exact for tables of centred coordinates, got hf: transformers' numbers depend on "
                "the size of the grid"
            )
        if not sides(spec.rotary):
            raise SpecError(
                f"precision must be exact for schedule {spec.rotary.schedule.kind} under regime per_sequence, got hf: "
                "every length has a table of its own; fix the length with --context L"
            )
        for prefix, seq_len in sides(spec.rotary).items():
            tables[f"{prefix}cos"], tables[f"{prefix}sin"] = _rotary_rows(spec.rotary, end, seq_len)
    if isinstance(spec.embedding, SinusoidalEncoding) and spec.embedding.precision == "hf":
        own = spec.embedding.position_end
        last = end if own is None else min(end, own)
        tables["embedding"] = sinusoid(spec.embedding, np.arange(last))
    for encoding in spec.bias:
        if isinstance(encoding, AlibiEncoding) and encoding.precision == "hf":
            tables["slopes"] = alibi_slopes(encoding, spec.num_heads)
        wave = encoding.sinusoid(spec)
        if wave is not None and getattr(encoding, "precision", "exact") == "hf":
            tables["relative_cos"], tables["relative_sin"] = relative_sinusoid(encoding, wave, np.arange(end))
    return tables


def _in_float64(rotary: RotaryEncoding, positions: NDArray[np.int64]) -> tuple[Table, Table]:
    """As RoFormer makes its table: positions over powers of the base in float64, their sines rounded once."""
    powers = np.power(rotary.schedule.rope_theta, np.arange(0, rotary.width, 2) / rotary.width)
    angles = (positions + rotary.offset)[..., None] / powers
    factor = np.float32(rotary.magnitude)
    cos, sin = np.cos(angles).astype(np.float32) * factor, np.sin(angles).astype(np.float32) * factor
    return cos, sin * np.float32(rotary.sign)


def _multiplied(rotary: RotaryEncoding, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Angles (..., R/2) of positions (..., 1 | R/2); SAM 3 divides the positions before it multiplies."""
    if rotary.contract != "scaled_positions":
        return positions * frequencies
    assert isinstance(rotary.schedule, LinearSchedule)
    undivided = rotary.model_copy(update={"schedule": DefaultSchedule(rope_theta=rotary.schedule.rope_theta)})
    return positions * (1 / rotary.schedule.factor) * inv_freq(undivided)


def _centred_angles(rotary: RotaryEncoding, positions: NDArray[np.int64]) -> torch.Tensor:
    """As DINOv3 makes them: centres over n, then from -1 to 1, then times 2 pi and its own exponents."""
    exponents = torch.arange(0, 1, 2 / rotary.frequency_width, dtype=torch.float32)
    frequencies = 1 / rotary.schedule.rope_theta**exponents
    cells = torch.from_numpy(positions.max(axis=-1, keepdims=True) + 1)
    centres = 2.0 * ((torch.from_numpy(positions).float() + 0.5) / cells) - 1.0
    by_column_ = torch.from_numpy(by_column(rotary, centres.numpy()))
    return 2 * math.pi * by_column_ * frequencies[torch.from_numpy(deal(rotary).frequencies)]


def _rotary_rows(rotary: RotaryEncoding, end: int, seq_len: int | None) -> tuple[Table, Table]:
    cos = np.empty((end, len(deal(rotary).axes)), dtype=np.float32)
    sin = np.empty_like(cos)
    for start in range(0, end, _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, end))
        cos[rows], sin[rows] = cos_sin(rotary, on_every_axis(rotary, np.arange(rows.start, rows.stop)), seq_len)
    return cos, sin


def _exponents(stop: int, width: int) -> torch.Tensor:
    return torch.arange(0, stop, 2, dtype=torch.int64).float() / width


def _default(schedule: Schedule, width: int) -> torch.Tensor:
    return 1.0 / (schedule.rope_theta ** _exponents(width, width))


def _linear(schedule: LinearSchedule, width: int) -> torch.Tensor:
    return _default(schedule, width) / schedule.factor


def _ntk(schedule: NtkSchedule, width: int) -> torch.Tensor:
    base: float = schedule.rope_theta * schedule.factor ** (width / (width - 2))
    return 1.0 / (base ** _exponents(width, width))


def _dynamic(schedule: DynamicSchedule, width: int, seq_len: int) -> torch.Tensor:
    factor, trained, power = schedule.factor, schedule.max_position_embeddings, width / (width - 2)
    base: float | torch.Tensor
    if seq_len > trained:
        # A forward has the length as a tensor, and so forms the base in float32.
        length = torch.tensor(seq_len, dtype=torch.int64).float()
        base = schedule.rope_theta * ((factor * length / trained) - (factor - 1)) ** power
    else:
        base = schedule.rope_theta * ((factor * trained / trained) - (factor - 1)) ** power
    return 1.0 / (base ** _exponents(width, width))


def _ntk_by_parts(schedule: NtkByPartsSchedule, width: int) -> torch.Tensor:
    return _by_parts(schedule, width, schedule.factor)


def _dynamic_yarn(schedule: DynamicYarnSchedule, width: int, seq_len: int) -> torch.Tensor:
    return _by_parts(schedule, width, max(1.0, seq_len / schedule.original_max_position_embeddings))


def _by_parts(schedule: NtkByPartsSchedule | DynamicYarnSchedule, width: int, factor: float) -> torch.Tensor:
    low, high = _correction_range(schedule, width)
    ramp = torch.clamp((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    powers = schedule.rope_theta ** _exponents(width, width)
    kept = 1 - ramp
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept


def _correction_range(schedule: NtkByPartsSchedule | DynamicYarnSchedule, width: int) -> tuple[float, float]:
    if schedule.rope_theta == 1:
        raise SpecError(f"schedule.rope_theta must differ from 1 for schedule {schedule.kind}, got 1.0")

    def index_of(turns: float) -> float:
        wavelength = schedule.original_max_position_embeddings / (turns * 2 * math.pi)
        return (width * math.log(wavelength)) / (2 * math.log(schedule.rope_theta))

    low, high = index_of(schedule.beta_fast), index_of(schedule.beta_slow)
    if schedule.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    return low, high + 0.001 if low == high else high


def _longrope(schedule: LongropeSchedule, width: int, seq_len: int) -> torch.Tensor:
    is_long = seq_len > schedule.original_max_position_embeddings
    divisors = torch.tensor(schedule.long_factor if is_long else schedule.short_factor, dtype=torch.float32)
    return 1.0 / (divisors * schedule.rope_theta ** _exponents(width, width))


def _llama3(schedule: Llama3Schedule, width: int) -> torch.Tensor:
    plain = _default(schedule, width)
    factor, original = schedule.factor, schedule.original_max_position_embeddings
    low, high = schedule.low_freq_factor, schedule.high_freq_factor
    wavelengths = 2 * math.pi / plain
    stretched = torch.where(wavelengths > original / low, plain / factor, plain)
    smooth = (original / wavelengths - low) / (high - low)
    smoothed = (1 - smooth) * stretched / factor + smooth * stretched
    between = ~(wavelengths < original / high) * ~(wavelengths > original / low)
    return torch.where(between, smoothed, stretched)


def _proportional(schedule: ProportionalSchedule, width: int) -> torch.Tensor:
    turned = int(schedule.partial_rotary_factor * width // 2)
    rotated = 1.0 / (schedule.rope_theta ** _exponents(2 * turned, width))
    return torch.cat([rotated, torch.zeros(width // 2 - turned)]) / schedule.factor


_LAWS: dict[str, Callable[[Any, int], torch.Tensor]] = {
    "default": _default,
    "linear": _linear,
    "ntk": _ntk,
    "ntk_by_parts": _ntk_by_parts,
    "yarn": _ntk_by_parts,
    "llama3": _llama3,
    "proportional": _proportional,
}
_LENGTH_LAWS: dict[str, Callable[[Any, int, int], torch.Tensor]] = {
    "dynamic": _dynamic,
    "dynamic_yarn": _dynamic_yarn,
    "longrope": _longrope,
}


def _bloom_slopes(num_heads: int) -> torch.Tensor:
    lower = 2 ** math.floor(math.log2(num_heads))
    base = torch.tensor(2 ** (-(2 ** -(math.log2(lower) - 3))), dtype=torch.float32)
    slopes = torch.pow(base, torch.arange(1, 1 + lower, dtype=torch.int32))
    if lower == num_heads:
        return slopes
    extra_base = torch.tensor(2 ** (-(2 ** -(math.log2(2 * lower) - 3))), dtype=torch.float32)
    extra = torch.pow(extra_base, torch.arange(1, 1 + 2 * (num_heads - lower), 2, dtype=torch.int32))
    return torch.cat([slopes, extra])


def _mpt_slopes(num_heads: int, bias_max: float) -> torch.Tensor:
    upper = 2 ** math.ceil(math.log2(num_heads))
    exponents = torch.arange(1, upper + 1, dtype=torch.int64).float() * (bias_max / upper)
    slopes = 1.0 / torch.pow(2, exponents)
    if upper == num_heads:
        return slopes
    return torch.cat([slopes[1::2], slopes[::2]])[:num_heads]
