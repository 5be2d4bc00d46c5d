"""Layer: tests. What is measured in processes of its own: memory, exports, imports."""

import importlib.util
import subprocess
import sys

import numpy as np

from portpe.bench import export_cost, process_memory
from portpe.bench.result import Report
from portpe.bench.settings import Settings
from portpe.bench.subject import of_bundle

SILENT = lambda _step: None  # noqa: E731


def test_the_peak_stays_when_what_was_held_is_freed():
    """In a process of its own: this one may have had more before."""
    code = (
        "from portpe.bench.process_memory import peak_bytes as peak\n"
        "before = peak(); held = b'1' * 300_000_000; del held; print(before, peak())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 2**22 < before < 300_000_000
    assert before + 290_000_000 < after < before + 310_000_000


def test_a_competitor_in_a_process_of_its_own(bundle_of, tmp_path):
    bundle = bundle_of("rotary_default")
    arguments = [str(bundle.path), "float32", "onnxruntime portable", "decode", "33", "1", str(tmp_path)]
    found = process_memory._child(arguments)
    assert isinstance(found, dict), found
    assert 2**24 < found["imported"] <= found["peak"] < 2**31


def test_a_process_that_fails_says_why(tmp_path):
    arguments = [str(tmp_path), "float32", "onnxruntime portable", "decode", "33", "1", str(tmp_path)]
    assert "is no bundle" in process_memory._child(arguments)


def test_export_is_timed_beside_whole_processes(bundle_of, tmp_path, monkeypatch):
    monkeypatch.setattr(export_cost, "PROCESSES", 1)
    monkeypatch.setattr(export_cost, "IMPORTS", ("portpe", "no_such_module"))
    real = importlib.util.find_spec
    missing = ("onnxscript", "mobius", "no_such_module")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in missing else real(name, *rest))
    subject = of_bundle(bundle_of("rotary_default"), "float32", tmp_path / "subject")
    report = Report({}, {}, {}, {}, {}, [])
    export_cost.measure(report, subject, tmp_path, Settings(), SILENT)
    assert [one.name for one in report.export] == ["portpe portable"]
    export = report.export[0]
    assert export.repeats == export_cost.BUILDS
    assert 10 < export.nodes < 200
    # The tables stand inline, the weights do not: 1024 + 1024 rows of 4 cos and 4 sin, in float32.
    assert 2048 * 8 * 4 < export.graph_bytes < 2048 * 8 * 4 + 50_000
    assert [one.name for one in report.processes] == ["portpe export --no-golden"]
    assert [one.name for one in report.imports] == ["import portpe"]
    assert all(0 < one.wall.median < 120 for one in (export, *report.processes, *report.imports))
    assert [(one.competitor, one.reason) for one in report.left_out] == [
        ("torch.onnx.export of the reference", "onnxscript is not installed; pip install onnxscript"),
        ("mobius build", "mobius-onnx is not installed; pip install mobius-onnx"),
    ]


def test_weights_are_placed_without_being_written(bundle_of, tmp_path):
    subject = of_bundle(bundle_of("rotary_default"), "float32", tmp_path)
    places = list(subject.external.values())
    assert sum(place.length for place in places) == 4 * (48 * 44 + 16 * 44 + 20 * 44 + 44 * 60)
    assert [place.offset for place in places] == [0, *np.cumsum([place.length for place in places])[:-1].tolist()]
