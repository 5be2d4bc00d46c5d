"""Layer: tests. The README's table of times is what was measured, and says on what."""

import json
import re
from pathlib import Path

import pytest

from portpe.bench import published
from portpe.errors import SpecError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORDS = published.read((ROOT / "docs" / "bench").glob("*.json"))


def test_the_readme_shows_the_record():
    assert [name for name, _ in RECORDS] == ["A", "B"]
    assert published.renewed(README, RECORDS) == README, "stale: run `make docs`"
    assert published.markdown(RECORDS) in README


def test_every_number_of_the_table_is_in_the_record():
    """Worked out here from the record, not by the code that wrote the table."""
    rows = [line.split(" | ") for line in README.splitlines() if re.match(r"\| [AB] (decode|prefill) \d", line)]
    cases = [(name, case) for name, record in RECORDS for case in record["cases"]]
    assert len(rows) == len(cases) >= 8
    for row, (name, case) in zip(rows, cases, strict=True):
        assert row[0] == f"| {name} {case['phase']} {case['length']}"
        ratio = {one["competitor"]: one["ratio"]["median"] for one in case["results"] if one["ratio"]}
        shown = [cell.strip("* ").split(" ")[0] for cell in row]
        for column, competitor in ((1, "portable"), (2, "standard"), (3, "shared"), (4, "ort")):
            assert shown[column] == f"{ratio[f'onnxruntime {competitor}']:.2f}", (name, case["length"])
        assert shown[7] == f"{min(value for one, value in ratio.items() if one.startswith('mobius')):.2f}"
        bold = [cell.strip("*") for cell in row if cell.startswith("**")]
        assert f"{min(value for one, value in ratio.items() if 'mlx' not in one):.2f}" in bold


def test_the_record_names_machine_pages_and_versions():
    for _, record in RECORDS:
        assert record["machine"]["pages"] == "huge"
        assert record["settings"] == {"threads": 1, "clock": "cpu", "seed": 0}
        assert {"onnxruntime", "torch", "mobius-onnx", "onnxruntime-genai"} <= set(record["versions"])
        for name, version in record["versions"].items():
            assert f"{name} {version}" in README
        assert record["machine"]["processor"] in README


def report(**changes):
    spread = {"median": 0.002, "q1": 0.002, "q3": 0.002}

    def result(name, ratio, *, encoded=True):
        return {
            "competitor": name,
            "peer": False,
            "encoded": encoded,
            "verdict": "exact",
            "max_abs": 0.0,
            "share_of_bound": 0.1,
            "calls": 1,
            "rounds": 3,
            "wall": spread,
            "cpu": spread,
            "fraction_of_limit": 0.5,
            "fraction_of_gemv": 0.6,
            "ratio": ratio and {"median": ratio, "low": ratio, "high": ratio},
        }

    names = {"onnxruntime portable": "onnxruntime", "onnxruntime ort": "onnxruntime", "mobius cpu": "onnxruntime"}
    case = {
        "phase": "decode",
        "length": 7,
        "rounds": 3,
        "flops": 1,
        "bytes_read": 1,
        "limit": "read_bandwidth",
        "limit_seconds": 1e-3,
        "limits": {},
        "baseline": "onnxruntime portable",
        "results": [
            result("onnxruntime portable", 1.0),
            result("onnxruntime ort", 0.5),
            result("onnxruntime ort", 0.4, encoded=False),
            result("mobius cpu", None),
        ],
        "overhead": [{"competitor": "onnxruntime ort", "median": 0.012, "low": -0.001, "high": 0.034, "rounds": 9}],
    }
    return {
        "schema_version": 1,
        "subject": {"dtype": "float32", "hidden_size": 8, "num_heads": 4, "num_kv_heads": 2, "head_dim": 2, "spec": {}},
        "settings": {"threads": 1, "clock": "cpu", "seed": 0, "budget": 9, "phases": ["decode"], "lengths": [7]},
        "machine": {"processor": "P", "cores": 2, "system": "S", "python": "3", "pages": "huge"},
        "versions": {"portpe": "1"},
        "limits": {},
        "competitors": [
            {"name": name, "runtime": runtime, "peer": name.startswith("mobius"), "usable": True}
            for name, runtime in names.items()
        ],
        "cases": [case],
        **changes,
    }


def test_a_row_says_who_is_fastest_and_what_the_encoding_costs():
    record = published.kept([report(), report()])
    assert "spec" not in record["subject"]
    row = published.table([("X", record)])[2]
    assert row == "| X decode 7 | 1.00 (2.00 ms) |  |  | **0.50** |  |  |  |  | 0.50 | +1.2 % (-0.1 % to +3.4 %) |"
    assert len(published.table([("X", record)])) == 2 + 1


def test_of_one_case_the_last_report_counts():
    later = report()
    later["cases"] = [{**later["cases"][0], "rounds": 8}, {**later["cases"][0], "phase": "prefill"}]
    record = published.kept([report(), later])
    assert [(case["phase"], case["rounds"]) for case in record["cases"]] == [("decode", 8), ("prefill", 3)]
    assert len(record["runs"]) == 2


def test_reports_of_different_layers_or_versions_make_no_record():
    for part in ("subject", "versions"):
        with pytest.raises(SpecError, match=f"reports must have one {part}"):
            published.kept([report(), report(**{part: {"portpe": "2"}})])


def test_the_command_keeps_and_renews(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(report()))
    (tmp_path / "page.md").write_text(f"before\n{published.BEGIN}\nold\n{published.END}\nafter\n")
    published.main(["--keep", str(tmp_path / "X.json"), str(tmp_path / "one.json")])
    published.main([str(tmp_path / "page.md"), str(tmp_path / "X.json")])
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    assert "| X decode 7 | 1.00 (2.00 ms) |" in page
