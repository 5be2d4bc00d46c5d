"""``portpe.json`` as data: which keys a bundle's manifest has, and what each may hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from portpe.encodings import NonNegativeInt, Part, PositiveInt

SCHEMA_VERSION = 1


class _Open(Part):
    """A part that a later release may add keys to."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Source(_Open):
    """Where the layer came from: a name, never a path, and the sha256 of what was read."""

    name: str
    sha256: str


class File(_Open):
    """One file's digest and size."""

    sha256: str
    bytes: NonNegativeInt


class Manifest(_Open):
    """The keys of ``portpe.json``. ``spec`` and the inside of ``capabilities`` are checked by those who read them."""

    schema_version: NonNegativeInt
    spec: dict[str, Any]
    source: Source
    layer: NonNegativeInt
    part: str | None
    forms: Annotated[list[str], Field(min_length=1)]
    dtypes: Annotated[list[Literal["float32", "float16", "bfloat16"]], Field(min_length=1)]
    table_positions: PositiveInt | None
    weights: Literal["checkpoint", "random"]
    seed: int | None
    capabilities: dict[str, Any]
    exclusions: list[dict[str, str]]
    versions: dict[str, str]
    files: dict[str, File]


class IndexEntry(_Open):
    """One layer of a stack: its number, its folder and the sha256 of its manifest."""

    layer: NonNegativeInt
    path: str
    sha256: str


class Index(_Open):
    """The keys of the index that stands beside one bundle a layer."""

    schema_version: NonNegativeInt
    layers: Annotated[list[IndexEntry], Field(min_length=1)]
