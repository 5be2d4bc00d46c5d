"""``portpe diff``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portpe.cli.options import Context, IgnoreKey, Layer, Part

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
    from rich.table import Table

    from portpe import config
    from portpe.cli.spec_difference import THRESHOLDS, differences
    from portpe.report.console import console

    def spec_of(source: str) -> Any:
        keys = tuple(ignore_key or ())
        return config.read(source, layer=layer, part=part, ignore_keys=keys, context=context).spec

    found = differences(spec_of(a), spec_of(b))
    out = console()
    if not found:
        out.print(f"no difference: layer {layer} of {a} and of {b} are the same spec")
        return 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("what", a, b, "matters from", *(f"seen in {dtype}" for dtype in THRESHOLDS)):
        table.add_column(title, overflow="fold")
    for row in found:
        table.add_row(row.name, row.a, row.b, row.matters, *(row.seen.get(dtype, "") for dtype in THRESHOLDS))
    out.print(table)
    if any(row.numbers for row in found):
        out.print("the numbers differ")
        return 1
    out.print("the specs differ, their numbers do not")
    return 0
