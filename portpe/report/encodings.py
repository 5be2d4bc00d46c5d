"""What portpe knows, written from the registry: the README's tables, and docs/encodings.md with settings and families.

``python -m portpe.report.encodings README.md docs/encodings.md`` renews both, the README between its two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from portpe.config.families import FAMILIES
from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.registry import (
    ATTENTIONS,
    AXES,
    DECAYS,
    ENCODINGS,
    SCHEDULES,
    AttentionRow,
    AxesRow,
    DecayRow,
    EncodingRow,
    ScheduleRow,
)

REGIMES = "`--context L` or `--regime per_sequence`"
BEGIN, END = "<!-- encodings: begin (make docs) -->", "<!-- encodings: end -->"


def markdown() -> str:
    """Encodings by site, the frequency schedules of rotary encodings, their layouts of several coordinates, decays, and
    the kinds of block.
    """
    encodings = [(f"`{row.kind}`", row.title, row.site, row.formula, row.source) for row in ENCODINGS.values()]
    schedules = [
        (f"`{row.kind}`", row.title, row.formula, row.source, REGIMES if row.length_dependent else "")
        for row in SCHEDULES.values()
    ]
    attentions = [(f"`{row.kind}`", row.title, row.formula, row.source) for row in ATTENTIONS.values()]
    axes = [(f"`{row.kind}`", row.title, row.formula, row.source) for row in AXES.values()]
    decays = [(f"`{row.kind}`", row.title, row.formula, row.source) for row in DECAYS.values()]
    return "\n".join(
        [
            *_table(("kind", "encoding", "site", "what is computed", "source"), encodings),
            "",
            *_table(("schedule", "name", "frequencies", "source", "export needs"), schedules),
            "",
            *_table(("axes", "name", "which coordinate a pair reads", "source"), axes),
            "",
            *_table(("decay", "name", "what queries and keys are multiplied by", "source"), decays),
            "",
            *_table(("attention", "name", "context of query i", "source"), attentions),
        ]
    )


def renewed(text: str) -> str:
    """A document with the tables between its marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{after}"


def document() -> str:
    """The page on every encoding and schedule, and the families that are read."""
    return "\n".join(
        [
            "# Encodings",
            "",
            "Written by `make docs` from `portpe/registry` and the tables of `portpe/config`. A spec written by",
            "hand takes the settings as they stand here; `portpe spec --schema` prints all of them.",
            "",
            "## By site",
            *(line for row in ENCODINGS.values() for line in _encoding(row)),
            "",
            "## Frequency schedules of rotary encodings",
            *(line for row in SCHEDULES.values() for line in _schedule(row)),
            "",
            "## Positions with several coordinates",
            "",
            "`axes` of a rotary encoding. `position_ids` are (axes, batch, sequence) then.",
            *(line for row in AXES.values() for line in _axes(row)),
            "",
            "## Decay of a rotation",
            "",
            "`decay` of a rotary encoding, in causal layers. No type holds its scales at every position: tables cover",
            "the trained length, and an export refuses positions where the scale of a pair leaves 2^-5 to 2^5 in",
            "float16, 2^-48 to 2^48 in the other types. A `centre` amid the positions doubles their number.",
            "It is a fixed number of the spec: a cached key was scaled when it came, and cannot follow a centre that",
            "moves with the length.",
            *(line for row in DECAYS.values() for line in _decay(row)),
            "",
            "## Kinds of block",
            "",
            "`attention` of a spec: `softmax` where it is not given. What belongs to a softmax (scale, softcap, sinks,",
            "biases, temperatures) is refused with `linear`; [linear attention](linear_attention.md) says why.",
            *(line for row in ATTENTIONS.values() for line in _attention(row)),
            "",
            "## Families",
            "",
            "What the configs of these model types mean is read, in both layouts of transformers:",
            "",
            *_families(),
            "",
        ]
    )


def _encoding(row: EncodingRow) -> Iterator[str]:
    yield from ("", f"### {row.title}: `{row.kind}`", "", f"- site: {row.site}", f"- computes: {row.formula}")
    yield f"- source: {row.source}"
    if row.weights:
        yield f"- weights: {', '.join(f'`{name}`' for name in row.weights)}"
    if row.bounded:
        yield "- positions end with the model's own table"
    if row.example is not None:
        yield f"- settings, for example: `{json.dumps(row.example.model_dump(mode='json'))}`"


def _schedule(row: ScheduleRow) -> Iterator[str]:
    yield from ("", f"### {row.title}: `{row.kind}`", "", f"- frequencies: {row.formula}", f"- source: {row.source}")
    if row.length_dependent:
        yield "- follows the length: an export needs `--context L`"
    if not row.in_transformers:
        yield "- not in transformers"
    yield f"- settings, for example: `{json.dumps(row.example.model_dump(mode='json'))}`"


def _axes(row: AxesRow) -> Iterator[str]:
    yield from ("", f"### {row.title}: `{row.kind}`", "", f"- pairs: {row.formula}", f"- source: {row.source}")
    yield f"- settings, for example: `{json.dumps(row.example.model_dump(mode='json'))}`"


def _decay(row: DecayRow) -> Iterator[str]:
    yield from ("", f"### {row.title}: `{row.kind}`", "", f"- computes: {row.formula}", f"- source: {row.source}")
    yield f"- settings, for example: `{json.dumps(row.example.model_dump(mode='json'))}`"
    schedule = DefaultSchedule(kind="default")
    rotary = RotaryEncoding(kind="rotary", width=64, pairing="interleaved", schedule=schedule, decay=row.example)
    yield f'- in a spec written by hand: `"rotary": {json.dumps(rotary.model_dump(mode="json", exclude_unset=True))}`'


def _attention(row: AttentionRow) -> Iterator[str]:
    yield from ("", f"### {row.title}: `{row.kind}`", "", f"- computes: {row.formula}", f"- source: {row.source}")


def _families() -> Iterator[str]:
    """One line a model_type, with its parts."""
    parts: dict[str, list[str]] = {}
    for family in FAMILIES:
        parts.setdefault(family.model_type, []).extend([family.part] if family.part else [])
    for name in sorted(parts):
        yield f"- `{name}`" + (f" ({', '.join(parts[name])})" if parts[name] else "")


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


if __name__ == "__main__":
    readme, page = (Path(name) for name in sys.argv[1:])
    readme.write_text(renewed(readme.read_text(encoding="utf-8")), encoding="utf-8")
    page.write_text(document(), encoding="utf-8")
