"""The table of encodings and schedules in the README, written from the registry.

``python -m portpe.report.encodings README.md`` renews it between its two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from portpe.registry import ENCODINGS, SCHEDULES

REGIMES = "`--context L` or `--regime per_sequence`"
BEGIN, END = "<!-- encodings: begin (make readme) -->", "<!-- encodings: end -->"


def markdown() -> str:
    """Both tables: encodings by site, then the frequency schedules of rotary encodings."""
    encodings = [(f"`{row.kind}`", row.title, row.site, row.formula, row.source) for row in ENCODINGS.values()]
    schedules = [
        (f"`{row.kind}`", row.title, row.formula, row.source, REGIMES if row.length_dependent else "")
        for row in SCHEDULES.values()
    ]
    return "\n".join(
        [
            *_table(("kind", "encoding", "site", "what is computed", "source"), encodings),
            "",
            *_table(("schedule", "name", "frequencies", "source", "export needs"), schedules),
        ]
    )


def renewed(text: str) -> str:
    """A document with the tables between its marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{after}"


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
