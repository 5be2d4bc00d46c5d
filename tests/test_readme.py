"""What the README says is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from portpe.report.encodings import markdown, renewed
from portpe.report.terminal import COLUMNS
from portpe.runtimes import base

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def _portpe(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "portpe", *arguments], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.stderr == ""
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def _block_of(command: str) -> str:
    return next(block for block in CONSOLE if block.startswith(f"$ {command}"))


@pytest.mark.parametrize("command", ["portpe spec llama-3.1-8b", "portpe diff llama-3.1-8b llama-3-8b"])
def test_shown_output_is_real(command, tmp_path):
    _, _, shown = _block_of(command).partition("\n")
    assert _portpe(*command.split()[1:], folder=tmp_path) == shown


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """The folder in which the README's export was run, and what it printed."""
    folder = tmp_path_factory.mktemp("readme")
    command, _, _ = _block_of("portpe export").partition("\n")
    shown = _portpe(*command.split()[2:], "--no-golden", folder=folder)
    assert shown.splitlines()[-1].startswith("layer 0 in block: float32; ")
    return folder


def test_python_blocks_run_and_agree(exported, monkeypatch):
    onnxruntime, mlx = (block for block in PYTHON)
    assert all(len([line for line in block.splitlines() if line]) <= 15 for block in PYTHON)
    monkeypatch.chdir(exported)
    found = []
    for block in (onnxruntime, mlx):
        names: dict = {}
        exec(compile(block, "README.md", "exec"), names)
        found.append((np.array(names["prompt"]), np.array(names["token"])))
    assert found[0][1].shape == (1, 1, 2048)
    for one, other in zip(*found, strict=True):
        assert np.abs(one).max() > 0.1
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(one).max())


def test_parity_block_has_the_columns_and_rows_of_the_table():
    shown = _block_of("portpe parity")
    header = next(line for line in shown.splitlines() if line.startswith("runtime "))
    assert re.split(r" {2,}", header) == list(COLUMNS[:-1])
    runtimes = [line.split()[0] for line in shown.splitlines() if line.endswith(" ok")]
    assert sorted(set(runtimes)) == sorted(base.names())


def test_table_of_encodings_is_fresh():
    assert markdown() in README, "stale: run `make docs`"
    assert renewed(README) == README


def test_table_of_runtimes_has_every_runtime():
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \| .* \| .* \|$", README.split("## Runtimes")[1], flags=re.MULTILINE)
    assert rows == list(base.names())


def test_every_family_that_is_read_is_named():
    from portpe.config import families

    page = (ROOT / "docs" / "encodings.md").read_text(encoding="utf-8").split("## Families")[1]
    read = {family.model_type for family in families.FAMILIES}
    assert set(re.findall(r"^- `([^`]+)`", page, flags=re.MULTILINE)) == read
    assert len(read) > 15


def test_links_and_files_exist():
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / target).is_file(), target
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:portpe|exporters|runtimes|tests)/[a-zA-Z0-9_/.]+)`", contributing)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists() and "NAME" not in path] == []


def test_three_sentences_say_what_it_is():
    opening = README.split("\n\n")[1].replace("\n", " ")
    assert len(re.findall(r"[.?!](?: |$)", opening)) == 3


def test_no_path_of_a_machine_and_no_host():
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Makefile", ROOT / "constraints.txt"]:
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"https?://|/home/|/root/|/Users/|\bpypi\b", text) == [], file
