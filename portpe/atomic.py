"""A folder that appears whole or not at all: written beside its place, then exchanged with what stands there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from portpe.errors import SpecError

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # darwin sys/stdio.h


@contextlib.contextmanager
def replaced_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """A new folder to write into; when the block ends without an error it takes the place of ``target``.

    A killed process leaves what stood at ``target`` before, or the new folder, never a mixture. On an error nothing
    is left. With ``replace`` False a ``target`` that appears meanwhile is not touched.

    Raises:
        SpecError: the place cannot be written (read-only, under a file, disk full); one line.
    """
    target = Path(os.path.realpath(target))
    staging = target.parent / f".{target.name}.portpe-new-{os.getpid()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        recover(target)
        _sweep(target)
        staging.mkdir()
    except OSError as error:
        raise SpecError(f"output {target} cannot be written: {_reason(error)}") from None
    try:
        yield staging
        _flush(staging)
        if replace and target.exists():
            _exchange(staging, target)
        else:
            os.rename(staging, target)
        _flush_entry(target.parent)
    except OSError as error:
        raise SpecError(f"output {target} cannot be written: {_reason(error)}") from None
    except SafetensorError as error:  # its writer reports the system's errors under its own type
        raise SpecError(f"output {target} cannot be written: {' '.join(str(error).split())}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def created_mode() -> int:
    """The mode that the process' umask gives a new file; safetensors and mkstemp keep theirs to one user."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def recover(target: Path) -> None:
    """Finish an exchange by two renames that was cut between them: put the old folder back."""
    target = Path(os.path.realpath(target))
    aside = _aside(target)
    if aside.is_dir():
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, target)


def _exchange(new: Path, target: Path) -> None:
    """Swap two folders in one step where the system can; ``new`` then holds the old one."""
    if not _swap(new, target):
        os.rename(target, _aside(target))
        os.rename(new, target)
        shutil.rmtree(_aside(target), ignore_errors=True)


def _swap(first: Path, second: Path) -> bool:
    """Exchange two names atomically. False where the system or its file system has no such call."""
    if sys.platform not in ("linux", "darwin"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    one, two = os.fsencode(first), os.fsencode(second)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        status = libc.renameat2(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        status = libc.renamex_np(one, two, _RENAME_SWAP)
    else:
        return False
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code))


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.portpe-old"


def _sweep(target: Path) -> None:
    """Remove what killed writers of the same target left beside it."""
    for stale in target.parent.glob(f".{target.name}.portpe-new-*"):
        pid = stale.name.rpartition("-")[2]
        if not pid.isdigit() or int(pid) == os.getpid() or not _alive(int(pid)):
            shutil.rmtree(stale, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _flush(folder: Path) -> None:
    """Bring the bytes to disk before the name points at them, under the mode of a plainly written file."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(created_mode())
        _flush_entry(path)


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    """The system's word for it, and what to do."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a part of its path is a file; choose another place"
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return f"{os.strerror(error.errno or 0)}; free some space or choose another place"
    return f"{os.strerror(error.errno) if error.errno else error}; choose a place that can be written"
