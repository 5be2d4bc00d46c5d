"""Models put together from others: a part reads as the same config alone, and is compared as its own model_type is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from portpe.config.composites import COMPOSITES, Part
from tests.walk.row import Case, Row

# What a composite's other parts demand of this one.
_SIZES = {"fun_asr_nano": {"hidden_size": 1024}}


def composite_rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """A row for each part of each composite, out of the row of what the part is by default."""
    alone = {row.model_type: row for row in reversed(rows)}
    return tuple(
        _row(whole, name, part, alone[part.model_type], alone)
        for whole, parts in COMPOSITES.items()
        for name, part in parts.items()
    )


def _row(whole: str, name: str, part: Part, row: Row, alone: Mapping[str, Row]) -> Row:
    stated = {"model_type": part.model_type, **row.default, **_SIZES.get(whole, {})}
    label, changes = next(iter(row.configs.items()))
    return Row(
        whole,
        _part_alone(part.key, alone),
        {label: {part.key: {**stated, **changes}}},
        default={part.key: stated} if row.default else {},
        because=row.because,
        part=name,
        wrong=row.wrong,
    )


def _part_alone(key: str, alone: Mapping[str, Row]) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        config = getattr(case.config, key)
        part = Case(alone[config.model_type], case.label, config)
        for (index, inside), (number, outside) in zip(case.layers(), part.layers(), strict=True):
            assert (index, inside.spec) == (number, outside.spec)
        part.row.check(part)

    return check
