"""``portpe export``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portpe.cli.options import Context, IgnoreKey, InputNorm, Model, Part, Precision, Source, source_of
from portpe.cli.progress import progress
from portpe.errors import SpecError

if TYPE_CHECKING:
    from portpe.spec import AttentionSpec

Output = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")]
LARGE = 256 * 2**20  # bytes on disk from which an estimate is printed first
GOLDEN = 64 * 2**20  # bytes of golden values a type, at most


def export(
    output: Output,
    source: Source = None,
    model: Model = None,
    layers: Annotated[str, typer.Option("--layer", metavar="N|A-B|all", help="One layer, a range, or all.")] = "0",
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
    precision: Precision = "exact",
    table_positions: Annotated[
        int | None, typer.Option("--table-positions", metavar="N", help="Positions that the tables cover at least.")
    ] = None,
    input_norm: InputNorm = False,
    no_golden: Annotated[
        bool, typer.Option("--no-golden", help="Without golden values, and so without torch.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    ignore_key: IgnoreKey = None,
) -> int:
    """Export an attention block: ONNX graphs, MLX weights, golden values, manifest."""
    from portpe.interface import dtype_name

    name = source_of(source, model)
    types = tuple(dict.fromkeys(dtype_name(one) for one in dtype or ["float32"]))
    settings: dict[str, Any] = {
        "part": part,
        "forms": tuple(dict.fromkeys(form or ["portable"])),
        "dtypes": types,
        "context": context,
        "precision": precision,
        "table_positions": table_positions,
        "input_norm": input_norm,
        "golden": not no_golden,
        "force": force,
        "ignore_keys": tuple(ignore_key or ()),
    }
    from portpe import config

    reading = config.read(name, layer=_first(layers), part=part, ignore_keys=settings["ignore_keys"])
    numbers = _numbers(layers, reading.num_layers)
    print_estimate(reading.spec, types, golden=not no_golden, layers=len(numbers))
    if layers.isdecimal():
        _export_one(name, output, numbers[0], settings)
    else:
        _export_range(name, output, numbers, settings)
    return 0


def _export_one(name: str, output: Path, layer: int, settings: dict[str, Any]) -> None:
    from portpe.exporting import export as export_bundle

    with progress(f"exporting layer {layer} of {name}"):
        bundle = export_bundle(name, output, layer=layer, **settings)
    size = sum(file["bytes"] for file in bundle.manifest["files"].values())
    print(f"exported layer {layer} to {output}: {', '.join(bundle.manifest['dtypes'])}; {in_bytes(size)}")
    if bundle.manifest["weights"] == "random":
        print(f"the weights are random (seed {bundle.manifest['seed']}): the source has none")


def _export_range(name: str, output: Path, numbers: list[int], settings: dict[str, Any]) -> None:
    """One bundle a layer under ``output``, and an index of them."""
    import json

    for number in numbers:
        _export_one(name, output / f"layer_{number:02d}", number, settings)
    index = {"layers": {str(number): f"layer_{number:02d}" for number in numbers}}
    beside = output / ".index.json"
    beside.write_text(json.dumps(index, indent=2) + "\n")
    beside.replace(output / "index.json")


def _first(layers: str) -> int:
    found = re.match(r"\d+", layers)
    return int(found.group()) if found else 0


def _numbers(layers: str, count: int) -> list[int]:
    if layers == "all":
        return list(range(count))
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", layers)
    if not found:
        raise SpecError(f"layer must be N, A-B or all, got {layers!r}")
    first = int(found[1])
    last = int(found[2] or first)
    if not first <= last < count:
        raise SpecError(f"layer must be within 0 to {count - 1}, first before last, got {layers}")
    return list(range(first, last + 1))


def print_estimate(spec: AttentionSpec, dtypes: tuple[str, ...], *, golden: bool, layers: int = 1) -> None:
    """Say what a large export takes, before it begins."""
    import math

    from portpe.interface import DTYPES
    from portpe.spec import weight_shapes

    elements = sum(math.prod(shape) for shape in weight_shapes(spec).values())
    # weights.safetensors and mlx/weights.safetensors, then one .data and one share of golden values a type
    disk = 2 * 4 * elements + sum(elements * DTYPES[dtype].itemsize + golden * GOLDEN for dtype in dtypes)
    memory = elements * (4 + 4 + (8 + 4) * golden)  # as read, as cast; the float64 truth and its input to the cast
    if disk * layers >= LARGE:
        print(f"this export takes up to {in_bytes(disk * layers)} of disk and about {in_bytes(memory)} of memory")


def in_bytes(count: float) -> str:
    """A number of bytes as people read it: 1.5 GB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
