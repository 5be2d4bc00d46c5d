"""The one console that commands print to."""

from __future__ import annotations

from rich.console import Console

WIDTH_OF_A_LOG = 160


def console(*, stderr: bool = False) -> Console:
    """A console without markup (names and messages may hold brackets); wide where it is no terminal."""
    made = Console(markup=False, highlight=False, emoji=False, soft_wrap=False, stderr=stderr)
    if not made.is_terminal:
        made.width = max(made.width, WIDTH_OF_A_LOG)
    return made
