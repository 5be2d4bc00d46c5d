"""``portpe spec``."""

from __future__ import annotations

from typing import Annotated

import typer

from portpe.cli.options import (
    Context,
    IgnoreKey,
    InputNorm,
    Layer,
    Model,
    Part,
    Precision,
    Regime,
    Source,
    source_of,
    tell,
)


def spec(
    source: Source = None,
    model: Model = None,
    layer: Layer = 0,
    part: Part = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the spec as JSON, itself a SOURCE.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a spec.")] = False,
    list_presets: Annotated[bool, typer.Option("--list-presets", help="Print the names of the presets.")] = False,
    context: Context = None,
    regime: Regime = None,
    precision: Precision = "exact",
    input_norm: InputNorm = False,
    ignore_key: IgnoreKey = None,
) -> int:
    """Say what a config means: encoding, parameters, frequencies, cost by length, ignored keys."""
    from portpe import config

    if list_presets:
        print("\n".join(config.preset_names()))
        return 0
    if schema:
        _print_schema()
        return 0
    name, keys = source_of(source, model), tuple(ignore_key or ())
    reading = config.read(
        name,
        layer=layer,
        part=part,
        ignore_keys=keys,
        input_norm=input_norm,
        precision=precision,
        context=context,
        regime=regime,
    )
    if as_json:
        tell(reading.warnings)
        print(reading.spec.to_json(), end="")
        return 0
    from portpe.report.console import console
    from portpe.report.meaning import print_meaning

    layers = [one.spec for one in config.read_layers(name, part, ignore_keys=keys)]
    print_meaning(console(), reading, layers, context)
    return 0


def _print_schema() -> None:
    import json

    from portpe.spec import AttentionSpec

    print(json.dumps(AttentionSpec.model_json_schema(), indent=2))
