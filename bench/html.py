"""A bench as one HTML file that needs nothing beside it."""

from __future__ import annotations

import importlib.util
from importlib.resources import files

from portpe.bench import plots
from portpe.bench.result import Report
from portpe.bench.terminal import milliseconds, pages_of, wrong
from portpe.errors import SpecError


def to_html(report: Report) -> str:
    """The page, with the plots where matplotlib is installed. Raises SpecError without jinja2."""
    if importlib.util.find_spec("jinja2") is None:
        raise SpecError("an HTML report needs jinja2; pip install 'portpe[report]'")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"ms": milliseconds, "mb": _megabytes, "giga": _giga, "pages": pages_of}
    template = environment.from_string(files("portpe.bench").joinpath("bench.html.j2").read_text(encoding="utf-8"))
    pictures = plots.svgs(report) if importlib.util.find_spec("matplotlib") else {}
    return template.render(report=report, pictures=pictures, wrong=[wrong(*one) for one in report.wrong])


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.0f}"


def _giga(count: float) -> str:
    return f"{count / 1e9:.1f}"
