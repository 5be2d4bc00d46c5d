"""A parity report on the terminal: one row a configuration, with the bound beside the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from portpe.report.summary import Group, failures, groups, number, quantization_cost, sentence, share, verdict

if TYPE_CHECKING:
    from portpe.parity import Report

COLUMNS = (
    *("runtime", "provider", "optimization", "form", "type", "checks"),
    *("closest to its bound", "error", "bound", "used", ""),
)
NUMBERS = ("checks", "error", "bound", "used")
SHOWN = 20  # failing configurations told in words


def print_report(out: Console, report: Report, title: str) -> None:
    """Print the table, then each failure's first divergence, what quantisation costs, what is missing, the verdict."""
    found = groups(report)
    out.print(title, style="bold")
    if found:
        out.print(_table(found))
    failing = failures(found)
    for group, check in failing[:SHOWN]:
        out.print(f"{group.name}: first divergence: {sentence(check)}", style="red")
    if len(failing) > SHOWN:
        out.print(f"... and {len(failing) - SHOWN} more configurations that fail", style="red")
    for kind, error in report.quantization.items():
        out.print(quantization_cost(kind, error))
    for one in report.unavailable:
        out.print(f"not run: {one.runtime}: {one.reason}", style="yellow")
    out.print(verdict(report), style="bold green" if report.passed else "bold red")


def _table(found: list[Group]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for group in found:
        table.add_row(*_cells(group), style="red" if group.failed else None)
    return table


def _cells(group: Group) -> tuple[str, ...]:
    worst = group.worst
    return (
        group.runtime,
        group.provider.removesuffix("ExecutionProvider") or "-",
        group.optimization or "-",
        group.form,
        group.dtype,
        str(len(group.checks)),
        f"{worst.stage} in {worst.case}",
        number(worst.max_abs),
        number(worst.bound),
        share(worst),
        f"{len(group.failed)} failed" if group.failed else "ok",
    )
