"""A folder is written whole or not at all, whatever happens on the way."""

import os
import signal
import subprocess
import sys
import time

import pytest

from portpe import atomic
from portpe.errors import SpecError


def _tree(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _write(target, text, *, replace=False):
    with atomic.replaced_folder(target, replace=replace) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a.txt").write_text(text)


def test_new_folder_appears_alone(tmp_path):
    _write(tmp_path / "deep" / "out", "one")
    assert (tmp_path / "deep" / "out" / "sub" / "a.txt").read_text() == "one"
    assert _tree(tmp_path) == {"deep", "deep/out", "deep/out/sub", "deep/out/sub/a.txt"}


def test_replaced_folder_holds_the_new_files_only(tmp_path):
    target = tmp_path / "out"
    _write(target, "one")
    (target / "old.txt").write_text("old")
    _write(target, "two", replace=True)
    assert _tree(tmp_path) == {"out", "out/sub", "out/sub/a.txt"}
    assert (target / "sub" / "a.txt").read_text() == "two"


@pytest.mark.parametrize("error", [ValueError("no"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_what_was_there(tmp_path, error):
    target = tmp_path / "out"
    _write(target, "one")

    def half_written():
        with atomic.replaced_folder(target, replace=True) as folder:
            (folder / "a.txt").write_text("half")
            raise error

    with pytest.raises((type(error), SpecError)):
        half_written()
    assert _tree(tmp_path) == {"out", "out/sub", "out/sub/a.txt"}


def test_the_systems_error_becomes_one_line(tmp_path):
    with (
        pytest.raises(SpecError, match=r"^output .*out cannot be written: No space left on device; free some space"),
        atomic.replaced_folder(tmp_path / "out", replace=False),
    ):
        raise OSError(28, "No space left on device")


def test_a_place_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match=r"cannot be written: a part of its path is a file"):
        _write(tmp_path / "file" / "out", "one")


def test_a_link_to_a_bundle_keeps_being_a_link(tmp_path):
    _write(tmp_path / "real", "one")
    (tmp_path / "link").symlink_to("real")
    _write(tmp_path / "link", "two", replace=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "sub" / "a.txt").read_text() == "two"


def test_the_exchange_is_one_step_here(tmp_path):
    """Linux and macOS swap two names in one call; both names exist at every moment."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert atomic._swap(tmp_path / "a", tmp_path / "b")
    assert _tree(tmp_path) == {"a", "b", "a/b", "b/a"}


def test_two_renames_where_there_is_no_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_swap", lambda _first, _second: False)
    _write(tmp_path / "out", "one")
    _write(tmp_path / "out", "two", replace=True)
    assert _tree(tmp_path) == {"out", "out/sub", "out/sub/a.txt"}
    assert (tmp_path / "out" / "sub" / "a.txt").read_text() == "two"


def test_two_renames_cut_between_them_are_undone_at_the_next_open(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_swap", lambda _first, _second: False)
    target = tmp_path / "out"
    _write(target, "one")
    calls = []

    def rename(source, place):
        calls.append(place)
        if len(calls) == 2:
            raise KeyboardInterrupt  # as a kill would: nothing after this line runs but clean-up
        os.replace(source, place)

    monkeypatch.setattr(atomic.os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        _write(target, "two", replace=True)
    assert not target.exists()
    monkeypatch.setattr(atomic.os, "rename", os.replace)
    atomic.recover(target)
    assert (target / "sub" / "a.txt").read_text() == "one"
    assert _tree(tmp_path) == {"out", "out/sub", "out/sub/a.txt"}


KILLED = """
import sys, time, pathlib
from portpe.atomic import replaced_folder
with replaced_folder(pathlib.Path(sys.argv[1]), replace=True) as folder:
    (folder / "a.txt").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_writer_leaves_the_old_folder_and_the_next_one_sweeps(tmp_path):
    target = tmp_path / "out"
    _write(target, "one")
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert (target / "sub" / "a.txt").read_text() == "one"
    assert len(list(tmp_path.iterdir())) == 2  # the half-written folder beside it, under another name
    _write(target, "two", replace=True)
    assert _tree(tmp_path) == {"out", "out/sub", "out/sub/a.txt"}


def test_a_running_writer_is_not_swept(tmp_path):
    target = tmp_path / "out"
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    theirs = tmp_path / f".out.portpe-new-{child.pid}"
    theirs.mkdir()
    try:
        _write(target, "one")
        assert theirs.is_dir()
    finally:
        child.kill()
        child.wait()
    time.sleep(0.01)
    _write(target, "two", replace=True)
    assert not theirs.exists()


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_mode_that_the_umask_gives(tmp_path, mask, mode):
    """A library that writes its files for one user alone must not make a copied bundle unreadable."""
    before = os.umask(mask)
    try:
        with atomic.replaced_folder(tmp_path / "out", replace=False) as folder:
            (folder / "own.bin").write_bytes(b"x")
            (folder / "own.bin").chmod(0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "out" / "own.bin").stat().st_mode & 0o777 == mode
