"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from portpe.errors import SpecError

SOURCE_HELP = "A config.json, a spec JSON, a checkpoint folder, a bundle, or a preset's name."

Source = Annotated[str | None, typer.Argument(metavar="SOURCE", help=SOURCE_HELP, show_default=False)]
Model = Annotated[str | None, typer.Option("-m", "--model", metavar="SOURCE", help="SOURCE, as an option.")]
Layer = Annotated[int, typer.Option("--layer", metavar="N", help="The layer, counted from 0.")]
Part = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="P", help="text, encoder, decoder, vision or speech, where a model has several stacks."
    ),
]
IgnoreKey = Annotated[
    list[str] | None,
    typer.Option("--ignore-key", metavar="K", help="Read the config as if it had no key K; may be repeated."),
]
Context = Annotated[
    int | None,
    typer.Option("--context", metavar="L", help="Fix a length-dependent schedule (dynamic, longrope) at length L."),
]
Regime = Annotated[
    Literal["per_sequence"] | None,
    typer.Option(
        "--regime",
        metavar="per_sequence",
        help="Let a length-dependent schedule follow each batch row's length: keys are cached before rotation.",
    ),
]
Precision = Annotated[
    Literal["exact", "hf"],
    typer.Option("--precision", metavar="exact|hf", help="Exact numbers, or transformers' own float32 ones."),
]
InputNorm = Annotated[bool, typer.Option("--input-norm", help="Include the norm before the projections.")]
Provider = Annotated[
    str | None, typer.Option("-e", "--provider", metavar="EP", help="The execution provider of ONNX Runtime.")
]
RuntimeNames = Annotated[
    list[str] | None,
    typer.Option("--runtime", metavar="R", help="Only this runtime; may be repeated. Missing is then an error."),
]


def tell(warnings: Iterable[str]) -> None:
    """Warnings of a config's reading, on stderr: what a command prints stays what other tools read."""
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)


def source_of(source: str | None, model: str | None) -> str:
    """The one source of a command line that takes it as an argument or by ``--model``. Raises SpecError."""
    if source is not None and model is not None:
        raise SpecError(f"SOURCE must be given once, got {source!r} and --model {model!r}")
    given = model if source is None else source
    if given is None:
        raise SpecError("SOURCE is required and missing; give a config.json, a checkpoint folder or a preset's name")
    return given
