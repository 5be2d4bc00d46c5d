"""Parity: every runtime against the truth, stage by stage, within a bound for each."""

from __future__ import annotations

from portpe.parity.matrix import check
from portpe.parity.outcome import Check, Report, Unavailable

__all__ = ["Check", "Report", "Unavailable", "check"]
