"""What a row of the registry holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from portpe.encodings import AxisLayout, FixedRegime, Part, RotaryEncoding, Schedule, XposDecay

Site = Literal["none", "embedding", "rotary", "query", "bias"]


@dataclass(frozen=True)
class EncodingRow:
    """One encoding kind.

    Attributes:
        kind: its name in a spec, ``none`` for a layer without any.
        site: the hook of a block that it uses.
        spec_class: the class that holds its settings; None for ``none``.
        title: what people call it.
        formula: what is computed, in plain text; p is a position, i a pair, h a head.
        source: paper and section, or whose code defines it.
        example: a small instance with settings that are no defaults.
        weights: canonical names of the tensors it needs.
        bounded: whether positions always end with a table of the model's own.
    """

    kind: str
    site: Site
    spec_class: type[Part] | None
    title: str
    formula: str
    source: str
    example: Part | None
    weights: tuple[str, ...] = ()
    bounded: bool = False


@dataclass(frozen=True)
class ScheduleRow:
    """One frequency schedule of rotary encodings; ``kind`` names its law in ``portpe.schedules``.

    ``in_transformers`` False: transformers has no such type, and precision ``hf`` follows its
    arithmetic by analogy. Other attributes as in ``EncodingRow``.
    """

    kind: str
    spec_class: type[Schedule]
    title: str
    formula: str
    source: str
    example: Schedule
    in_transformers: bool = True

    @property
    def length_dependent(self) -> bool:
        """Whether frequencies depend on the current length, so that an export needs ``--context`` or ``--regime``."""
        return self.spec_class.length_dependent

    def rotary(self, width: int = 12) -> RotaryEncoding:
        """The example as a rotary encoding; longrope's lists fit the default width only."""
        regime = FixedRegime(length=96) if self.length_dependent else None
        return RotaryEncoding(width=width, schedule=self.example, regime=regime)


@dataclass(frozen=True)
class AttentionRow:
    """One kind of block, by what makes weights of scores; ``kind`` is a spec's ``attention``, others as above."""

    kind: str
    title: str
    formula: str
    source: str


@dataclass(frozen=True)
class AxesRow:
    """One way to deal the pairs of a rotation to the coordinates of a position; attributes as in ``EncodingRow``."""

    kind: str
    spec_class: type[AxisLayout]
    title: str
    formula: str
    source: str
    example: AxisLayout


@dataclass(frozen=True)
class DecayRow:
    """One way to let scores fall with distance by what turns queries and keys; attributes as in ``EncodingRow``."""

    kind: str
    spec_class: type[XposDecay]
    title: str
    formula: str
    source: str
    example: XposDecay
