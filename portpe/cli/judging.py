"""A bundle judged for people: progress, the table, and the reports on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portpe.cli.progress import progress
from portpe.errors import SpecError

if TYPE_CHECKING:
    from portpe.bundle import Bundle
    from portpe.parity import Report


def judge(bundle: Bundle, title: str, **settings: Any) -> Report:
    """Run the parity matrix with progress, and print its table. ``settings`` are those of ``parity.check``."""
    from portpe.parity import check
    from portpe.report.console import console
    from portpe.report.terminal import print_report

    with progress(f"checking {title}") as step:
        report = check(bundle, progress=step, **settings)
    print_report(console(), report, title)
    return report


def write_reports(report: Report, bundle: Bundle, elsewhere: Mapping[str, Path] | None = None) -> list[Path]:
    """Write report.json, report.xml and, where jinja2 is, report.html into the bundle.

    Args:
        report: of a parity run.
        bundle: the bundle that was run.
        elsewhere: further places, by ``json``, ``xml`` and ``html``.

    Returns:
        The file to read first, then those elsewhere.

    Raises:
        SpecError: a place cannot be written, or ``html`` is asked for without jinja2.
    """
    from portpe.report import html, json, junit

    places = dict(elsewhere or {})
    texts = {"json": json.to_json(report), "xml": junit.to_xml(report)}
    if "html" in places or html.available():
        texts["html"] = html.to_html(report, bundle.manifest)
    for kind, text in texts.items():
        for place in (bundle.path / f"report.{kind}", places.get(kind)):
            if place is not None:
                _write(place, text)
    return [bundle.path / ("report.html" if "html" in texts else "report.json"), *places.values()]


def _write(place: Path, text: str) -> None:
    """Write beside the target and exchange, so that no half-written report is left."""
    beside = place.with_name(f".{place.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(place)
    except OSError as error:
        raise SpecError(f"report {place} cannot be written: {error.strerror}") from None
    finally:
        if beside.parent.is_dir():
            beside.unlink(missing_ok=True)
