"""What a positional encoding is: frozen, validated data; no arithmetic beyond its own defaults.

Three sites, after the hook that a block calls: an *embedding* encoding is added to the
hidden states, a *rotary* encoding turns queries and keys, a *bias* encoding is added to
the scores. A rotary encoding takes its frequencies from a *schedule*.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from portpe.errors import SpecError

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
NonNegativeReal = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
PositiveReal = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Factors = Annotated[tuple[PositiveReal, ...], Field(min_length=1)]


def _one_line(error: ValidationError) -> str:
    """The first of pydantic's errors as ``field rule, got value``."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"] if part not in _TAGS]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return ".".join([*place, str(cause)])
    field = ".".join(place) or "spec"
    if first["type"] == "missing":
        return f"{field} is required and missing"
    if first["type"] == "extra_forbidden":
        return f"{field} is not a known field; remove it or mend its name"
    if first["type"] == "union_tag_invalid":
        return f"{field}.kind must be one of {first['ctx']['expected_tags']}, got {first['ctx']['tag']!r}"
    if first["type"] == "union_tag_not_found":
        return f"{field}.kind is required and missing"
    rule = first["msg"].replace("Input should be", "must be")
    return f"{field} {rule}, got {first['input']!r}"


_TAGS: set[str] = set()  # kinds of the members of unions: pydantic puts them into an error's place


class Part(BaseModel):
    """Base of every piece of a spec: frozen, no unknown fields, one-line errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(_one_line(error)) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        kind = cls.model_fields.get("kind")
        if kind is not None and isinstance(kind.default, str) and kind.default != "rotary":
            _TAGS.add(kind.default)


# --- schedules -----------------------------------------------------------------------------


class Schedule(Part):
    """Inverse frequencies by law. ``kind`` names the law in ``portpe.schedules``."""

    length_dependent: ClassVar[bool] = False

    rope_theta: PositiveReal = 10000.0

    def magnitude(self) -> float:
        """The multiplier of cos and sin that the law prescribes when the config gives none."""
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
    """NTK-by-parts with a temperature in cos and sin (Peng 2023, 3.4)."""

    kind: Literal["yarn"] = "yarn"  # type: ignore[assignment]
    mscale: NonNegativeReal | None = None
    mscale_all_dim: NonNegativeReal | None = None

    def magnitude(self) -> float:
        def g(mscale: float) -> float:
            return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

        if self.mscale and self.mscale_all_dim:
            return g(self.mscale) / g(self.mscale_all_dim)
        return g(1.0)


class LongropeSchedule(Schedule):
    """One divisor per frequency; the long set applies past the original length (Ding 2024)."""

    length_dependent: ClassVar[bool] = True

    kind: Literal["longrope"] = "longrope"
    short_factor: Factors
    long_factor: Factors
    original_max_position_embeddings: Annotated[int, Field(gt=1, strict=True)]  # its logarithm divides
    factor: PositiveReal

    def magnitude(self) -> float:
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))


class Llama3Schedule(Schedule):
    """Llama 3.1: wavelengths beyond the original length are stretched, a ramp between."""

    kind: Literal["llama3"] = "llama3"
    factor: PositiveReal
    low_freq_factor: PositiveReal
    high_freq_factor: PositiveReal
    original_max_position_embeddings: PositiveInt

    @model_validator(mode="after")
    def _ramp_has_width(self) -> Self:
        if self.low_freq_factor == self.high_freq_factor:
            raise SpecError(f"low_freq_factor must differ from high_freq_factor, got {self.low_freq_factor} for both")
        return self


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
    | LongropeSchedule
    | Llama3Schedule
    | ProportionalSchedule,
    Field(discriminator="kind"),
]


# --- rotary site ---------------------------------------------------------------------------


class FixedRegime(Part):
    """The schedule of one length, for every call: ``--context L``."""

    kind: Literal["fixed"] = "fixed"
    length: PositiveInt


class RotaryEncoding(Part):
    """Rotation of queries and keys by position (Su 2021).

    ``width`` channels of each head are turned, the ``first`` or the ``last`` ones.
    ``pairing`` says which two channels form pair i: ``half`` (i, i + width/2) or
    ``interleaved`` (2i, 2i + 1). ``sign`` -1 turns by the negative angle.
    ``attention_factor`` multiplies cos and sin; None takes the schedule's own.
    ``precision`` ``exact``: angles as real numbers, rounded once; ``hf``: the float32
    numbers that transformers makes.
    """

    kind: Literal["rotary"] = "rotary"
    width: PositiveInt
    channels: Literal["first", "last"] = "first"
    pairing: Literal["half", "interleaved"] = "half"
    sign: Literal[1, -1] = 1
    schedule: AnySchedule
    attention_factor: PositiveReal | None = Field(default=None, validate_default=True)
    precision: Literal["exact", "hf"] = "exact"
    regime: FixedRegime | None = None

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
        if isinstance(self.schedule, LongropeSchedule):
            for name in ("short_factor", "long_factor"):
                length = len(getattr(self.schedule, name))
                if length != self.width // 2:
                    raise SpecError(f"schedule.{name} must have width / 2 = {self.width // 2} entries, got {length}")
        if isinstance(self.schedule, DynamicSchedule | NtkSchedule) and self.width == 2:
            raise SpecError(f"width must be > 2 for schedule {self.schedule.kind}, got 2")
        if self.regime is not None and not self.schedule.length_dependent:
            raise SpecError(f"regime needs a length-dependent schedule, got {self.schedule.kind}")
        return self

    @property
    def magnitude(self) -> float:
        """The attention factor, resolved."""
        assert self.attention_factor is not None
        return self.attention_factor


# --- embedding site ------------------------------------------------------------------------


class SinusoidalEncoding(Part):
    """Sines and cosines added to the embeddings (Vaswani 2017, section 3.5).

    Frequencies base ** (-i / n), i = 0..d/2-1, with n = d/2 (``half``) or d/2 - 1
    (``half_minus_one``, tensor2tensor and fairseq). ``order``: ``interleaved`` sin, cos,
    sin, cos ...; ``sin_cos`` and ``cos_sin`` in halves. ``offset`` is added to the
    position. ``rows`` is the length of the table where the model has one, else None.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    width: PositiveInt
    order: Literal["interleaved", "sin_cos", "cos_sin"] = "interleaved"
    denominator: Literal["half", "half_minus_one"] = "half"
    base: PositiveReal = 10000.0
    offset: NonNegativeInt = 0
    rows: PositiveInt | None = None
    precision: Literal["exact", "hf"] = "exact"

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.width % 2:
            raise SpecError(f"width must be even, got {self.width}")
        if self.denominator == "half_minus_one" and self.width < 4:
            raise SpecError(f"width must be >= 4 for denominator half_minus_one, got {self.width}")
        if self.rows is not None and self.rows <= self.offset:
            raise SpecError(f"rows must be > offset = {self.offset}, got {self.rows}")
        return self


class LearnedEncoding(Part):
    """A trained table, looked up and added; no row beyond it exists (BERT, GPT-2).

    Token position p reads row p + ``offset``; the last legal position is rows - offset - 1.
    The tensor is ``position_embedding.weight`` (rows, width).
    """

    kind: Literal["learned"] = "learned"
    rows: PositiveInt
    width: PositiveInt
    offset: NonNegativeInt = 0

    @model_validator(mode="after")
    def _has_a_row(self) -> Self:
        if self.rows <= self.offset:
            raise SpecError(f"rows must be > offset = {self.offset}, got {self.rows}")
        return self


EmbeddingEncoding = Annotated[SinusoidalEncoding | LearnedEncoding, Field(discriminator="kind")]


# --- bias site -----------------------------------------------------------------------------


class AlibiEncoding(Part):
    """Slope times distance, added to the scores (Press 2021).

    ``symmetric`` False: -m (i - j), the causal form, equal to m * j up to a constant of the
    row; True: -m |i - j|. ``bias_max`` is MPT's alibi_bias_max (Press: 8): the slopes of n
    heads, n a power of two, are 2 ** (-bias_max * h / n). ``scale`` multiplies the product
    (Falcon: 1 / sqrt(head_dim)). ``contract`` names whose code ``precision`` ``hf`` follows.
    """

    kind: Literal["alibi"] = "alibi"
    bias_max: PositiveReal = 8.0
    symmetric: Flag = False
    scale: PositiveReal = 1.0
    precision: Literal["exact", "hf"] = "exact"
    contract: Literal["paper", "bloom", "mpt", "falcon"] = "paper"


BiasEncoding = Annotated[AlibiEncoding, Field()]
