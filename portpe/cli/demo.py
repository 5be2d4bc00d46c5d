"""``portpe demo``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from portpe.cli.export import print_estimate, told
from portpe.cli.judging import judge, write_reports
from portpe.cli.progress import progress

PRESET = "llama-3.1-8b"
TITLE = f"{PRESET}, layer 0 of its published settings, float32"
NARROW = 512  # channels: the ONNX reference evaluator is slow, and slower in 16-bit types
NARROW_TITLE = f"a copy of it, {NARROW} wide with fewer heads, float16 and bfloat16"


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the bundles of an earlier demo.")] = False,
) -> int:
    """Export layer 0 of Llama 3.1 8B's settings with random weights, and run it everywhere."""
    from portpe import bundle as bundles
    from portpe import config
    from portpe.exporting import reduced_spec

    spec = config.load_spec(PRESET)
    whole, narrow = output / PRESET, output / f"{PRESET}-{NARROW}-wide"
    for folder in (whole, narrow):
        bundles.check_target(folder, force=force)
    print_estimate(spec, ("portable",), ("float32",), golden=True)
    statuses = [_made(PRESET, whole, ("float32",), TITLE, force=force)]
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / f"{narrow.name}.json"  # the bundle names its source
        source.write_text(reduced_spec(spec, NARROW).to_json(), encoding="utf-8")
        statuses.append(_made(str(source), narrow, ("float16", "bfloat16"), NARROW_TITLE, force=force))
    return max(statuses, key=(0, 1, 3, 2).index)


def _made(source: str, folder: Path, dtypes: tuple[str, ...], title: str, *, force: bool) -> int:
    from portpe.exporting import export

    with progress(f"exporting {title}") as step:
        bundle = export(source, folder, dtypes=dtypes, force=force, progress=step)
    print(told(bundle))
    report = judge(bundle, title)
    print(f"report: {write_reports(report, bundle)[0]}\n")
    return report.status
