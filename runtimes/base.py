"""Layer: runtimes. The protocol that every runtime follows, and the registry that finds them.

A runtime is found, never required: its module imports its framework inside methods, and
``availability`` says why one cannot be used here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from portpe.errors import SpecError
from portpe.interface import BlockInputs, BlockOutputs

if TYPE_CHECKING:
    from portpe.bundle import Bundle


@dataclass(frozen=True)
class Availability:
    """Whether a runtime can be used here: its version and device, or the reason why not."""

    usable: bool
    version: str | None = None
    device: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Configuration:
    """One way of running a bundle: a graph form and a type, by a provider at an optimisation level.

    ``form`` is "portable" ... for graphs, "module" for PyTorch and MLX; ``dtype`` is a dtype, or one of a bundle's
    ``graph_types`` ("float32_int4"). ``provider`` and
    ``optimization`` are "" where a runtime has none.
    """

    form: str
    dtype: str
    provider: str = ""
    optimization: str = ""


class Session(Protocol):
    """A loaded block. ``provider`` is the one that really runs, not the one asked for."""

    provider: str

    def run(self, inputs: BlockInputs, *, stages: bool = False) -> BlockOutputs:
        """Run one call; with ``stages`` every stage the runtime can give, by name.

        Positions are checked before anything is dispatched (SpecError).
        """
        ...


class Runtime(Protocol):
    """A way to run a bundle."""

    name: str

    def availability(self) -> Availability: ...

    def configurations(self, bundle: Bundle, provider: str | None = None) -> list[Configuration]:
        """Every configuration of this bundle that this runtime can run; types that it has no kernels for are left
        out here and named by ``gaps``.
        """
        ...

    def gaps(self, bundle: Bundle) -> list[tuple[str, str]]:
        """(form_dtype, reason) for each artefact of this bundle that this runtime cannot run."""
        ...

    def open(self, bundle: Bundle, configuration: Configuration) -> Session: ...


_MODULES = {
    "pytorch": "portpe.runtimes.pytorch",
    "onnxruntime": "portpe.runtimes.onnxruntime",
    "onnx-reference": "portpe.runtimes.onnx_reference",
    "mlx": "portpe.runtimes.mlx.runtime",
}


def names() -> tuple[str, ...]:
    """Every runtime that portpe knows, usable here or not."""
    return tuple(_MODULES)


def get(name: str) -> Runtime:
    """The runtime of this name; importing it imports no framework. Raises SpecError."""
    if name not in _MODULES:
        raise SpecError(f"runtime must be one of {', '.join(_MODULES)}, got {name!r}")
    runtime: Runtime = importlib.import_module(_MODULES[name]).RUNTIME
    return runtime
