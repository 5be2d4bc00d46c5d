"""A parity report as JSON, under the keys that its readers rely on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portpe.parity import Check, Report


def to_json(report: Report) -> str:
    """The report as indented JSON with a final newline; strict: NaN and infinity become null."""
    data: dict[str, Any] = {
        "passed": report.passed,
        "checks": [_check(check) for check in report.checks],
        "unavailable": [asdict(one) for one in report.unavailable],
        "versions": report.versions,
    }
    if report.quantization:
        data["quantization"] = report.quantization
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _check(check: Check) -> dict[str, Any]:
    """Every field; ``problem`` only where there is one."""
    fields = asdict(check)
    if check.problem is None:
        del fields["problem"]
    return {key: None if _endless(value) else value for key, value in fields.items()}


def _endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
