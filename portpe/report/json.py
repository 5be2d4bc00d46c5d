"""A parity report as JSON, under the keys that its readers rely on."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portpe.parity import Report

CHECK_KEYS = (
    *("runtime", "provider", "optimization", "form", "dtype", "case", "stage"),
    *("max_abs", "max_ulp", "bound", "first_position", "passed"),
)


def to_dict(report: Report) -> dict[str, Any]:
    """``passed``, ``checks``, ``unavailable`` and ``versions`` as plain data."""
    return {
        "passed": report.passed,
        "checks": [{key: _plain(getattr(check, key)) for key in CHECK_KEYS} for check in report.checks],
        "unavailable": [{"runtime": one.runtime, "reason": one.reason} for one in report.unavailable],
        "versions": dict(report.versions),
    }


def to_json(report: Report) -> str:
    """``to_dict`` as indented JSON with a final newline; strict: NaN and infinity become null."""
    return json.dumps(to_dict(report), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
