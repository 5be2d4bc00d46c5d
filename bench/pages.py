"""Pages of memory: huge ones for everybody, so that nobody's numbers depend on where the kernel put them.

numpy asks for huge pages for its large arrays, ONNX Runtime and torch do not. Where the kernel gives them to those who
ask (transparent_hugepage madvise, the default of most distributions), the latter read weights through pages of 4 KiB:
up to a third slower, and by 5 to 15 % different from one session to the next. glibc asks for all of malloc under a
tunable that it reads when a process starts.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from portpe.errors import SpecError

CHOICES = ("huge", "default")
VARIABLE, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FIRST_GLIBC = (2, 35)


def refusal() -> str | None:
    """Why no process here can have huge pages by the tunable; None where it can."""
    library, version = platform.libc_ver()
    if sys.platform != "linux" or library != "glibc":
        return "it takes Linux and glibc"
    if tuple(int(part) for part in version.split(".")[:2]) < FIRST_GLIBC:
        return f"it takes glibc 2.35, and here is {version}"
    if kernel() not in ("madvise", "always"):
        return f"transparent_hugepage is {kernel() or 'unknown'}"
    return None


def kernel() -> str | None:
    """To whom the kernel gives huge pages, as it says itself: always, madvise or never."""
    try:
        text = KERNEL.read_text(encoding="ascii")
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or None


def current(environment: Mapping[str, str]) -> str:
    """What a process with this environment has."""
    return "huge" if _value(environment) not in (None, "0") else "default"


def changed(environment: Mapping[str, str], asked: str | None, reason: str | None) -> dict[str, str] | None:
    """The environment to start again with; None where this one is right.

    Args:
        environment: of this process.
        asked: what the user asked for; None keeps what the environment says, and else takes huge pages.
        reason: ``refusal()``.

    Raises:
        SpecError: huge pages were asked for, and cannot be had.
    """
    if asked == "huge" and reason is not None:
        raise SpecError(f"pages must be default here, got huge: {reason}")
    if asked is None:
        asked = "huge" if _value(environment) is None and reason is None else current(environment)
    if current(environment) == asked:
        return None
    others = [one for one in environment.get(VARIABLE, "").split(":") if one and not one.startswith(f"{TUNABLE}=")]
    return {**environment, VARIABLE: ":".join([*others, f"{TUNABLE}={int(asked == 'huge')}"])}


def start_again(asked: str | None) -> None:
    """Put a process with the pages that were asked for in this one's place, if they differ.

    Called before numpy, torch or a runtime is loaded: what they did would be done twice. Raises SpecError.
    """
    environment = changed(os.environ, asked, refusal())
    if environment is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _value(environment: Mapping[str, str]) -> str | None:
    """What the tunable is set to; the last word counts."""
    found = None
    for one in environment.get(VARIABLE, "").split(":"):
        name, _, value = one.partition("=")
        if name == TUNABLE:
            found = value
    return found
