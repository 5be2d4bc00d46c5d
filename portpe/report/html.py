"""A parity report as one HTML file that needs nothing beside it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from portpe.errors import SpecError
from portpe.report.plots import margins
from portpe.report.summary import (
    cases,
    failures,
    groups,
    number,
    quantization_cost,
    sentence,
    share,
    stages,
    used,
    verdict,
)

if TYPE_CHECKING:
    from portpe.parity import Report


def available() -> bool:
    """Whether jinja2 is installed."""
    return importlib.util.find_spec("jinja2") is not None


def to_html(report: Report, manifest: Mapping[str, Any]) -> str:
    """The report with the bundle's identity from its manifest.

    Raises:
        SpecError: jinja2 is not installed.
    """
    if not available():
        raise SpecError("an HTML report needs jinja2; install portpe[report]")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "shade": _shade}
    template = environment.from_string(files("portpe.report").joinpath("parity.html.j2").read_text(encoding="utf-8"))
    found = groups(report)
    return template.render(
        report=report,
        manifest=manifest,
        verdict=verdict(report),
        groups=found,
        cases=cases(report),
        stages=stages(report.checks),
        failures=failures(found),
        sentence=sentence,
        used=used,
        share=share,
        cost=quantization_cost,
        plot=margins(report),
    )


def _shade(share: float) -> str:
    """The class of a cell by the share of its bound that an error takes."""
    if share > 1:
        return "failed"
    return "near" if share > 0.5 else "half" if share > 0.1 else "far"
