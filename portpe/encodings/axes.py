"""Positions with several coordinates: which of them each pair of a rotation reads; dealt in ``portpe.axes``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.parts import NonNegativeInt, Part, PositiveInt
from portpe.errors import SpecError

Sections = Annotated[tuple[PositiveInt, ...], Field(min_length=2)]
Order = Annotated[tuple[NonNegativeInt, ...], Field(min_length=2)]


class AxisLayout(Part):
    """How the pairs of a rotation are dealt to the coordinates (axes) of a position."""

    @property
    def count(self) -> int:
        """How many coordinates a position has."""
        raise NotImplementedError

    @property
    def angles_of_pairs(self) -> int:
        """How many angles a pair has: 1, or 2 where its two members are turned by angles of their own."""
        return 1

    def frequency_width(self, width: int) -> int:
        """The width that the schedule's law sees, of the ``width`` rotated channels."""
        return width

    def check(self, width: int) -> None:
        """Refuse a width that the pairs cannot be dealt from. Raises SpecError."""


class SectionLayout(AxisLayout):
    """A layout by ``sections``, the number of pairs that each coordinate gets; pair i has frequency i."""

    sections: Sections

    @property
    def count(self) -> int:
        return len(self.sections)

    def check(self, width: int) -> None:
        if sum(self.sections) != width // 2:
            raise SpecError(
                f"axes.sections must sum to width / 2 = {width // 2}, got {sum(self.sections)} from {self.sections}"
            )


class SectionedAxes(SectionLayout):
    """Consecutive pairs: those of section k read coordinate k (M-RoPE of Qwen2-VL).

    ``over`` ``channels``: the sections are laid over the channels of a half pairing, twice as many each, so that the
    two members of a pair may read different coordinates (HunYuan-VL).
    """

    kind: Literal["sectioned"] = "sectioned"
    over: Literal["pairs", "channels"] = "pairs"

    @property
    def angles_of_pairs(self) -> int:
        return 1 if self.over == "pairs" else 2


class InterleavedAxes(SectionLayout):
    """Every n-th pair: coordinate k >= 1 of n takes pairs k, k + n, k + 2n, ..., as many as its section says, and
    coordinate 0 the pairs that are left (M-RoPE of Qwen3-VL).
    """

    kind: Literal["interleaved"] = "interleaved"

    def check(self, width: int) -> None:
        super().check(width)
        for axis, section in enumerate(self.sections[1:], start=1):
            last = axis + self.count * (section - 1)
            if last >= width // 2:
                raise SpecError(
                    f"axes.sections must fit every {self.count}th of {width // 2} pairs, got {section} for coordinate "
                    f"{axis}, whose last would be pair {last}"
                )


class AlternatingAxes(SectionLayout):
    """The coordinates of ``order`` but the last in turn, pair by pair; then the last one's (ERNIE 4.5 VL: h, w, h, w
    ..., t). ``sections`` follow ``order``; those that alternate are equal.
    """

    kind: Literal["alternating"] = "alternating"
    order: Order

    @model_validator(mode="after")
    def _order_fits(self) -> Self:
        _check_order(self.order, len(self.sections))
        if len(set(self.sections[:-1])) > 1:
            raise SpecError(f"sections must be equal but for the last, got {self.sections}")
        return self


class AxialAxes(AxisLayout):
    """As many pairs for every coordinate, in the order of ``order``: images by row and column, video by time besides.

    ``arrangement`` ``blocks``: all pairs of one coordinate, then those of the next; ``interleaved``: in turn, pair by
    pair. ``frequencies`` ``each``: every coordinate has all frequencies of a rotation of its own width;
    ``shared``: the frequencies of the whole width are dealt in turn, so the i-th pair of the k-th of n has frequency
    n i + k (Pixtral). ``tiled``: with adjacent pairs, the channels of a coordinate take its angles one after the
    other, twice over, so that the two members of a pair are turned by different angles (V-JEPA 2).
    """

    kind: Literal["axial"] = "axial"
    order: Order = (0, 1)
    arrangement: Literal["blocks", "interleaved"] = "blocks"
    frequencies: Literal["each", "shared"] = "each"
    tiled: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_order(self.order, len(self.order))
        if self.tiled and (self.arrangement, self.frequencies) != ("blocks", "each"):
            raise SpecError("tiled needs arrangement blocks and frequencies each, got another")
        return self

    @property
    def count(self) -> int:
        return len(self.order)

    @property
    def angles_of_pairs(self) -> int:
        return 2 if self.tiled else 1

    def frequency_width(self, width: int) -> int:
        return width // self.count if self.frequencies == "each" else width

    def check(self, width: int) -> None:
        if width % (2 * self.count):
            raise SpecError(
                f"width must be a multiple of {2 * self.count}, a pair for each of {self.count} coordinates, "
                f"got {width}"
            )


AnyAxes = Annotated[SectionedAxes | InterleavedAxes | AlternatingAxes | AxialAxes, Field(discriminator="kind")]


def _check_order(order: tuple[int, ...], count: int) -> None:
    if sorted(order) != list(range(count)):
        raise SpecError(f"order must name each of the coordinates 0..{count - 1} once, got {order}")
