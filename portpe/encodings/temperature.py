"""What multiplies a query by its own position, after the rotation: longer contexts, sharper softmax."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from portpe.encodings.parts import Encoding, NonNegativeInt, PositiveInt, PositiveReal


class Temperature(Encoding):
    """A multiplier of queries that follows from n = p + ``offset`` and ``interval``.

    ``precision`` ``exact``: real numbers, rounded once; ``hf``: the float32 numbers that transformers makes.
    """

    interval: PositiveInt
    offset: NonNegativeInt = 0
    precision: Literal["exact", "hf"] = "exact"

    @property
    def step(self) -> int:
        """How many positions in a row have one multiplier; steps begin at multiples of it, counted in n."""
        return 1


class SteppedTemperature(Temperature):
    """1 + beta ln(1 + floor(n / interval)): 1 within the first interval (Llama 4: offset 1; Ministral 3: offset 0)."""

    kind: Literal["stepped"] = "stepped"
    beta: PositiveReal

    @property
    def step(self) -> int:
        return self.interval


class LogarithmicTemperature(Temperature):
    """1 + beta ln(max(n / interval, 1)): 1 up to the interval's end, then growing with every position (Inkling)."""

    kind: Literal["logarithmic"] = "logarithmic"
    beta: PositiveReal


class PowerTemperature(Temperature):
    """(1 + n / interval) ** exponent (Beam: exponent 0.1, offset 1)."""

    kind: Literal["power"] = "power"
    exponent: PositiveReal


QueryTemperature = Annotated[
    SteppedTemperature | LogarithmicTemperature | PowerTemperature, Field(discriminator="kind")
]
