"""``portpe runtimes``."""

from __future__ import annotations


def runtimes() -> int:
    """List what is usable here: version and device, or the reason why not."""
    from rich.table import Table

    from portpe.report.console import console
    from portpe.runtimes import base

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("runtime", "version", "device", "reason why not"):
        table.add_column(title, overflow="fold")
    for name in base.names():
        found = base.get(name).availability()
        table.add_row(
            name, found.version or "-", found.device or "-", "" if found.usable else found.reason or "unknown"
        )
    console().print(table)
    return 0
