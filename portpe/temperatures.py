"""The arithmetic of query temperatures: multipliers by position, and the table that an artefact carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe.encodings import LogarithmicTemperature, PowerTemperature, SteppedTemperature
from portpe.encodings.temperature import Temperature
from portpe.positions import integer_positions

Exact = NDArray[np.float64]
Table = NDArray[np.float32]


def multipliers(temperature: Temperature, positions: ArrayLike) -> Exact:
    """What queries at these positions (...) are multiplied by, float64; with precision ``hf`` transformers' float32.

    Raises SpecError: positions are not integers.
    """
    places = integer_positions(positions)
    if temperature.precision == "hf":
        from portpe import hf_tables

        return hf_tables.query_scale(temperature, places).astype(np.float64)
    return _LAWS[type(temperature)](temperature, places + temperature.offset)


def row_of(temperature: Temperature, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which row of the table holds the multiplier of each position."""
    return (positions + temperature.offset) // temperature.step


def table(temperature: Temperature, end: int) -> Table:
    """One row a step, (rows,) in float32, for every position below ``end``."""
    last = int(row_of(temperature, np.array([end - 1]))[0])
    starts = np.maximum(np.arange(last + 1, dtype=np.int64) * temperature.step - temperature.offset, 0)
    return multipliers(temperature, starts).astype(np.float32)


def table_end(temperature: Temperature, tables: Mapping[str, NDArray[Any]]) -> int:
    """The first position that the table has no row for."""
    return len(tables["query_scale"]) * temperature.step - temperature.offset


def _stepped(temperature: SteppedTemperature, counts: NDArray[np.int64]) -> Exact:
    return 1 + temperature.beta * np.log1p((counts // temperature.interval).astype(np.float64))


def _logarithmic(temperature: LogarithmicTemperature, counts: NDArray[np.int64]) -> Exact:
    return 1 + temperature.beta * np.log(np.maximum(counts / temperature.interval, 1.0))


def _power(temperature: PowerTemperature, counts: NDArray[np.int64]) -> Exact:
    return np.asarray((1 + counts / temperature.interval) ** temperature.exponent)


_LAWS: dict[type[Temperature], Callable[[Any, NDArray[np.int64]], Exact]] = {
    SteppedTemperature: _stepped,
    LogarithmicTemperature: _logarithmic,
    PowerTemperature: _power,
}
