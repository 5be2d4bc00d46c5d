"""docs/coverage.md, from the rows: ``python -m tests.walk.coverage docs/coverage.md`` renews it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.walk.walk import ROWS, covered, known_wrong, mapped, uncovered


def counts() -> str:
    import transformers

    return (
        f"Of the {len(mapped())} model types of transformers {transformers.__version__}, {len(covered())} are compared "
        f"with its own modules, {len(uncovered().model_types)} are not read, and {len(_wrong_families())} of those "
        f"compared are known to be wrong there, by {len(known_wrong())} divergences."
    )


def _wrong_families() -> set[str]:
    return {name for wrong in known_wrong() for name in wrong.model_types}


def markdown() -> str:
    lines = [
        "# Coverage of model families",
        "",
        "Written by `make docs` from the rows of `tests/walk`, which CI runs.",
        "",
        counts(),
        "",
        "## Compared",
        "",
        "The module, table or bias of transformers' own class is made from the default config and from at least one",
        "that is scaled or otherwise varied; cos and sin are the same bits at precision `hf`, biases and sinusoids are",
        "within 2 ulp.",
        "",
        "| model type | part | configs |",
        "| --- | --- | --- |",
        *(f"| `{row.model_type}` | {row.part or ''} | {', '.join(row.labels)} |" for row in _sorted_rows()),
        "",
        "## Wrong in transformers",
        "",
        "Its code contradicts what its config documents, or itself; the documented meaning is what portpe reads. Each",
        "row of `tests/divergences.toml` about transformers, with the model types that it is about; without any, it is",
        "about whatever has the kind.",
        "",
        "| what | model types | shown by |",
        "| --- | --- | --- |",
        *(
            f"| {wrong.what} | {', '.join(f'`{name}`' for name in wrong.model_types)} | `{wrong.test}` |"
            for wrong in known_wrong()
        ),
        "",
        "## Not read",
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in sorted(uncovered().model_types.items()):
        by_reason.setdefault(reason, []).append(name)
    for reason, text in uncovered().reasons.items():
        names = by_reason.get(reason, [])
        lines += ["", f"### {text} ({len(names)})", "", ", ".join(f"`{name}`" for name in names)]
    return "\n".join(lines) + "\n"


def _sorted_rows():
    return sorted(ROWS, key=lambda row: (row.model_type, row.part or ""))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
    print(counts())
