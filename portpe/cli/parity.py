"""``portpe parity``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portpe.cli.options import Provider, RuntimeNames
from portpe.cli.progress import progress
from portpe.errors import SpecError

if TYPE_CHECKING:
    from portpe.bundle import Bundle
    from portpe.parity import Report

OutputFile = Path | None


def parity(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder that portpe export made.")],
    runtime: RuntimeNames = None,
    graph: Annotated[
        OutputFile, typer.Option("--graph", metavar="FILE.onnx", help="Judge this graph in place of the bundle's.")
    ] = None,
    json_file: Annotated[
        OutputFile, typer.Option("--json", metavar="F", help="Write the report as JSON here too.")
    ] = None,
    junit_file: Annotated[OutputFile, typer.Option("--junit", metavar="F", help="Write JUnit XML here too.")] = None,
    html_file: Annotated[OutputFile, typer.Option("--html", metavar="F", help="Write an HTML page here too.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and one optimisation level.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every case.")] = False,
    provider: Provider = None,
) -> int:
    """Run a bundle everywhere and compare each stage with the truth, within a bound for each."""
    if quick and full:
        raise SpecError("quick and full exclude each other, got both")
    _check_places(json_file, junit_file, html_file)
    from portpe.bundle import Bundle
    from portpe.parity import check
    from portpe.report.console import console
    from portpe.report.terminal import print_report

    opened = Bundle.open(bundle)
    with progress(f"checking {bundle}") as step:
        report = check(
            opened,
            runtimes=runtime or None,
            graph=graph,
            provider=provider,
            matrix="quick" if quick else "full" if full else "default",
            progress=step,
        )
    print_report(console(), report, f"{opened.manifest['source']['name']}, layer {opened.layer}")
    for file in write_reports(report, opened, json_file=json_file, junit_file=junit_file, html_file=html_file):
        print(f"report: {file}")
    return report.status


def _check_places(json_file: OutputFile, junit_file: OutputFile, html_file: OutputFile) -> None:
    """Refuse before the work what would fail after it. Raises SpecError."""
    from portpe.report import html

    for place in (json_file, junit_file, html_file):
        if place is not None and not place.parent.is_dir():
            raise SpecError(f"report {place} must lie in an existing folder, got {place.parent}")
    if html_file is not None and not html.available():
        raise SpecError("html needs jinja2, which is not installed; pip install 'portpe[report]'")


def write_reports(
    report: Report,
    bundle: Bundle,
    *,
    json_file: OutputFile = None,
    junit_file: OutputFile = None,
    html_file: OutputFile = None,
) -> list[Path]:
    """Write the report into the bundle, and where it is asked for. HTML needs the extra ``report``.

    Returns:
        The files, the one to read first at the front.

    Raises:
        SpecError: a place cannot be written, or ``html_file`` is asked for without jinja2.
    """
    from portpe.report import html, json, junit

    texts = {"json": json.to_json(report), "xml": junit.to_xml(report)}
    if html_file is not None or html.available():
        texts["html"] = html.to_html(report, bundle.manifest)
    files = {bundle.path / f"report.{kind}": text for kind, text in texts.items()}
    for place, kind in ((json_file, "json"), (junit_file, "xml"), (html_file, "html")):
        if place is not None:
            files[place] = texts[kind]
    for place, text in files.items():
        _write(place, text)
    best = bundle.path / ("report.html" if "html" in texts else "report.json")
    return [best, *(place for place in (html_file, json_file, junit_file) if place is not None)]


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
