"""The ``portpe`` command. One file a command; a command returns its exit status.

0: all equal. 1: a difference in numbers. 2: bad input, told in one line on stderr.
3: an exception in a runtime, or a runtime asked for by name that is missing.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import portpe
from portpe.cli import bench, demo, diff, export, parity, runtimes, spec, tables
from portpe.errors import SpecError

EPILOG = "Exit status: 0 all equal, 1 different numbers, 2 bad input, 3 a runtime that fails or is missing."

# The extra that brings each optional package.
EXTRAS = {
    "torch": "torch",
    "onnx": "onnx",
    "onnx_ir": "onnx",
    "onnxruntime": "onnx",
    "mlx": "mlx",
    "jinja2": "report",
    "matplotlib": "report",
}

app = typer.Typer(
    name="portpe",
    add_completion=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(spec.spec, diff.diff, tables.tables, export.export, parity.parity),
    *(bench.bench, runtimes.runtimes, demo.demo),
):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"portpe {portpe.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A transformer's positional encoding, given one exact meaning, exported, and proven on every runtime."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str], *, own_process: bool = False) -> int:
    """Run one command line and return its exit status. Bad input is one line on stderr.

    In its ``own_process`` a command may start again with another environment.
    """
    command = typer.main.get_command(app)
    try:
        status = command(args=list(arguments), prog_name="portpe", standalone_mode=False, obj=own_process)
    except typer.TyperException as error:
        message = error.format_message().rstrip(".")
        return _refuse(f"{message}{' See' if message.endswith('?') else '; see'} {_command_path(error)} --help")
    except SpecError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _refuse(f"{error.name} is not installed, and this needs it; pip install 'portpe[{extra}]'")
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _refuse(f"{error.strerror or type(error).__name__}{place}")
    return int(status or 0)


def _command_path(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "portpe"


def _refuse(message: str) -> int:
    print("portpe:", " ".join(message.split()), file=sys.stderr)
    return 2


def main() -> None:
    """The entry point: runs ``sys.argv`` and exits with the status."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `portpe spec ... | head` ends quietly, and never with status 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show must not end the run
    sys.exit(run(sys.argv[1:], own_process=True))
