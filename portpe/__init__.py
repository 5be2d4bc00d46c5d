"""portpe: a transformer's positional encoding, given one exact meaning and proven on every runtime.

Importing portpe imports no framework, and its names are loaded on first use.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portpe.bundle import Bundle as Bundle
    from portpe.config import load_layers as load_layers
    from portpe.config import load_spec as load_spec
    from portpe.errors import SpecError as SpecError
    from portpe.exporting import export as export
    from portpe.spec import AttentionSpec as AttentionSpec
    from portpe.tabulating import tabulate as tabulate

__version__ = "0.1.0"

_HOME = {
    "AttentionSpec": "portpe.spec",
    "Bundle": "portpe.bundle",
    "SpecError": "portpe.errors",
    "export": "portpe.exporting",
    "load_layers": "portpe.config",
    "load_spec": "portpe.config",
    "tabulate": "portpe.tabulating",
}
_SUBPACKAGES = ("audit", "exporters", "parity", "reference", "runtimes")
__all__ = [
    "AttentionSpec",
    "Bundle",
    "SpecError",
    "audit",
    "export",
    "exporters",
    "load_layers",
    "load_spec",
    "parity",
    "reference",
    "runtimes",
    "tabulate",
]

# In a checkout that is not installed, bench/, exporters/ and runtimes/ stand beside this folder, not in it.
if not (Path(__file__).parent / "exporters").is_dir():
    __path__.append(str(Path(__file__).parent.parent))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value  # a submodule of the same name must not shadow it later
        return value
    if name in _SUBPACKAGES:
        return importlib.import_module(f"portpe.{name}")
    raise AttributeError(f"module 'portpe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
