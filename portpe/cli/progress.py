"""Progress of long work: a spinner on a terminal, plain lines elsewhere.

The plain lines go to stdout: stderr is kept for the one line that tells of bad input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Say that ``what`` is under way; call the result with each step's name."""
    from portpe.report.console import console

    out = console(stderr=True)
    if not out.is_terminal:
        print(what, flush=True)
        yield lambda step: print(f"  {step}", flush=True)
        return
    with out.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")
