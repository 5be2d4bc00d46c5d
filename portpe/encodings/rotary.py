"""Rotary site: encodings that turn queries and keys."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from portpe.encodings.axes import AnyAxes
from portpe.encodings.parts import Encoding, Part, PositiveInt, PositiveReal
from portpe.encodings.schedules import AnySchedule, DynamicSchedule, LongropeSchedule, NtkSchedule
from portpe.errors import SpecError

Pairing = Literal["half", "interleaved"]


class FixedRegime(Part):
    """The schedule of one length, for every call: ``--context L``."""

    kind: Literal["fixed"] = "fixed"
    length: PositiveInt


class PerSequenceRegime(Part):
    """The schedule of each batch row's own length, anew at every call: ``--regime per_sequence``.

    Keys are cached before rotation, and all of them are turned at each call (Peng 2023, section 3.3): keys that an
    earlier length turned would not fit to the queries of this one. ``positions.sequence_lengths`` says what a row's
    length is.
    """

    kind: Literal["per_sequence"] = "per_sequence"


Regime = Annotated[FixedRegime | PerSequenceRegime, Field(discriminator="kind")]


class RotaryEncoding(Encoding):
    """Rotation of queries and keys by position (Su 2021).

    ``width`` channels of each head are turned, the ``first`` or the ``last`` ones.
    ``pairing`` says which two channels form pair i: ``half`` (i, i + width/2) or
    ``interleaved`` (2i, 2i + 1). ``pairing_out`` says where the two turned members go; None: where
    they came from. Products of queries and keys do not see it, cached keys do (DeepSeek-V3).
    ``sign`` -1 turns by the negative angle.
    ``attention_factor`` multiplies cos and sin; None takes the schedule's own.
    ``softmax_scale_multiplier`` is the part of the layer's ``scale`` that the encoding asks for
    (DeepSeek's YaRN: ``schedule.softmax_multiplier()``). It is in ``scale`` already.
    ``axes`` says which coordinate each pair reads where a position has several; without it
    there is one.
    ``precision`` ``exact``: angles as real numbers, rounded once; ``hf``: the float32
    numbers that transformers makes. ``contract`` says by which operations: cosines and sines of angles
    (``cos_sin``), or a complex number of length 1 (``polar``: DeepSeek-V2, Llama 4), whose parts are rounded otherwise.
    ``regime`` says whose length a length-dependent schedule takes; without one only whole sequences have numbers.
    """

    kind: Literal["rotary"] = "rotary"
    width: PositiveInt
    channels: Literal["first", "last"] = "first"
    pairing: Pairing = "half"
    pairing_out: Pairing | None = None
    sign: Literal[1, -1] = 1
    schedule: AnySchedule
    attention_factor: PositiveReal | None = Field(default=None, validate_default=True)
    softmax_scale_multiplier: PositiveReal = 1.0
    axes: AnyAxes | None = None
    precision: Literal["exact", "hf"] = "exact"
    contract: Literal["cos_sin", "polar"] = "cos_sin"
    regime: Regime | None = None

    @field_validator("attention_factor", mode="after")
    @classmethod
    def _from_schedule(cls, value: float | None, info: ValidationInfo) -> float | None:
        schedule = info.data.get("schedule")
        return schedule.magnitude() if value is None and schedule is not None else value

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.width % 2:
            raise SpecError(
                f"width must be even, got {self.width}; transformers would rotate {self.width + 1} channels"
            )
        if self.axes is not None:
            self.axes.check(self.width)
            needed = {"over": "half", "tiled": "interleaved"}
            for name, pairing in needed.items():
                if getattr(self.axes, name, None) in ("channels", True) and self.pairing != pairing:
                    raise SpecError(f"pairing must be {pairing} for axes.{name}, got {self.pairing}")
        if isinstance(self.schedule, LongropeSchedule):
            for name in ("short_factor", "long_factor"):
                length = len(getattr(self.schedule, name))
                if length != self.frequency_width // 2:
                    raise SpecError(
                        f"schedule.{name} must have width / 2 = {self.frequency_width // 2} entries, got {length}"
                    )
        if isinstance(self.schedule, DynamicSchedule | NtkSchedule) and self.frequency_width == 2:
            raise SpecError(f"width must be > 2 for schedule {self.schedule.kind}, got 2")
        if self.regime is not None and not self.schedule.length_dependent:
            raise SpecError(f"regime needs a length-dependent schedule, got {self.schedule.kind}")
        if self.defers_rotation and self.axes is not None:
            raise SpecError("regime must be fixed where a position has several coordinates, got per_sequence")
        return self

    @property
    def defers_rotation(self) -> bool:
        """Whether keys are cached before rotation, because a later call may turn them by another schedule."""
        return isinstance(self.regime, PerSequenceRegime)

    @property
    def written(self) -> Pairing:
        """The pairing of what comes out."""
        return self.pairing if self.pairing_out is None else self.pairing_out

    @property
    def position_axes(self) -> int:
        return 1 if self.axes is None else self.axes.count

    @property
    def angles_of_pairs(self) -> int:
        """How many angles a pair has: 2 where its members are turned by angles of their own."""
        return 1 if self.axes is None else self.axes.angles_of_pairs

    @property
    def frequency_width(self) -> int:
        """The width that the schedule's law sees: it has half as many frequencies."""
        return self.width if self.axes is None else self.axes.frequency_width(self.width)

    @property
    def magnitude(self) -> float:
        """The attention factor, resolved; a length-dependent schedule may have a temperature besides."""
        assert self.attention_factor is not None
        return self.attention_factor
