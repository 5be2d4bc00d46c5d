"""All rows, and what transformers' CONFIG_MAPPING has besides."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.walk.bias_rows import BIASES
from tests.walk.embedding_rows import EMBEDDINGS
from tests.walk.mrope_rows import MROPE
from tests.walk.rotary_rows import DECODERS
from tests.walk.row import Row

ROWS: tuple[Row, ...] = (*DECODERS, *MROPE, *EMBEDDINGS, *BIASES)
UNCOVERED = Path(__file__).with_name("uncovered.toml")


@dataclass(frozen=True)
class Uncovered:
    """``reasons``: texts by name. ``model_types``: the name of the reason of each family that has no row."""

    reasons: dict[str, str]
    model_types: dict[str, str]


@cache
def uncovered() -> Uncovered:
    return Uncovered(**tomllib.loads(UNCOVERED.read_text(encoding="utf-8")))


@cache
def mapped() -> tuple[str, ...]:
    """Every model_type of transformers."""
    from transformers import CONFIG_MAPPING

    return tuple(sorted(CONFIG_MAPPING))


def covered() -> tuple[str, ...]:
    return tuple(sorted({row.model_type for row in ROWS}))


def known_wrong() -> dict[str, str]:
    """Families where transformers contradicts its config, and the test that shows it."""
    return {row.model_type: row.wrong for row in sorted(ROWS, key=lambda row: row.model_type) if row.wrong}
