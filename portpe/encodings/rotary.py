"""Rotary site: encodings that turn queries and keys."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from portpe.encodings.axes import AnyAxes
from portpe.encodings.decay import XposDecay
from portpe.encodings.parts import Encoding, NonNegativeInt, Part, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.encodings.schedules import AnySchedule, DynamicSchedule, LongropeSchedule, NtkSchedule
from portpe.errors import SpecError

LOG_SCALES = "rotary_log_scales"
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
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
    ``log_scales`` multiplies frequency i by exp(log_scales[i]) (LeRoPE); ``learned`` leaves them to the tensor
    ``rotary_log_scales`` of the weights, and ``portpe.learned.settle`` puts its numbers here.
    ``decay`` multiplies queries and keys besides, by reciprocal factors, so that scores fall with distance: keys have
    cos and sin of their own then.
    ``blocks``: half pairing within each of so many equal parts of the width, not over all
    of it (Gemma 4's vision tower: columns in one half of a head, rows in the other).
    ``axes`` says which coordinate each pair reads where a position has several; without it
    there is one. ``offset`` is added to every coordinate. ``coordinates`` ``centred``: not the
    index p itself is turned by but the centre of cell p of n cells from -1 to 1, (2p + 1 - n) / n,
    times 2 pi, n the largest index of the call's sequence + 1 (DINOv3).
    The first ``prefix_tokens`` and the last ``suffix_tokens`` of a sequence are not turned; their
    positions are 0.
    ``precision`` ``exact``: angles as real numbers, rounded once; ``hf``: the float32
    numbers that transformers makes. ``contract`` says by which operations: cosines and sines of angles
    (``cos_sin``), or a complex number of length 1 (``polar``: DeepSeek-V2, Llama 4), whose parts are rounded otherwise;
    ``float64``: angles and their sines in float64, rounded once (RoFormer), of the default schedule alone;
    ``scaled_positions``: a linear schedule divides positions and not frequencies (SAM 3).
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
    log_scales: Literal["learned"] | tuple[Real, ...] | None = None
    decay: XposDecay | None = None
    blocks: PositiveInt = 1
    axes: AnyAxes | None = None
    offset: NonNegativeInt = 0
    coordinates: Literal["index", "centred"] = "index"
    prefix_tokens: NonNegativeInt = 0
    suffix_tokens: NonNegativeInt = 0
    precision: Literal["exact", "hf"] = "exact"
    contract: Literal["cos_sin", "polar", "float64", "scaled_positions"] = "cos_sin"
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
        halves = self.pairing == self.written == "half"
        if self.blocks > 1 and (not halves or self.width % (2 * self.blocks)):
            raise SpecError(
                f"blocks must be 1, or divide width / 2 = {self.width // 2} with pairing half, got {self.blocks} with "
                f"{self.pairing}"
            )
        if self.offset and self.coordinates == "centred":
            raise SpecError(f"offset must be 0 for centred coordinates, got {self.offset}")
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
        if isinstance(self.log_scales, tuple) and len(self.log_scales) != self.frequency_width // 2:
            raise SpecError(
                f"log_scales must have width / 2 = {self.frequency_width // 2} entries, got {len(self.log_scales)}"
            )
        if isinstance(self.schedule, DynamicSchedule | NtkSchedule) and self.frequency_width == 2:
            raise SpecError(f"width must be > 2 for schedule {self.schedule.kind}, got 2")
        return self

    @model_validator(mode="after")
    def _contract_fits(self) -> Self:
        plain = self.schedule.kind == "default" and self.axes is None and self.log_scales is None
        if self.contract == "float64" and not (plain and self.coordinates == "index"):
            raise SpecError("contract must be cos_sin for all but the default schedule on one axis, got float64")
        if self.contract == "scaled_positions" and self.schedule.kind != "linear":
            raise SpecError(f"contract must be cos_sin for schedule {self.schedule.kind}, got scaled_positions")
        return self

    @model_validator(mode="after")
    def _regime_fits(self) -> Self:
        if self.regime is not None and not self.schedule.length_dependent:
            raise SpecError(f"regime needs a length-dependent schedule, got {self.schedule.kind}")
        unusual = {
            "pairing_out": self.written != self.pairing,
            "blocks": self.blocks > 1,
            "axes": self.axes is not None,
            "offset": self.offset > 0,
            "coordinates": self.coordinates != "index",
            "prefix_tokens and suffix_tokens": self.unturned_tokens,
            "log_scales": self.log_scales is not None,
            "decay": self.decay is not None,
        }
        if self.defers_rotation and (names := [name for name, found in unusual.items() if found]):
            raise SpecError(f"regime must be fixed with {names[0]}, got per_sequence")
        return self

    @model_validator(mode="after")
    def _decay_fits(self) -> Self:
        if self.decay is None:
            return self
        if self.axes is not None or self.coordinates != "index":
            raise SpecError("decay needs positions of one coordinate, an index, got axes or centred coordinates")
        if self.unturned_tokens:
            raise SpecError("decay needs every token turned, got prefix_tokens or suffix_tokens")
        if self.precision == "hf":
            raise SpecError("precision must be exact with decay, which transformers does not have, got hf")
        return self

    def check_layer(self, layer: Sizes) -> None:
        if self.decay is not None and not layer.causal:
            raise SpecError("rotary.decay needs causal true: scores of keys ahead would grow, got causal false")

    def weight_shapes(self, layer: Sizes) -> Shapes:  # noqa: ARG002 - the layer's sizes do not matter
        return {LOG_SCALES: (self.frequency_width // 2,)} if self.log_scales == "learned" else {}

    @property
    def defers_rotation(self) -> bool:
        """Whether keys are cached before rotation, because a later call may turn them by another schedule."""
        return isinstance(self.regime, PerSequenceRegime)

    @property
    def own_key_tables(self) -> bool:
        """Whether keys are turned by other cosines and sines than queries at the same position."""
        return self.decay is not None

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
    def unturned_tokens(self) -> bool:
        """Whether some tokens of a sequence are not turned, whatever their positions."""
        return self.prefix_tokens + self.suffix_tokens > 0

    @property
    def needs_positions(self) -> bool:
        """Whether positions cannot be counted where none are given: a picture's grid does not follow from its size."""
        return self.unturned_tokens or self.coordinates == "centred"

    @property
    def turns_position_0(self) -> bool:
        """Whether position 0 has an angle: text begins with none."""
        return self.offset > 0 or self.coordinates == "centred"

    @property
    def frequency_width(self) -> int:
        """The width that the schedule's law sees: it has half as many frequencies."""
        return self.width if self.axes is None else self.axes.frequency_width(self.width)

    @property
    def magnitude(self) -> float:
        """The attention factor, resolved; a length-dependent schedule may have a temperature besides."""
        assert self.attention_factor is not None
        return self.attention_factor
