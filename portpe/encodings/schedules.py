"""Inverse frequencies by law: what a schedule is. The laws' arithmetic is in ``portpe.schedules``."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.parts import Factors, Flag, NonNegativeReal, Part, PositiveInt, PositiveReal
from portpe.errors import SpecError


class Schedule(Part):
    """Inverse frequencies by law. ``kind`` names the law in ``portpe.schedules``."""

    length_dependent: ClassVar[bool] = False

    rope_theta: PositiveReal = 10000.0

    def magnitude(self) -> float:
        """The multiplier of cos and sin that the law prescribes when the config gives none."""
        return 1.0

    def temperature(self, seq_len: int) -> float:  # noqa: ARG002 - one law alone has one that follows the length
        """The multiplier of cos and sin that follows the length, besides ``magnitude``."""
        return 1.0

    @property
    def tempered(self) -> bool:
        """Whether ``temperature`` may be another number than 1."""
        return False

    def softmax_multiplier(self) -> float:
        """The multiplier of the softmax scale that the law prescribes where a model takes it from there."""
        return 1.0


class DefaultSchedule(Schedule):
    """theta ** (-2i/R) (Su 2021, section 3.2.2)."""

    kind: Literal["default"] = "default"


class LinearSchedule(Schedule):
    """Position interpolation: every frequency divided by ``factor`` (Chen 2023)."""

    kind: Literal["linear"] = "linear"
    factor: PositiveReal


class NtkSchedule(Schedule):
    """NTK-aware: base times factor ** (R / (R - 2)), fixed for every length."""

    kind: Literal["ntk"] = "ntk"
    factor: PositiveReal


class DynamicSchedule(Schedule):
    """Dynamic NTK: the base follows the current length beyond ``max_position_embeddings``."""

    length_dependent: ClassVar[bool] = True

    kind: Literal["dynamic"] = "dynamic"
    factor: PositiveReal
    max_position_embeddings: PositiveInt


class NtkByPartsSchedule(Schedule):
    """Linear for low, none for high frequencies, YaRN's ramp between, no temperature (Peng 2023, 3.2)."""

    kind: Literal["ntk_by_parts"] = "ntk_by_parts"
    factor: PositiveReal
    original_max_position_embeddings: PositiveInt
    beta_fast: PositiveReal = 32.0
    beta_slow: PositiveReal = 1.0
    truncate: Flag = True


class YarnSchedule(NtkByPartsSchedule):
    """NTK-by-parts with a temperature (Peng 2023, 3.4), g(m) = 0.1 m ln(factor) + 1, squared in the scores.

    It stands in cos and sin as g(mscale) / g(mscale_all_dim). What is divided out there, DeepSeek's models put into
    the softmax scale as g(mscale_all_dim) ** 2, so that channels without rotation have it too.
    """

    kind: Literal["yarn"] = "yarn"  # type: ignore[assignment]
    mscale: NonNegativeReal | None = None
    mscale_all_dim: NonNegativeReal | None = None

    def magnitude(self) -> float:
        if self.mscale and self.mscale_all_dim:
            return self._g(self.mscale) / self._g(self.mscale_all_dim)
        return self._g(1.0)

    def softmax_multiplier(self) -> float:
        return self._g(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _g(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


class DynamicYarnSchedule(Schedule):
    """YaRN for s = max(1, length / original length): ramp and temperature of each length (Peng 2023, 3.3 and 3.4)."""

    length_dependent: ClassVar[bool] = True

    kind: Literal["dynamic_yarn"] = "dynamic_yarn"
    original_max_position_embeddings: PositiveInt
    beta_fast: PositiveReal = 32.0
    beta_slow: PositiveReal = 1.0
    truncate: Flag = True

    def temperature(self, seq_len: int) -> float:
        return 0.1 * math.log(max(1.0, seq_len / self.original_max_position_embeddings)) + 1.0

    @property
    def tempered(self) -> bool:
        return True


class LongropeSchedule(Schedule):
    """One divisor per frequency; the long set applies past the original length (Ding 2024).

    ``short_mscale`` and ``long_mscale`` multiply cos and sin on their side, instead of what ``factor`` asks for
    (PhiMoE).
    """

    length_dependent: ClassVar[bool] = True

    kind: Literal["longrope"] = "longrope"
    short_factor: Factors
    long_factor: Factors
    original_max_position_embeddings: Annotated[int, Field(gt=1, strict=True)]  # its logarithm divides
    factor: PositiveReal
    short_mscale: PositiveReal | None = None
    long_mscale: PositiveReal | None = None

    @model_validator(mode="after")
    def _both_sides(self) -> Self:
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise SpecError("short_mscale and long_mscale must be given together or not at all, got one of them")
        return self

    def temperature(self, seq_len: int) -> float:
        if self.short_mscale is None or self.long_mscale is None:
            return 1.0
        return self.long_mscale if seq_len > self.original_max_position_embeddings else self.short_mscale

    @property
    def tempered(self) -> bool:
        return self.short_mscale is not None

    def magnitude(self) -> float:
        if self.factor <= 1 or self.short_mscale is not None:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))


class Llama3Schedule(Schedule):
    """Llama 3.1: wavelengths beyond the original length are stretched, a ramp between; a step where both ends meet."""

    kind: Literal["llama3"] = "llama3"
    factor: PositiveReal
    low_freq_factor: PositiveReal
    high_freq_factor: PositiveReal
    original_max_position_embeddings: PositiveInt


class ProportionalSchedule(Schedule):
    """The first ``int(prf * head_dim // 2)`` frequencies of the whole head, zeros after them."""

    kind: Literal["proportional"] = "proportional"
    factor: PositiveReal = 1.0
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0


AnySchedule = Annotated[
    DefaultSchedule
    | LinearSchedule
    | NtkSchedule
    | DynamicSchedule
    | NtkByPartsSchedule
    | YarnSchedule
    | DynamicYarnSchedule
    | LongropeSchedule
    | Llama3Schedule
    | ProportionalSchedule,
    Field(discriminator="kind"),
]
