"""From a source to a bundle: one layer, a range of them, or the whole stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from portpe import bundle as bundles
from portpe import config
from portpe.atomic import replaced_folder
from portpe.bundle import Bundle
from portpe.errors import SpecError
from portpe.interface import dtype_name
from portpe.layer_export import Settings, prepare
from portpe.sizing import Estimate, estimate, reduced_spec

__all__ = ["SEED", "Estimate", "estimate", "export", "reduced_spec"]

SEED = 0  # of random weights, where the source has none

Progress = Callable[[str], None]


def export(
    source: object,
    output: str | Path,
    *,
    layer: int | str = 0,
    part: str | None = None,
    forms: Iterable[str] = ("portable",),
    dtypes: Iterable[str] = ("float32",),
    context: int | None = None,
    regime: config.RegimeName | None = None,
    precision: Literal["exact", "hf"] = "exact",
    table_positions: int | None = None,
    input_norm: bool = False,
    golden: bool = True,
    force: bool = False,
    ignore_keys: Iterable[str] = (),
    seed: int = SEED,
    quantize: Iterable[str] = (),
    progress: Progress | None = None,
) -> Bundle:
    """Write a bundle, whole or not at all.

    Args:
        source: what ``portpe.load_spec`` takes. Weights come from a checkpoint folder or a bundle; without either they
            are random, and the manifest says so.
        output: the folder to make.
        layer: a layer's number; "A-B" or "all" make one bundle a layer under output/layer_NN, and an index. "all" is
            every layer that has attention.
        part: which stack of a model with several.
        forms: graph forms (``portpe.exporters.onnx.FORMS``).
        dtypes: types of the graphs and of golden values.
        context: fixes the length of a length-dependent schedule.
        regime: ``per_sequence`` lets such a schedule follow each batch row's length; instead of ``context``.
        precision: ``hf`` takes transformers' own float32 numbers.
        table_positions: how many positions the tables cover, rounded up to whole steps of TABLE_STEP (exact).
        input_norm: include the norm before the projections.
        golden: store golden values, which parity needs; False needs no torch.
        force: replace an existing bundle.
        ignore_keys: unknown keys of the config that are let pass.
        seed: of random weights.
        quantize: ``int4``, ``int8``: also graphs whose projections are stored in so many bits, for ONNX Runtime. What
            that costs stands in the manifest, measured on the golden cases.
        progress: told each step.

    Returns:
        The bundle; of several, the first (``portpe.bundle.open_all(output)`` gives all).

    Raises:
        SpecError: bad input, a spec that a form cannot carry, or a place that cannot be written.
    """
    target = Path(output)
    settings = Settings(
        part=part,
        forms=tuple(dict.fromkeys(forms)),
        dtypes=tuple(dict.fromkeys(dtype_name(name) for name in dtypes)),
        context=context,
        regime=regime,
        precision=precision,
        table_positions=table_positions,
        input_norm=input_norm,
        golden=golden,
        ignore_keys=tuple(ignore_keys),
        seed=seed,
        quantize=tuple(dict.fromkeys(quantize)),
    )
    settings.check()
    bundles.check_target(target, force=force)
    say = progress or (lambda _step: None)
    if isinstance(layer, int) or layer.isdecimal():
        made = prepare(source, int(layer), settings)
        with replaced_folder(target, replace=force) as folder:
            made.write(folder, settings, say)
        return Bundle.open(target, verify=False)
    names = {number: f"layer_{number:02d}" for number in _numbers(layer, source, settings)}
    with replaced_folder(target, replace=force) as folder:
        for number, name in names.items():
            say(f"layer {number}")
            (folder / name).mkdir()
            prepare(source, number, settings).write(folder / name, settings, say)
        bundles.write_index(folder, names)
    return bundles.open_all(target, verify=False)[0]


def _numbers(layers: str, source: object, settings: Settings) -> Sequence[int]:
    """The layers that "A-B" or "all" names. Raises SpecError."""
    found = re.fullmatch(r"(\d+)-(\d+)", layers)
    if layers != "all" and found is None:
        raise SpecError(f"layer must be N, A-B or all, got {layers!r}")
    if found is None:
        return [one.layer for one in config.read_layers(source, settings.part, ignore_keys=settings.ignore_keys)]
    first, last = int(found[1]), int(found[2])
    reading = config.read(source, first, settings.part, ignore_keys=settings.ignore_keys)
    if not first <= last < reading.num_layers:
        raise SpecError(f"layer must be within 0-{reading.num_layers - 1}, first before last, got {layers!r}")
    return range(first, last + 1)
