"""The terminal table shows the bound beside the error, and tells a failure by its first divergence."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from portpe.report.terminal import print_report


def _printed(report) -> list[str]:
    out = Console(file=io.StringIO(), width=160, markup=False, highlight=False)
    print_report(out, report, "tiny, layer 3")
    return out.file.getvalue().splitlines()


def test_failure_is_told_by_the_earliest_stage(failing):
    lines = _printed(failing)
    told = next(line for line in lines if "first divergence" in line)
    assert told == (
        "onnxruntime CPU all portable float32: first divergence: "
        "k_rotated in decode_131071, first at position 131071: error 3.0e-02, bound 2.0e-06"
    )
    assert lines[-1] == "3 of 13 checks failed, in 2 configurations"


def test_of_one_stage_the_first_position_is_told_not_the_worst(failing):
    worst = next(check for check in failing.checks if check.stage == "k_rotated" and not check.passed)
    earlier = dataclasses.replace(worst, case="prefill", first_position=1, max_abs=worst.max_abs / 1000)
    report = dataclasses.replace(failing, checks=(*failing.checks, earlier))
    assert report.first_divergence == earlier
    told = next(line for line in _printed(report) if "first divergence" in line)
    assert "k_rotated in prefill, first at position 1: error 3.0e-05" in told


def test_error_stands_beside_its_bound(passing):
    row = next(line for line in _printed(passing) if line.startswith("onnxruntime"))
    assert row.split() == [
        *("onnxruntime", "CPU", "all", "portable", "float32", "8", "output", "in", "prefill"),
        *("1.0e-07", "1.0e-06", "10%", "ok"),
    ]


def test_nan_is_the_worst(failing):
    row = next(line for line in _printed(failing) if line.startswith("onnxruntime"))
    assert row.split()[6:] == ["scores", "in", "prefill", "-", "-", "-", "3", "failed"]


def test_missing_runtime_and_its_brackets(failing):
    assert "not run: onnx-reference: onnx is not installed: pip install portpe[onnx] <& co>" in _printed(failing)


def test_passing_verdict(passing):
    assert _printed(passing)[-1] == "all 8 checks passed, in 1 configuration"
