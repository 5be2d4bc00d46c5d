"""``portpe bench``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portpe.cli.options import Context, IgnoreKey, Layer, Model, Part, Regime, RuntimeNames, Source, source_of
from portpe.cli.progress import progress
from portpe.errors import SpecError

if TYPE_CHECKING:
    from portpe.bench.result import Report
    from portpe.bench.settings import Settings
    from portpe.bundle import Bundle


def bench(
    process: typer.Context,
    source: Source = None,
    model: Model = None,
    layer: Layer = 0,
    part: Part = None,
    context: Context = None,
    regime: Regime = None,
    ignore_key: IgnoreKey = None,
    runtime: RuntimeNames = None,
    form: Annotated[
        list[str] | None,
        typer.Option("--form", metavar="F", help="Only this graph form; may be repeated. [default: all that fit]"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="D", help="The type. [default: a bundle's first, else float32]")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="N,N,...", help="Tokens. [default: 128,512,2048,8192,32768]")
    ] = None,
    phase: Annotated[
        list[str] | None,
        typer.Option("--phase", metavar="P", help="Only decode, or prefill; may be repeated. [default: both]"),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="Threads of every competitor.")] = 1,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="Rounds a case. [default: what the budget allows]")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="S", help="Seconds a case may take, about. [default: 180]")
    ] = None,
    pages: Annotated[
        str | None,
        typer.Option("--pages", metavar="huge|default", help="Pages of memory. [default: huge, where they can be had]"),
    ] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Only portpe's own.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this competitor; may be repeated.")
    ] = None,
    no_processes: Annotated[
        bool, typer.Option("--no-processes", help="Calls alone: no exports, imports, or memory of processes.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two short lengths, few rounds: a look.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="F", help="Write the report as JSON.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="F", help="Write an HTML page.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="DIR", help="Write the plots as PNG here.")] = None,
) -> int:
    """Measure a layer's forms against each other, their peers, and the limits of this machine."""
    name = source_of(source, model)
    _with_pages(pages, own_process=bool(process.obj))
    _keep_to(threads)  # before numpy and torch are loaded: their threads are set by then
    from portpe.bench import output
    from portpe.bench.run import bench as measure
    from portpe.report.console import console

    output.check_places(json_file, html_file, plot)
    given: dict[str, object] = {"phases": phase, "rounds": rounds, "budget": budget, "only": only}
    given["processes"] = False if no_processes else None
    settings = _settings(lengths, threads, given, quick=quick, runtimes=runtime, peers=not no_peers)
    settings.check()
    with tempfile.TemporaryDirectory(prefix="portpe-bench-") as work, progress(f"measuring {name}") as step:
        where = {"layer": layer, "part": part, "context": context, "regime": regime}
        bundle = _bundle(name, Path(work), form, dtype, keys=ignore_key, **where)
        report = measure(bundle, settings, Path(work), dtype=dtype, say=step)
    output.print_report(console(), report)
    for file in output.write(report, json_file=json_file, html_file=html_file, plots_folder=plot):
        print(f"report: {file}")
    return 3 if _missing(report, settings) else report.status


def _with_pages(asked: str | None, *, own_process: bool) -> None:
    """Start again where that gives other pages. Raises SpecError for what is no choice, or cannot be had."""
    from portpe.bench import pages

    if asked is not None and asked not in pages.CHOICES:
        raise SpecError(f"pages must be one of {', '.join(pages.CHOICES)}, got {asked!r}")
    if own_process:
        pages.start_again(asked)


def _keep_to(threads: int) -> None:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[variable] = str(threads)


def _settings(
    lengths: str | None,
    threads: int,
    options: Mapping[str, object],
    *,
    quick: bool,
    runtimes: list[str] | None,
    peers: bool,
) -> Settings:
    """What the options say, None what the defaults are. Raises SpecError for lengths that are no numbers."""
    import dataclasses

    from portpe.bench import settings

    base = settings.quick(threads) if quick else settings.Settings(threads=threads)
    given: dict[str, object] = {"runtimes": tuple(runtimes or ()), "peers": peers}
    if lengths is not None:
        try:
            given["lengths"] = tuple(int(one) for one in lengths.split(","))
        except ValueError:
            raise SpecError(f"lengths must be whole numbers with commas between, got {lengths!r}") from None
    for name, value in options.items():
        if value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(base, **given)  # type: ignore[arg-type]


def _bundle(
    name: str,
    work: Path,
    forms: list[str] | None,
    dtype: str | None,
    *,
    keys: list[str] | None,
    **where: Any,
) -> Bundle:
    """The bundle at ``name`` with the forms asked for, or one made of the source for the occasion.

    ``where`` is what both ``config.read`` and ``export`` take: layer, part, context, regime. Raises SpecError.
    """
    import dataclasses

    from portpe import bundle as bundles
    from portpe import config
    from portpe.bench.run import check
    from portpe.exporters.onnx import FORMS
    from portpe.exporting import export
    from portpe.interface import dtype_name

    for form in forms or ():
        if form not in FORMS:
            raise SpecError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if bundles.is_bundle(Path(name)):
        opened = bundles.Bundle.open(name)
        if forms is None:
            return opened
        for form in forms:
            if form not in opened.forms:
                raise SpecError(f"form {form} is not in the bundle, which has {', '.join(opened.forms)}")
        return dataclasses.replace(opened, manifest={**opened.manifest, "forms": list(forms)})
    kind = dtype_name(dtype or "float32")
    where["ignore_keys"] = tuple(keys or ())
    spec = config.read(name, **where).spec
    check(spec)
    able = [form for form, row in FORMS.items() if row.carries(spec) is None and kind in row.dtypes]
    return export(name, work / "bundle", forms=forms or able, dtypes=(kind,), golden=False, **where)


def _missing(report: Report, settings: Settings) -> bool:
    """Whether a runtime that was asked for by name is not here."""
    usable = {one.runtime for one in report.competitors if one.usable and not one.peer}
    return any(name not in usable for name in settings.runtimes)
