"""A parity report as JSON, under the keys that its readers rely on."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portpe.parity.outcome import Report


def to_json(report: Report) -> str:
    """The report as indented JSON with a final newline; strict: NaN and infinity become null."""
    return json.dumps(_strict(report.to_dict()), indent=2, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_strict(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
