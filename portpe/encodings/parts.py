"""What every piece of a spec is made of: frozen, validated, with errors of one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from portpe.errors import SpecError

if TYPE_CHECKING:
    from portpe.encodings.embedding import SinusoidalEncoding

LARGEST_INT = 2**53  # float64 holds every integer up to here, and widths are formed in float64
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST_INT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST_INT, strict=True)]
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
    if first["type"] in ("too_short", "string_too_short"):
        return f"{field} must have a length >= {first['ctx']['min_length']}, got {first['input']!r}"
    if first["type"] == "too_long":
        return f"{field} must have a length <= {first['ctx']['max_length']}, got {first['input']!r}"
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


Shapes = dict[str, tuple[int, ...]]


class Sizes(Protocol):
    """What an encoding may ask of the layer that it stands in; an AttentionSpec has it."""

    @property
    def causal(self) -> bool: ...
    @property
    def chunk(self) -> int | None: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def projection(self) -> str: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def query_scale(self) -> Encoding | None: ...


class Encoding(Part):
    """A positional encoding at one site of a block.

    ``position_axes`` is how many coordinates a position has: 1 for text; 2 for images, rows before columns.
    """

    @property
    def position_axes(self) -> int:
        return 1

    def check_layer(self, layer: Sizes) -> None:
        """Rules that need the sizes of the layer. Raises SpecError."""

    @property
    def position_ends(self) -> tuple[int, ...] | None:
        """By axis the first coordinate that does not exist for it, where it knows a grid of cells alone."""
        return None

    def weight_shapes(self, layer: Sizes) -> Shapes:  # noqa: ARG002 - most have no weights
        """The trained tensors that it needs, by canonical name, in the order of the block."""
        return {}

    def cached_states(self, layer: Sizes) -> dict[str, int]:  # noqa: ARG002 - most need keys and values alone
        """What a cache keeps for it besides keys and values: by name, how many float32 numbers a token has."""
        return {}


class BiasPart(Encoding):
    """An encoding of the bias site.

    ``reads_keys``: what it adds depends on the keys themselves, not on their positions alone. ``reads_probs``: it has
    a value term, which depends on the probabilities. A fused operator may not be able to give either.
    ``reads_queries``: what it adds depends on queries, or keys, as the scores take them.
    """

    @property
    def reads_queries(self) -> bool:
        return self.reads_keys

    @property
    def reads_keys(self) -> bool:
        return False

    @property
    def reads_probs(self) -> bool:
        return False

    @property
    def reads_slots(self) -> bool:
        """Whether keys have to stand in the order in which they came."""
        return False

    def sinusoid(self, layer: Sizes) -> SinusoidalEncoding | None:  # noqa: ARG002 - most have none
        """The sinusoid of the distance that it reads, as an encoding of positions; tables have it as ``relative_``."""
        return None
