"""``portpe export``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portpe.cli.options import Context, IgnoreKey, InputNorm, Model, Part, Precision, Regime, Source, source_of
from portpe.cli.progress import progress

if TYPE_CHECKING:
    from portpe.bundle import Bundle
    from portpe.spec import AttentionSpec

LARGE = 256 * 2**20  # bytes on disk from which an estimate is printed first


def export(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    source: Source = None,
    model: Model = None,
    layer: Annotated[str, typer.Option("--layer", metavar="N|A-B|all", help="One layer, a range, or all.")] = "0",
    part: Part = None,
    form: Annotated[
        list[str] | None, typer.Option("--form", metavar="F", help="Graph form; may be repeated. [default: portable]")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="D",
            help="float32, float16, bfloat16 (fp32, fp16, bf16); may be repeated. [default: float32]",
        ),
    ] = None,
    context: Context = None,
    regime: Regime = None,
    precision: Precision = "exact",
    table_positions: Annotated[
        int | None, typer.Option("--table-positions", metavar="N", help="Positions that the tables cover at least.")
    ] = None,
    input_norm: InputNorm = False,
    quantize: Annotated[
        list[str] | None,
        typer.Option(
            "--quantize",
            metavar="Q",
            help="Also graphs with projections in int4 or int8, for ONNX Runtime; may be repeated.",
        ),
    ] = None,
    no_golden: Annotated[bool, typer.Option("--no-golden", help="No golden values, and so no torch.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    ignore_key: IgnoreKey = None,
) -> int:
    """Export an attention block: ONNX graphs, MLX weights, golden values, manifest."""
    name, keys = source_of(source, model), tuple(ignore_key or ())
    forms, dtypes, quantized = tuple(form or ("portable",)), tuple(dtype or ("float32",)), tuple(quantize or ())

    from portpe import bundle as bundles
    from portpe import config
    from portpe.exporting import export as export_bundle
    from portpe.report.summary import quantization_cost
    from portpe.runtimes import base

    bundles.check_target(output, force=force)
    first = re.match(r"\d+", layer)
    if first is None:
        readings = config.read_layers(name, part, ignore_keys=keys)
        reading, layers = readings[0], len(readings)
    else:
        reading = config.read(name, int(first.group()), part, ignore_keys=keys)
        layers = _count(layer)
    print_estimate(reading.spec, forms, dtypes, golden=not no_golden, layers=layers, quantize=quantized)
    for line in reading.warnings:
        print(f"warning: {line}")
    with progress(f"exporting {name}") as step:
        export_bundle(
            name,
            output,
            layer=layer,
            part=part,
            forms=forms,
            dtypes=dtypes,
            context=context,
            regime=regime,
            precision=precision,
            table_positions=table_positions,
            input_norm=input_norm,
            golden=not no_golden,
            force=force,
            ignore_keys=keys,
            quantize=quantized,
            progress=step,
        )
    for made in bundles.open_all(output, verify=False):
        print(told(made))
        for graph, reason in base.get("onnxruntime").gaps(made):
            print(f"onnxruntime does not run {graph} here: {reason}")
        for kind, error in made.quantization_errors.items():
            print(quantization_cost(kind, error))
    return 0


def told(bundle: Bundle) -> str:
    """A new bundle in one line."""
    size = sum(file["bytes"] for file in bundle.manifest["files"].values())
    weights = "checkpoint weights"
    if bundle.manifest["weights"] == "random":
        weights = f"random weights (seed {bundle.manifest['seed']}): the source has none"
    return f"layer {bundle.layer} in {bundle.path}: {', '.join(bundle.dtypes)}; {in_bytes(size)}; {weights}"


def print_estimate(
    spec: AttentionSpec,
    forms: tuple[str, ...],
    dtypes: tuple[str, ...],
    *,
    golden: bool,
    layers: int = 1,
    quantize: tuple[str, ...] = (),
) -> None:
    """Say what a large export takes, before it begins."""
    from portpe.exporting import estimate

    size = estimate(spec, forms, dtypes, golden=golden, quantize=quantize)
    if size.disk * layers >= LARGE:
        print(f"this export takes up to {in_bytes(size.disk * layers)} of disk, {in_bytes(size.memory)} of memory")


def _count(layer: str) -> int:
    """How many layers N or A-B are, as far as they make sense."""
    ends = re.fullmatch(r"(\d+)(?:-(\d+))?", layer)
    return 1 if ends is None else max(1, int(ends[2] or ends[1]) - int(ends[1]) + 1)


def in_bytes(count: float) -> str:
    """A number of bytes as people read it: 1.5 GB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
