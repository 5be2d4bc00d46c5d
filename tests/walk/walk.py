"""All rows, and what transformers' CONFIG_MAPPING has besides."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.walk.absolute_rows import ABSOLUTE
from tests.walk.bert_variant_rows import BERT_VARIANTS
from tests.walk.bias_rows import BIASES
from tests.walk.composite_rows import composite_rows
from tests.walk.detection_rows import DETECTION
from tests.walk.embedding_rows import EMBEDDINGS
from tests.walk.gated_rows import GATED
from tests.walk.image_rows import IMAGES
from tests.walk.inkling_rows import INKLINGS
from tests.walk.joined_rows import JOINED
from tests.walk.layout_rows import LAYOUTS
from tests.walk.mla_rows import MLA
from tests.walk.mrope_rows import MROPE
from tests.walk.multimodal_rows import MULTIMODAL
from tests.walk.patch_rows import PATCHES
from tests.walk.relative_rows import RELATIVES
from tests.walk.rotary_rows import DECODERS
from tests.walk.row import Row
from tests.walk.sam_rows import SAMS
from tests.walk.sound_rows import SOUNDS
from tests.walk.speech_relative_rows import SPEECH_RELATIVES
from tests.walk.speech_rows import SPEECH
from tests.walk.vision_rows import VISION

_WHOLE: tuple[Row, ...] = (
    *DECODERS,
    *MLA,
    *MROPE,
    *MULTIMODAL,
    *SPEECH,
    *JOINED,
    *VISION,
    *EMBEDDINGS,
    *ABSOLUTE,
    *BERT_VARIANTS,
    *SOUNDS,
    *IMAGES,
    *PATCHES,
    *DETECTION,
    *BIASES,
    *RELATIVES,
    *LAYOUTS,
    *INKLINGS,
    *SAMS,
    *SPEECH_RELATIVES,
    *GATED,
)
ROWS: tuple[Row, ...] = (*_WHOLE, *composite_rows(_WHOLE))
LEDGER = Path(__file__).parents[1] / "divergences.toml"
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


class Wrong(NamedTuple):
    """A row of the ledger about transformers; no ``model_types``: it is about whatever has the kind."""

    what: str
    model_types: tuple[str, ...]
    test: str


@cache
def known_wrong() -> tuple[Wrong, ...]:
    """Where transformers contradicts its config or itself, as the ledger says and as rows name its tests."""
    by_test: dict[str, set[str]] = {}
    for row in ROWS:
        if row.wrong:
            by_test.setdefault(row.wrong, set()).add(row.model_type)
    return tuple(
        Wrong(
            one["what"], tuple(sorted(by_test.get(one["test"], set()) | set(one.get("model_types", ())))), one["test"]
        )
        for one in tomllib.loads(LEDGER.read_text(encoding="utf-8"))["divergence"]
        if one["runtime"] == "transformers"
    )
