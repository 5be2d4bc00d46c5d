"""``portpe tables``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portpe.atomic import created_mode
from portpe.cli.options import Context, IgnoreKey, Layer, Model, Part, Precision, Regime, Source, source_of, tell
from portpe.errors import SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def tables(
    positions: Annotated[str, typer.Option("--positions", metavar="P,P,...", help="Token positions, from 0.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.npz", help="Where to write; replaced whole.")],
    source: Source = None,
    model: Model = None,
    layer: Layer = 0,
    part: Part = None,
    context: Context = None,
    regime: Regime = None,
    precision: Precision = "exact",
    ignore_key: IgnoreKey = None,
) -> int:
    """Write the encoding's numbers at some positions: frequencies, cos, sin, biases, embeddings."""
    name = source_of(source, model)
    wanted = _positions(positions)
    if output.suffix != ".npz":
        raise SpecError(f"output must be named FILE.npz, got {str(output)!r}")

    from portpe import config
    from portpe.tabulating import tabulate

    keys = tuple(ignore_key or ())
    reading = config.read(
        name, layer=layer, part=part, ignore_keys=keys, precision=precision, context=context, regime=regime
    )
    tell(reading.warnings)
    weights = _trained(name, reading)
    try:
        arrays = tabulate(reading.spec, wanted, weights=weights)
    except SpecError as error:
        if weights is None and str(error).startswith("weights must hold"):
            raise SpecError(f"{error}; give a checkpoint folder, or a bundle") from None
        raise
    _write(output, arrays)
    for key, array in arrays.items():
        print(f"{key:28}{' x '.join(map(str, array.shape)) or 'scalar'}")
    print(f"written to {output}")
    return 0


def _positions(text: str) -> NDArray[Any]:
    import numpy as np

    try:
        return np.array([int(part) for part in text.split(",")], dtype=np.int64)
    except (ValueError, OverflowError):
        raise SpecError(f"positions must be integers with commas between them, got {text!r}") from None


def _trained(source: str, reading: Any) -> Mapping[str, NDArray[Any]] | None:
    """The weights, where an encoding is trained and the source has them."""
    spec = reading.spec
    if not any(encoding.weight_shapes(spec) for encoding in spec.encodings):
        return None
    from portpe.bundle import Bundle, is_bundle
    from portpe.checkpoint import has_weights, load_layer

    if is_bundle(Path(source)):
        return Bundle.open(source).weights()
    if reading.folder is None or not has_weights(reading.folder):
        return None
    loaded: Mapping[str, NDArray[Any]] = load_layer(
        reading.folder, spec, model_type=reading.model_type, layer=reading.layer, part=reading.part
    )
    return loaded


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write beside the target and exchange, so that no half-written file is left."""
    import numpy as np

    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".npz")
    except OSError as error:
        raise SpecError(f"output {path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(beside).chmod(created_mode())
        os.replace(beside, path)
    except OSError as error:
        raise SpecError(f"output {path} cannot be written: {error.strerror}") from None
    finally:
        Path(beside).unlink(missing_ok=True)
