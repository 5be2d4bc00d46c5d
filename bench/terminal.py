"""A bench on the terminal: limits, one table a case, overheads, costs, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from portpe.bench.result import CaseResult, LeftOut, Report, Result, Timing

COLUMNS = ("", "ms", "quartiles", "CPU ms", "of limit", "of gemv", "ratio", "95 %", "numbers")


def print_report(out: Console, report: Report) -> None:
    """Print everything that a reader of the JSON would look for first."""
    subject, machine = report.subject, report.machine
    heads = f"{subject['num_heads']}/{subject['num_kv_heads']} heads of {subject['head_dim']}"
    out.print(f"{subject['name']}: hidden {subject['hidden_size']}, {heads}, {subject['dtype']}, batch 1", style="bold")
    load = ", ".join(f"{one:.1f}" for one in machine["load_average"] or [])
    out.print(f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; load {load or 'unknown'}")
    out.print(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    settings = report.settings
    out.print(
        f"{settings['threads']} thread(s); ratios and fractions by {settings['clock']} time; {pages_of(machine)}\n"
    )
    out.print(_limits(report))
    for case in report.cases:
        out.print()
        out.print(_heading(case), style="bold")
        out.print(_case(case))
    _print_costs(out, report)
    for one in report.competitors:
        if not one.usable:
            out.print(f"not here: {one.name}: {one.reason}", style="yellow")
    for line in _left_out(report.left_out):
        out.print(line, style="yellow")
    for note in report.notes:
        out.print(f"note: {note}")
    for case, result in report.wrong:
        out.print(f"WRONG: {wrong(case, result)}", style="bold red")


def wrong(case: CaseResult, result: Result) -> str:
    """A wrong output in words."""
    twin = "" if result.encoded else " without the encoding"
    return (
        f"{result.competitor}{twin} in {case.name}: error {result.max_abs:.1e}, {result.share_of_bound:.0f} times the "
        "bound; it is not ranked"
    )


def pages_of(machine: dict[str, Any]) -> str:
    """The pages of memory in words."""
    kernel = machine["transparent_hugepage"]
    return f"{machine['pages']} pages" + (f" (transparent_hugepage {kernel})" if kernel else "")


def milliseconds(seconds: float) -> str:
    """Three or more digits: 2.31, 23.1, 231, 2310."""
    value = seconds * 1e3
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _heading(case: CaseResult) -> str:
    limit = f"{case.flops / 1e9:.1f} GFLOP" if case.phase == "prefill" else f"{case.bytes_read / 1e6:.0f} MB"
    least = f"at least {milliseconds(case.limit_seconds)} ms by {case.limit}"
    return f"{case.name}: {limit}, {least}; {case.rounds} rounds; ratios to {case.baseline}"


def _limits(report: Report) -> Table:
    table = _table(("limit", "median", "quartiles", "unit", "by"), ("median", "quartiles"))
    for name, limit in report.limits.items():
        digits = [f"{limit[key] / 1e9:.1f}" for key in ("median", "q1", "q3")]
        table.add_row(name, digits[0], f"{digits[1]} - {digits[2]}", f"G{limit['unit']}", limit["method"])
    return table


def _case(case: CaseResult) -> Table:
    table = _table(COLUMNS, COLUMNS[1:8])
    overhead = {one.competitor: one for one in case.overhead}
    for result in case.ranked():
        table.add_row(*_cells(result), style=None if result.peer else "bold")
    if overhead:
        table.add_row("overhead of the encoding:", style="dim")
    for name, one in overhead.items():
        table.add_row(f"  {name}", *[""] * 5, f"{one.median:+.1%}", f"{one.low:+.1%} - {one.high:+.1%}")
    return table


def _cells(result: Result) -> tuple[str, ...]:
    assert result.wall is not None
    assert result.cpu is not None
    assert result.ratio is not None
    ratio = result.ratio
    return (
        result.competitor,
        milliseconds(result.wall.median),
        f"{milliseconds(result.wall.q1)} - {milliseconds(result.wall.q3)}",
        milliseconds(result.cpu.median),
        f"{result.fraction_of_limit:.2f}",
        f"{result.fraction_of_gemv:.2f}" if result.fraction_of_gemv is not None else "",
        f"{ratio.median:.2f}",
        f"{ratio.low:.2f} - {ratio.high:.2f}",
        result.verdict,
    )


def _print_costs(out: Console, report: Report) -> None:
    for title, timings in (
        ("export", report.export),
        ("whole processes, a tiny layer", report.processes),
        ("imports, the interpreter's start in them", report.imports),
    ):
        if timings:
            out.print()
            out.print(title, style="bold")
            out.print(_timings(timings))
    if report.memory:
        out.print()
        out.print("peak memory, a process each", style="bold")
        table = _table(("", "case", "after imports MB", "peak MB"), ("after imports MB", "peak MB"))
        for one in report.memory:
            table.add_row(one.competitor, one.case, f"{one.imported_bytes / 1e6:.0f}", f"{one.peak_bytes / 1e6:.0f}")
        out.print(table)
    out.print()


def _timings(timings: Iterable[Timing]) -> Table:
    table = _table(("", "ms", "quartiles", "CPU ms", "nodes", "kB"), ("ms", "quartiles", "CPU ms", "nodes", "kB"))
    for one in timings:
        table.add_row(
            one.name,
            milliseconds(one.wall.median),
            f"{milliseconds(one.wall.q1)} - {milliseconds(one.wall.q3)}",
            milliseconds(one.cpu.median) if one.cpu else "-",
            str(one.nodes) if one.nodes else "",
            f"{one.graph_bytes / 1e3:.0f}" if one.graph_bytes else "",
        )
    return table


def _left_out(left_out: Iterable[LeftOut]) -> list[str]:
    """One line a competitor and reason, its cases together."""
    lines: dict[tuple[str, str], list[str]] = {}
    for one in left_out:
        lines.setdefault((one.competitor or "every competitor", one.reason), []).append(one.case or "every case")
    return [f"left out: {name}, {', '.join(cases)}: {reason}" for (name, reason), cases in lines.items()]


def _table(columns: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table
