"""A JSON object of a config, read key by key: typed, with the key's path in every error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from portpe.encodings import LARGEST_INT
from portpe.errors import SpecError


class _Required:
    """Stands for a default where there is none."""


REQUIRED = _Required()
Value = TypeVar("Value")


def shown(value: Any) -> str:
    """A value in an error: its repr, cut to a length that fits a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Section:
    """One JSON object of a config. A null counts as an absent key.

    ``seen`` collects the keys that were read, whether present or not: whatever else stands in
    ``data`` is a key that nobody understood.
    """

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self.path = path
        self.seen: set[str] = set()
        self._sections: dict[str, Section] = {}

    def name(self, key: str) -> str:
        """The key with its path, as errors give it."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """The raw value; None where the key is absent or null."""
        self.seen.add(key)
        return self.data.get(key)

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def either(self, *keys: str) -> str:
        """The one of several names of a value that is given: the first, where none is.

        Raises:
            SpecError: two are given and disagree.
        """
        given = [key for key in keys if self.has(key)]
        for other in given[1:]:
            if self.data[other] != self.data[given[0]]:
                first = given[0]
                raise SpecError(
                    f"{self.name(first)} and {self.name(other)} are names of one value and must agree, "
                    f"got {shown(self.data[first])} and {shown(self.data[other])}"
                )
        return given[0] if given else keys[0]

    def integer(self, key: str, default: int | _Required = REQUIRED, *, minimum: int = 1) -> int:
        """A whole number that float64 holds exactly; 8192.0 is one too."""
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise SpecError(f"{self.name(key)} must be an integer >= {minimum}, got {shown(value)}")
        if value > LARGEST_INT:
            raise SpecError(f"{self.name(key)} must be at most 2^53 = {LARGEST_INT}, got {shown(value)}")
        return value

    def positive(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A number above 0, as the float64 that it is."""
        number = self.real(key, default)
        if number <= 0:
            raise SpecError(f"{self.name(key)} must be > 0, got {shown(self.get(key))}")
        return number

    def real(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A finite number, as the float64 that it is."""
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        return self._real(value, self.name(key))

    def positives(self, key: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        values = self.get(key)
        if values is None:
            raise SpecError(f"{self.name(key)} is required and missing")
        if not isinstance(values, list | tuple) or not values:
            raise SpecError(f"{self.name(key)} must be a list of numbers, got {shown(values)}")
        numbers = tuple(self._real(value, f"{self.name(key)}[{i}]") for i, value in enumerate(values))
        for i, number in enumerate(numbers):
            if number <= 0:
                raise SpecError(f"{self.name(key)}[{i}] must be > 0, got {shown(values[i])}")
        return numbers

    def numbers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list of whole numbers, as layers are listed by; it may be empty."""
        values = self.get(key)
        if values is None:
            return default
        if not isinstance(values, list | tuple) or not all(type(value) is int for value in values):
            raise SpecError(f"{self.name(key)} must be a list of integers, got {shown(values)}")
        if any(value < 0 for value in values):
            raise SpecError(f"{self.name(key)} must hold no number below 0, got {shown(values)}")
        return tuple(values)

    def flag(self, key: str, default: bool | _Required = REQUIRED) -> bool:
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, bool):
            raise SpecError(f"{self.name(key)} must be true or false, got {shown(value)}")
        return value

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            raise SpecError(f"{self.name(key)} must be a string, got {shown(value)}")
        return value

    def section(self, key: str) -> Section | None:
        """A nested object; None where it is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise SpecError(f"{self.name(key)} must be an object, got {shown(value)}")
        if key not in self._sections:
            self._sections[key] = Section(value, self.name(key))
        return self._sections[key]

    @property
    def opened(self) -> list[Section]:
        """The nested objects that were read."""
        return list(self._sections.values())

    def unread(self) -> list[str]:
        """The keys that hold something and that nobody read, in the file's order."""
        return [key for key, value in self.data.items() if key not in self.seen and value is not None]

    def _default(self, key: str, default: Value | _Required) -> Value:
        if isinstance(default, _Required):
            raise SpecError(f"{self.name(key)} is required and missing")
        return default

    @staticmethod
    def _real(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{name} must be a number, got {shown(value)}")
        try:
            number = float(value)
        except OverflowError:
            raise SpecError(f"{name} must be within float64, got {shown(value)}") from None
        if not math.isfinite(number):
            raise SpecError(f"{name} must be finite, got {shown(value)}")
        return number
