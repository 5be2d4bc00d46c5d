"""``portpe diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from portpe.cli.options import Context, IgnoreKey, Layer, Part, tell

if TYPE_CHECKING:
    from rich.table import Table

    from portpe.diff import Comparison

GIVEN = {"none": "", "same": " (same tensors)", "other": " (other tensors)"}  # where trained numbers decide
Source = Annotated[str, typer.Argument(show_default=False, help="A config, spec, checkpoint, bundle or preset.")]


def diff(
    a: Source,
    b: Source,
    layer: Layer = 0,
    part: Part = None,
    context: Context = None,
    ignore_key: IgnoreKey = None,
) -> int:
    """Compare two encodings: what differs, and from which position it matters. Status 1 if numbers differ."""
    from portpe import config
    from portpe.diff import compare
    from portpe.report.console import console

    keys = tuple(ignore_key or ())
    readings = [config.read(one, layer, part, ignore_keys=keys, context=context) for one in (a, b)]
    tell(dict.fromkeys(line for reading in readings for line in reading.warnings))
    comparison = compare(readings[0].spec, readings[1].spec)
    out = console()
    if not comparison.differences:
        out.print(f"no difference: layer {layer} of {a} and of {b} are the same")
        return 0
    out.print(_table(comparison, a, b))
    if comparison.same_numbers:
        out.print(f"the same numbers at every position below {comparison.horizon:,}")
        return 0
    out.print("different numbers")
    return 1


def _table(comparison: Comparison, a: str, b: str) -> Table:
    """One row a field, with the first position that shows it in each type."""
    from rich.table import Table

    from portpe.diff import ROUNDOFF

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("what differs", no_wrap=True)
    for title in (a, b, *(f"seen in {dtype} from" for dtype in ROUNDOFF)):
        table.add_column(title, overflow="fold")
    for row in comparison.differences:
        seen = (f"{row.unit} {row.seen[dtype]}{GIVEN[row.tensors]}" if dtype in row.seen else "-" for dtype in ROUNDOFF)
        table.add_row(row.field, _text(row.left), _text(row.right), *seen)
    return table


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values, {value[0]:.6g} to {value[-1]:.6g}"
    return "-" if value is None else str(value)
