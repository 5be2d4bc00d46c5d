"""Layer: tests. Everybody measured has the same pages of memory, and the report says which."""

import json
import os
import platform
import subprocess
import sys

import pytest

from portpe.bench import pages
from portpe.errors import SpecError

HUGE = "glibc.malloc.hugetlb"
ABLE = pages.refusal() is None


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        (None, "default"),
        ("", "default"),
        (f"{HUGE}=1", "huge"),
        (f"{HUGE}=2", "huge"),
        (f"{HUGE}=0", "default"),
        (f"glibc.malloc.check=1:{HUGE}=1", "huge"),
        (f"{HUGE}=1:{HUGE}=0", "default"),
        ("glibc.malloc.hugetlb_other=1", "default"),
    ],
)
def test_an_environment_says_which_pages(variable, found):
    assert pages.current({} if variable is None else {"GLIBC_TUNABLES": variable}) == found


@pytest.mark.parametrize(
    ("variable", "asked", "refused", "becomes"),
    [
        (None, None, None, f"{HUGE}=1"),
        ("glibc.malloc.check=1", None, None, f"glibc.malloc.check=1:{HUGE}=1"),
        (f"{HUGE}=1", None, None, None),  # the process that was started again
        (f"{HUGE}=2", None, None, None),  # the user's own word
        (f"{HUGE}=0", None, None, None),
        (f"{HUGE}=0", "huge", None, f"{HUGE}=1"),
        (f"glibc.malloc.check=1:{HUGE}=1", "default", None, f"glibc.malloc.check=1:{HUGE}=0"),
        (None, "default", None, None),
        (None, None, "no glibc", None),
        (None, "default", "no glibc", None),
    ],
)
def test_a_process_starts_again_where_its_pages_are_others(variable, asked, refused, becomes):
    before = {"HOME": "x"} | ({} if variable is None else {"GLIBC_TUNABLES": variable})
    found = pages.changed(before, asked, refused)
    assert found == (None if becomes is None else {"HOME": "x", "GLIBC_TUNABLES": becomes})
    if found is not None:
        assert pages.changed(found, asked, refused) is None, "it would start again for ever"


def test_huge_pages_that_cannot_be_had_are_refused():
    with pytest.raises(SpecError, match="pages must be default here, got huge: it takes Linux and glibc"):
        pages.changed({}, "huge", "it takes Linux and glibc")


@pytest.mark.parametrize(
    ("library", "kernel", "reason"),
    [
        (("", ""), "always", "it takes Linux and glibc"),
        (("glibc", "2.31"), "always", "it takes glibc 2.35, and here is 2.31"),
        (("glibc", "2.36"), "never", "transparent_hugepage is never"),
        (("glibc", "2.36"), None, "transparent_hugepage is unknown"),
        (("glibc", "2.36"), "madvise", None),
        (("glibc", "3.0"), "always", None),
    ],
)
def test_where_they_can_be_had(library, kernel, reason, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    monkeypatch.setattr(pages, "kernel", lambda: kernel)
    assert pages.refusal() == reason


def test_the_kernels_word_stands_in_brackets(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "KERNEL", tmp_path / "enabled")
    assert pages.kernel() is None
    pages.KERNEL.write_text("always [madvise] never\n")
    assert pages.kernel() == "madvise"


@pytest.mark.skipif(not ABLE, reason="no huge pages by the tunable here")
@pytest.mark.parametrize(("asked", "share"), [("huge", (0.9, 1.0)), ("default", (0.0, 0.1))])
def test_a_new_process_really_has_them(asked, share):
    """The kernel's own count of huge pages, of memory from malloc, after the process put itself in its own place."""
    code = f"""
import ctypes, os, sys
from portpe.bench import pages
pages.start_again({asked!r})
size = 64 * 2**20
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
at = libc.malloc(size)
ctypes.memset(at, 1, size)
lines = open("/proc/self/smaps_rollup").read().splitlines()
huge = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
print(huge * 1024 / size, pages.current(os.environ), sys.argv[1:])
"""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", code, "a", "b c"], env=environment, capture_output=True, text=True, check=True
    )
    found, current, arguments = done.stdout.split(maxsplit=2)
    if pages.kernel() == "madvise":
        assert share[0] <= float(found) <= share[1] + 0.2
    assert (current, arguments.strip()) == (asked, "['a', 'b c']")


@pytest.mark.skipif(not ABLE, reason="no huge pages by the tunable here")
def test_the_command_takes_them_and_says_so(tmp_path):
    spec = {
        "portpe_spec": 1,
        "hidden_size": 24,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "v_head_dim": 8,
        "scale": 0.3,
        "max_position_embeddings": 64,
    }
    (tmp_path / "tiny.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "portpe", "bench", "tiny.json", "--quick", "--lengths", "8", "--rounds", "1"]
    command += ["--form", "portable", "--runtime", "onnxruntime", "--no-peers", "--json", "r.json"]
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    machine = json.loads((tmp_path / "r.json").read_text())["machine"]
    assert (machine["pages"], machine["transparent_hugepage"]) == ("huge", pages.kernel())
    assert f"huge pages (transparent_hugepage {pages.kernel()})" in " ".join(done.stdout.split())
