"""Imports point one way, cost little, and load no framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRAMEWORKS = {"torch", "onnx", "onnx_ir", "onnxruntime", "mlx", "mlx_lm", "transformers", "jinja2", "matplotlib"}


def _loaded_by(code: str) -> set[str]:
    """The top-level modules that a new interpreter holds after ``code``."""
    listing = f"{code}\nimport sys\nprint('LOADED', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import portpe",
        "import portpe.spec, portpe.config, portpe.schedules, portpe.tables, portpe.biases, portpe.bundle",
        "import portpe.checkpoint, portpe.parity, portpe.registry, portpe.runtimes.base, portpe.exporting",
        "import portpe.report.html, portpe.report.json, portpe.report.junit, portpe.report.terminal",
        "from portpe.cli import run\nassert run(['--help']) == 0",
        "from portpe.cli import run\nassert run(['spec', 'llama-3.1-8b']) == 0",
        "from portpe.runtimes import base\n[base.get(name) for name in base.names()]",
    ],
)
def test_no_framework_is_imported(code):
    assert _loaded_by(code) & FRAMEWORKS == set()


def test_the_listing_sees_a_framework():
    assert "onnx" in _loaded_by("import onnx")


def _cpu_seconds(*arguments: str, tries: int = 5) -> float:
    """The least CPU time that a new interpreter takes (wall time depends on the machine's load)."""
    least = float("inf")
    for _ in range(tries):
        before = os.times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        least = min(least, used)
    return least


def test_import_is_quick():
    assert _cpu_seconds("-c", "import portpe") < 0.3


def test_help_is_quick():
    assert _cpu_seconds("-m", "portpe", "--help") < 0.6


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel lays it out: import-linter sees no sub-package through an editable install."""
    import shutil

    site = tmp_path_factory.mktemp("site")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "portpe", site / "portpe", ignore=ignore)
    for folder in ("bench", "exporters", "runtimes"):
        shutil.copytree(ROOT / folder, site / "portpe" / folder, ignore=ignore)
    return site


def _lint(site: Path) -> subprocess.CompletedProcess[str]:
    lint = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [lint, "--no-cache", "--no-logo", ROOT / "pyproject.toml"],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_point_one_way(installed):
    done = _lint(installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "named"),
    [
        ("portpe/encodings/bias.py", "import portpe.spec", "portpe.encodings is not allowed to import portpe.spec"),
        ("portpe/reference/__init__.py", "import portpe.runtimes.base", "portpe.reference is not allowed to import"),
        ("portpe/exporters/onnx/__init__.py", "import portpe.runtimes.base", "portpe.exporters is not allowed to"),
        ("portpe/runtimes/base.py", "import portpe.cli", "portpe.runtimes is not allowed to import portpe.cli"),
        ("portpe/runtimes/pytorch.py", "import portpe.runtimes.mlx", "portpe.runtimes.pytorch is not allowed to"),
    ],
)
def test_a_planted_violation_is_caught(installed, module, line, named):
    file = installed / module
    text = file.read_text()
    try:
        file.write_text(f"{text}\n{line}\n")
        done = _lint(installed)
    finally:
        file.write_text(text)
    assert done.returncode == 1
    assert named in done.stdout


def test_a_module_that_no_layer_lists_is_caught(installed):
    stray = installed / "portpe" / "stray.py"
    try:
        stray.write_text("")
        done = _lint(installed)
    finally:
        stray.unlink()
    assert done.returncode == 1
    assert "stray" in done.stdout
