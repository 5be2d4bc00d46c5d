"""``portpe parity``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portpe.cli.judging import judge, write_reports
from portpe.cli.options import Provider, RuntimeNames
from portpe.errors import SpecError

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
    quick: Annotated[bool, typer.Option("--quick", help="Six cases, at the last optimisation level alone.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every head and row of each stage, not sampled ones.")] = False,
    provider: Provider = None,
) -> int:
    """Run a bundle everywhere and compare each stage with the truth, within a bound for each."""
    if quick and full:
        raise SpecError("quick and full exclude each other, got both")
    given = (("json", json_file), ("xml", junit_file), ("html", html_file))
    places = {kind: place for kind, place in given if place is not None}
    _check_places(places)
    from portpe import bundle as bundles

    opened = bundles.open_all(bundle)
    if len(opened) > 1 and (places or graph is not None):
        raise SpecError(f"json, junit, html and graph need one layer, and {bundle} has {len(opened)}; give one of them")
    statuses = []
    for one in opened:
        report = judge(
            one,
            f"{one.manifest['source']['name']}, layer {one.layer}",
            runtimes=runtime or None,
            graph=graph,
            provider=provider,
            matrix="quick" if quick else "full" if full else "default",
        )
        for file in write_reports(report, one, places):
            print(f"report: {file}")
        statuses.append(report.status)
    return max(statuses, key=(0, 1, 3).index)


def _check_places(places: dict[str, Path]) -> None:
    """Refuse before the work what would fail after it. Raises SpecError."""
    from portpe.report import html

    for place in places.values():
        if not place.parent.is_dir():
            raise SpecError(f"report {place} must lie in an existing folder, got {place.parent}")
        if place.is_dir():
            raise SpecError(f"report {place} must be a file, got a folder")
    if "html" in places and not html.available():
        raise SpecError("html needs jinja2, which is not installed; pip install 'portpe[report]'")
