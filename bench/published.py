"""The measurements that the documentation shows: reports cut down to what their table needs, and the table itself.

``python -m portpe.bench.published README.md docs/bench/*.json`` renews the table between its two marks;
``python -m portpe.bench.published --keep docs/bench/A.json REPORT.json ...`` cuts reports of one layer down to a file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from portpe.bench.terminal import milliseconds
from portpe.errors import SpecError

BEGIN, END = "<!-- speed: begin (make docs) -->", "<!-- speed: end -->"

Record = Mapping[str, Any]

RESULT = ("competitor", "verdict", "rounds", "wall", "cpu", "fraction_of_limit", "fraction_of_gemv", "ratio")
CASE = ("phase", "length", "rounds", "limit", "limit_seconds", "limits", "baseline", "overhead")
WHOLE = ("schema_version", "machine", "versions")


def kept(reports: Sequence[Record]) -> dict[str, Any]:
    """One record of a layer's reports: every case, those with the encoding, without what the table does not show.

    A case that several reports have is that of the last. Raises SpecError where they are of different layers or
    versions.
    """
    first = reports[0]
    for report in reports[1:]:
        for part in ("subject", "versions"):
            if report[part] != first[part]:
                raise SpecError(f"reports must have one {part}, got {report[part]} and {first[part]}")
    record = {name: first[name] for name in WHOLE}
    record["subject"] = {name: value for name, value in first["subject"].items() if name != "spec"}
    record["settings"] = {name: first["settings"][name] for name in ("threads", "clock", "seed")}
    record["runtimes"] = {one["name"]: one["runtime"] for one in first["competitors"] if one["usable"]}
    record["own"] = [one["name"] for one in first["competitors"] if not one["peer"] and one["usable"]]
    record["runs"] = [
        {name: report["settings"][name] for name in ("phases", "lengths", "budget")} | {"limits": report["limits"]}
        for report in reports
    ]
    cases = {(case["phase"], case["length"]): case for report in reports for case in report["cases"]}
    record["cases"] = [
        {
            **{name: case[name] for name in CASE},
            "results": [{name: one[name] for name in RESULT} for one in case["results"] if one["encoded"]],
        }
        for _, case in sorted(cases.items())
    ]
    return record


def table(records: Iterable[tuple[str, Record]]) -> list[str]:
    """Markdown lines: a row a block and case, times relative to ``portable``, the fastest in bold."""
    rows = [
        (f"{name} {case['phase']} {case['length']}", *_cells(record, case))
        for name, record in records
        for case in record["cases"]
    ]
    head = ("block, case", *COLUMNS, "of the limit", "RoPE costs")
    return [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *map(_line, rows)]


def _is(name: str) -> Callable[[str, str], bool]:
    return lambda competitor, _runtime: competitor == name


COLUMNS: dict[str, Callable[[str, str], bool]] = {  # of several the fastest
    "`portable`": _is("onnxruntime portable"),
    "`standard`": _is("onnxruntime standard"),
    "`shared`": _is("onnxruntime shared"),
    "`ort`": _is("onnxruntime ort"),
    "PyTorch": lambda _competitor, runtime: runtime == "pytorch",
    "torch.onnx.export": _is("torch.onnx.export of the reference"),
    "mobius-onnx": lambda competitor, _runtime: competitor.startswith("mobius "),
    "onnxruntime-genai": _is("ort-genai builder"),
}


def _cells(record: Record, case: Record) -> list[str]:
    clock = record["settings"]["clock"]
    timed = [one for one in case["results"] if one["ratio"] is not None]
    columns = {
        column: [one for one in timed if fits(one["competitor"], record["runtimes"][one["competitor"]])]
        for column, fits in COLUMNS.items()
    }
    best = {column: min((one["ratio"]["median"] for one in found), default=None) for column, found in columns.items()}
    least = min(value for value in best.values() if value is not None)
    cells = []
    for column, value in best.items():
        text = "" if value is None else f"{value:.2f}"
        if column == "`portable`" and value is not None:
            text = f"{text} ({milliseconds(columns[column][0][clock]['median'])} ms)"
        cells.append(f"**{text}**" if text and value == least else text)
    own = min((one for one in timed if one["competitor"] in record["own"]), key=lambda one: one["ratio"]["median"])
    cost = next((one for one in case["overhead"] if one["competitor"] == own["competitor"]), None)
    cells.append(f"{own['fraction_of_limit']:.2f}")
    cells.append(
        "" if cost is None else f"{_percent(cost['median'])} ({_percent(cost['low'])} to {_percent(cost['high'])})"
    )
    return cells


def markdown(records: Iterable[tuple[str, Record]]) -> str:
    """The table, and under it the blocks, the machine and the versions that it was measured with."""
    records = list(records)
    first = records[0][1]
    machine, settings = first["machine"], first["settings"]
    blocks = "; ".join(f"block {name}: {_sizes(record['subject'])}" for name, record in records)
    where = ", ".join(
        [
            f"{settings['threads']} thread{'s' * (settings['threads'] > 1)} of {machine['processor']}",
            *(f"{machine['cores']} cores", machine["system"], f"Python {machine['python']}"),
            f"{machine['pages']} pages",
        ]
    )
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    clock = {"cpu": "CPU", "wall": "wall"}[settings["clock"]]
    under = f"{blocks}. {clock} time on {where}; {versions}."
    return "\n".join([*table(records), "", f"{under[0].upper()}{under[1:]}"])


def _sizes(subject: Record) -> str:
    heads = f"{subject['num_heads']}/{subject['num_kv_heads']} heads of {subject['head_dim']}"
    return f"hidden {subject['hidden_size']}, {heads}, {subject['dtype']}"


def renewed(text: str, records: Iterable[tuple[str, Record]]) -> str:
    """A document with the table between its marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown(records)}\n\n{END}{after}"


def read(paths: Iterable[Path]) -> list[tuple[str, Record]]:
    """Records by the names of their files, in the order of those."""
    return [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(paths)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def main(arguments: Sequence[str]) -> None:
    """Renew a document, or with ``--keep`` write a record."""
    if arguments[:1] == ["--keep"]:
        reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in arguments[2:]]
        Path(arguments[1]).write_text(json.dumps(kept(reports), indent=1) + "\n", encoding="utf-8")
        return
    document, *paths = map(Path, arguments)
    document.write_text(renewed(document.read_text(encoding="utf-8"), read(paths)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
