"""Stacks of stages, each with its own sizes: layers are counted through all of them."""

from __future__ import annotations

from collections.abc import Sequence

from portpe.config.section import Section, shown
from portpe.errors import SpecError


def integers(config: Section, key: str, default: Sequence[int]) -> list[int]:
    """A list of whole numbers, one a stage."""
    values = config.get(key)
    values = list(default) if values is None else values
    if not isinstance(values, list | tuple) or not values:
        raise SpecError(f"{config.name(key)} must be a list of integers, got {shown(values)}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{config.name(key)} must hold integers >= 1, got {shown(values)}")
    return list(values)


def _of_stage(config: Section, key: str, default: Sequence[int], stage: int, depths: Sequence[int]) -> int:
    values = integers(config, key, default)
    if len(values) != len(depths):
        raise SpecError(f"{config.name(key)} must have an entry for each of {len(depths)} depths, got {len(values)}")
    return values[stage]


class Stages:
    """A stack of stages, each with its own sizes; layers are counted through all of them."""

    def __init__(self, default: Sequence[int]) -> None:
        self.default = default

    def depths(self, config: Section) -> list[int]:
        return integers(config, "depths", self.default)

    def count(self, config: Section) -> int:
        return sum(self.depths(config))

    def place(self, config: Section, index: int) -> tuple[int, int]:
        """The stage of a layer, and which of its blocks it is."""
        for stage, depth in enumerate(self.depths(config)):
            if index < depth:
                return stage, index
            index -= depth
        raise SpecError(f"layer must be < {self.count(config)}, the sum of depths, got {index}")

    def value(self, config: Section, key: str, default: Sequence[int], index: int) -> int:
        return _of_stage(config, key, default, self.place(config, index)[0], self.depths(config))
