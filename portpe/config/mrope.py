"""Multimodal rotary embeddings in a config: ``mrope_section`` and what a family's class makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from portpe.config.layer import Layer
from portpe.config.section import Section, shown
from portpe.encodings import AlternatingAxes, AnyAxes, InterleavedAxes, SectionedAxes
from portpe.errors import SpecError

KEY = "mrope_section"
FLAG = "mrope_interleaved"


@dataclass(frozen=True)
class MRope:
    """How a family deals the pairs of its rotation to the coordinates of a token.

    ``layout``: which pairs a section gets; it is the family's, no key of the config chooses it. ``alternating`` has its
    sections in the order rows, columns, time, and positions in the order time, rows, columns. ``sections``: those of a
    config without any; None where a config must state them. ``alias``: an older name of the key.
    """

    layout: Literal["sectioned", "over_channels", "interleaved", "alternating"]
    sections: tuple[int, ...] | None
    alias: str | None = None

    def axes(self, layer: Layer, block: Section, width: int) -> AnyAxes:
        """The layout of a layer, of the keys in its rope block. Raises SpecError."""
        sections = self._sections(block)
        if sum(sections) != width // 2:
            stated = shown(list(sections)) + ("" if block.has(KEY) else ", this model_type's default")
            raise SpecError(
                f"{block.name(KEY)} must sum to {width // 2}, half the rotary width, got {sum(sections)} from {stated}"
            )
        interleaved = self.layout == "interleaved"
        contradicts = block.has(FLAG) and block.flag(FLAG) != interleaved
        if contradicts and not layer.unknown.lets_pass(block, FLAG):
            raise SpecError(
                f"{block.name(FLAG)} must be {str(interleaved).lower()} for this model_type, whose sections are laid "
                f"out so, got {str(not interleaved).lower()}"
            )
        if self.layout == "interleaved":
            return InterleavedAxes(sections=sections)
        if self.layout == "alternating":
            return AlternatingAxes(sections=sections, order=(1, 2, 0))
        return SectionedAxes(sections=sections, over="channels" if self.layout == "over_channels" else "pairs")

    def _sections(self, block: Section) -> tuple[int, ...]:
        key = KEY if self.alias is None else block.either(KEY, self.alias)
        given = block.get(key)
        if given is None:
            if self.sections is None:
                raise SpecError(f"{block.name(KEY)} is required and missing")
            return self.sections
        if (
            not isinstance(given, list | tuple)
            or len(given) < 2
            or (self.sections and len(given) != len(self.sections))
        ):
            count = "two or more" if self.sections is None else str(len(self.sections))
            raise SpecError(f"{block.name(key)} must be a list of {count} numbers of pairs, got {shown(given)}")
        sections = [int(one) if isinstance(one, float) and one.is_integer() else one for one in given]
        for i, one in enumerate(sections):
            if isinstance(one, bool) or not isinstance(one, int) or one < 1:
                raise SpecError(f"{block.name(key)}[{i}] must be an integer >= 1, got {shown(given[i])}")
        return tuple(sections)


@dataclass(frozen=True)
class InTurn:
    """As many pairs for each of ``count`` coordinates, pair by pair; no key of the config says so (NeoMME)."""

    count: int

    def axes(self, layer: Layer, block: Section, width: int) -> AnyAxes:  # noqa: ARG002
        """The layout of a layer. Raises SpecError."""
        if width % (2 * self.count):
            raise SpecError(
                f"partial_rotary_factor must leave a multiple of {2 * self.count} channels for {self.count} "
                f"coordinates, got {width} of head_dim = {layer.head_dim}"
            )
        return InterleavedAxes(sections=(width // 2 // self.count,) * self.count)
