"""``portpe demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portpe.cli.export import print_estimate
from portpe.cli.parity import write_reports
from portpe.cli.progress import progress

if TYPE_CHECKING:
    from portpe.parity import Report
    from portpe.spec import AttentionSpec

PRESET = "llama-3.1-8b"
COPY_HEADS = 4  # of 128 channels: a copy 512 wide
TITLE = f"{PRESET}, layer 0 of its published settings, float32"
COPY_TITLE = "a copy 512 wide, float16 and bfloat16 (the same encoding; fewer heads)"


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the bundles of an earlier demo.")] = False,
) -> int:
    """Export layer 0 of Llama 3.1 8B's settings with random weights, and run it everywhere."""
    from portpe import config

    spec: AttentionSpec = config.load_spec(PRESET)
    narrow = spec.to_dict() | {
        "hidden_size": COPY_HEADS * spec.head_dim,
        "num_heads": COPY_HEADS,
        "num_kv_heads": COPY_HEADS * spec.num_kv_heads // spec.num_heads,
    }
    print_estimate(spec, ("float32",), golden=True)
    reports = [
        _bundle(PRESET, output / PRESET, ("float32",), TITLE, force=force),
        _bundle(narrow, output / "copy-512-wide", ("float16", "bfloat16"), COPY_TITLE, force=force),
    ]
    return max(reports, key=_severity)


def _bundle(source: object, folder: Path, dtypes: tuple[str, ...], title: str, *, force: bool) -> int:
    from portpe.exporting import export
    from portpe.parity import check
    from portpe.report.console import console
    from portpe.report.terminal import print_report

    with progress(f"exporting {title}"):
        bundle = export(source, folder, dtypes=dtypes, force=force)
    with progress(f"checking {title}") as step:
        report: Report = check(bundle, progress=step)
    print_report(console(), report, title)
    print(f"weights: {bundle.manifest['weights']}, seed {bundle.manifest['seed']}")
    print(f"report: {write_reports(report, bundle)[0]}\n")
    return report.status


def _severity(status: int) -> int:
    """2 goes before 3 before 1 before 0."""
    return (0, 1, 3, 2)[status]
