"""Where a report goes: the terminal, JSON, plots, and one HTML page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from portpe.bench import html, plots
from portpe.bench.result import Report
from portpe.bench.terminal import print_report
from portpe.errors import SpecError

__all__ = ["check_places", "print_report", "write"]


def check_places(json_file: Path | None, html_file: Path | None, plot_folder: Path | None) -> None:
    """Refuse before the work what would fail after it. Raises SpecError."""
    for place in (json_file, html_file, plot_folder):
        if place is not None and not place.absolute().parent.is_dir():
            raise SpecError(f"report {place} must lie in an existing folder, got {place.parent}")
    for file in (json_file, html_file):
        if file is not None and file.is_dir():
            raise SpecError(f"report {file} must be a file, got a folder")
    if plot_folder is not None and plot_folder.exists() and not plot_folder.is_dir():
        raise SpecError(f"plot must be a folder, got {plot_folder}")
    needed = [("html", html_file, "jinja2"), ("plot", plot_folder, "matplotlib")]
    for name, place, package in needed:
        if place is not None and importlib.util.find_spec(package) is None:
            raise SpecError(f"{name} needs {package}, which is not installed; pip install 'portpe[report]'")


def write(
    report: Report, *, json_file: Path | None = None, html_file: Path | None = None, plots_folder: Path | None = None
) -> list[Path]:
    """Write what is asked for; returns the files. Raises SpecError where a place cannot be written."""
    files: dict[Path, bytes] = {}
    if html_file is not None:
        files[html_file] = html.to_html(report).encode()
    if json_file is not None:
        files[json_file] = to_json(report).encode()
    if plots_folder is not None:
        plots_folder.mkdir(exist_ok=True)
        files |= {plots_folder / f"{name}.png": picture for name, picture in plots.pngs(report).items()}
    for place, data in files.items():
        try:
            place.write_bytes(data)
        except OSError as error:
            raise SpecError(f"report {place} cannot be written: {error.strerror}") from None
    return list(files)


def to_json(report: Report) -> str:
    """The report as indented JSON with a final newline."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"
