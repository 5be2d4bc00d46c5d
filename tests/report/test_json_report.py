"""report.json has exactly the keys that its readers rely on, and is strict JSON."""

from __future__ import annotations

import dataclasses
import json

from portpe.report.json import to_json

KEYS = {
    *("runtime", "provider", "optimization", "form", "dtype", "case", "stage"),
    *("max_abs", "max_ulp", "bound", "first_position", "passed"),
}


def _strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_keys_and_values(failing):
    data = _strict(to_json(failing))
    assert set(data) == {"passed", "checks", "unavailable", "versions"}
    assert all(set(check) - {"problem"} == KEYS for check in data["checks"])
    assert all(set(check) == KEYS for check in data["checks"] if check["passed"])
    assert data["passed"] is False
    assert data["unavailable"] == [
        {"runtime": "onnx-reference", "reason": "onnx is not installed: pip install portpe[onnx] <& co>"}
    ]
    assert data["versions"] == {"portpe": "0.1.0", "onnxruntime": "1.32.0"}
    rotated = next(c for c in data["checks"] if c["stage"] == "k_rotated" and not c["passed"])
    assert (rotated["max_abs"], rotated["bound"], rotated["first_position"]) == (3e-2, 2e-6, 131071)


def test_nan_becomes_null(failing):
    odd = dataclasses.replace(failing.checks[0], max_abs=float("nan"), bound=float("inf"), passed=False)
    first = _strict(to_json(dataclasses.replace(failing, checks=(odd,))))["checks"][0]
    assert (first["max_abs"], first["bound"]) == (None, None)


def test_passing(passing):
    assert _strict(to_json(passing))["passed"] is True
