"""The package is whole in every mode: a wheel, an editable install, no install at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("portpe", "bench", "exporters", "runtimes")


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _copy_sources(to: Path) -> Path:
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, to)
    return to


def _module_of(folder: Path) -> str:
    dotted = ".".join(folder.relative_to(ROOT).parts)
    return dotted if dotted.startswith("portpe") else f"portpe.{dotted}"


def _run(code: str, *, folder: Path, path: Path | None = None, bare: bool = False) -> subprocess.CompletedProcess[str]:
    """Python in ``folder``; ``bare`` leaves the editable install of this environment out."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    if bare:  # -S skips .pth files, and with them the editable finder; the dependencies come by PYTHONPATH
        packages = next(p for p in sys.path if p.endswith("site-packages"))
        environment["PYTHONPATH"] = os.pathsep.join([*([str(path)] if path else []), packages])
    flags = ["-S"] if bare else []
    return subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = _copy_sources(tmp_path_factory.mktemp("sources"))
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((sources / "dist").glob("portpe-*.whl"))


def test_every_package_on_disk_is_listed():
    on_disk = {_module_of(file.parent) for folder in SOURCES for file in (ROOT / folder).rglob("__init__.py")}
    listed = _project()["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(on_disk)


def test_every_folder_with_python_files_is_a_package():
    folders = {file.parent for folder in SOURCES for file in (ROOT / folder).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_wheel_holds_every_module_and_data_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = set()
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                inside = file.relative_to(ROOT).as_posix()
                expected.add(inside if folder == "portpe" else f"portpe/{inside}")
    assert "portpe/py.typed" in expected
    assert expected - names == set()
    assert {name for name in names if not name.startswith(("portpe/", "portpe-"))} == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_installed_wheel_imports_from_the_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import portpe, portpe.exporters, portpe.runtimes.base, portpe.cli; print(portpe.__file__);"
        "print(portpe.exporters.__file__); print(portpe.runtimes.base.__file__)"
    )
    done = _run(code, folder=tmp_path, path=tmp_path / "site", bare=True)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(tmp_path / "site" / "portpe")) for line in done.stdout.split())


def test_checkout_without_install_imports(tmp_path):
    sources = _copy_sources(tmp_path)
    code = "import portpe.exporters, portpe.runtimes.base; print(portpe.exporters.__file__)"
    done = _run(code, folder=Path("/"), path=sources, bare=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sources / "exporters" / "__init__.py")


def test_editable_install_imports():
    code = "import portpe.exporters, portpe.runtimes.base; print(portpe.exporters.__name__)"
    done = _run(code, folder=Path("/"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "portpe.exporters"


@pytest.mark.parametrize("name", ["bench", "exporters", "runtimes"])
def test_bare_names_are_refused(name):
    done = _run(f"import {name}", folder=ROOT, path=ROOT)
    assert done.returncode == 1
    assert f"ImportError: import portpe.{name}" in done.stderr


def test_pins_are_exact_and_cover_what_is_declared():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, exact, version = line.partition("==")
            assert exact, line
            assert "+" not in version, f"{line}: a local version exists on one machine only"
            pins[name.lower().replace("_", "-")] = version
    project = _project()["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "gpu" for line in lines]
    for line in [*project["dependencies"], *extras]:
        name = line.split(";")[0]
        for mark in "[><=!~ ":
            name = name.split(mark)[0]
        if name != "portpe":
            assert name.lower().replace("_", "-") in pins, line


def test_supported_pythons_are_declared():
    project = _project()["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert [c.rsplit(" ", 1)[1] for c in project["classifiers"] if "Python :: 3." in c] == ["3.11", "3.12", "3.13"]
