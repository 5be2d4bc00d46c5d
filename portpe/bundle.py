"""The export folder: its manifest, its digests, and what a runtime reads from it (numpy only, no framework).

Layout: ``portpe.json`` (the manifest), ``weights.safetensors``, ``onnx/FORM_TYPE.onnx`` and ``.stages.onnx``,
``onnx/weights_TYPE.data``, ``mlx/config.json``, ``mlx/weights.safetensors``, ``golden.safetensors``,
``tables_hf.safetensors`` (precision hf only), and the reports that ``portpe parity`` writes. TYPE is a dtype, or one
with a quantisation of the weights: ``float32_int4``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from portpe import external_data, golden
from portpe.atomic import recover
from portpe.data_file import read_data
from portpe.errors import SpecError
from portpe.interface import Array
from portpe.manifest import SCHEMA_VERSION, Index, Manifest
from portpe.spec import AttentionSpec

MANIFEST = "portpe.json"
INDEX = "portpe.index.json"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"
HF_TABLES = "tables_hf.safetensors"
MLX_FILES = ("mlx/config.json", "mlx/weights.safetensors")


@dataclass(frozen=True)
class Bundle:
    """An exported layer, opened. ``path`` is its folder, ``manifest`` the parsed portpe.json."""

    path: Path
    manifest: dict[str, Any]
    spec: AttentionSpec

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Bundle:
        """Read the manifest and check every digest before anything else is loaded.

        Args:
            path: the bundle's folder.
            verify: whether to read every file and compare its sha256; the sizes, the names and that no file is a
                link are checked always.

        Raises:
            SpecError: no bundle, another schema, a missing file, a link, or a digest that does not fit.
        """
        folder = Path(path)
        recover(folder)
        manifest = _read_manifest(folder)
        try:
            spec = AttentionSpec.from_dict(manifest["spec"])
        except SpecError as error:
            raise SpecError(f"{MANIFEST} spec.{error}") from None
        for name, entry in manifest["files"].items():
            _check_file(folder, name, entry, verify=verify)
        for name in manifest["files"]:
            if name.endswith(".onnx"):
                _check_external_data(folder, name, manifest["files"])
        return cls(folder, manifest, spec)

    @property
    def layer(self) -> int:
        return int(self.manifest["layer"])

    @property
    def forms(self) -> tuple[str, ...]:
        return tuple(self.manifest["forms"])

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(self.manifest["dtypes"])

    @property
    def graph_types(self) -> tuple[str, ...]:
        """The types in the names of graphs: each dtype, plain and then with each quantisation of its weights."""
        return _graph_types(self.manifest)

    @property
    def table_positions(self) -> int | None:
        """How many positions the tables serve, or None where the encoding has no end."""
        end: int | None = self.manifest["table_positions"]
        return end

    @property
    def has_golden(self) -> bool:
        return GOLDEN in self.manifest["files"]

    def weights(self) -> dict[str, Array]:
        """The layer's weights by canonical name, in the source's type."""
        return self._tensors(WEIGHTS)

    def tables(self) -> dict[str, Array]:
        """The float32 tables that the artefacts carry: transformers' own (hf), or made anew to the same bytes."""
        return dict(self._tables)

    @cached_property
    def _tables(self) -> dict[str, Array]:
        if HF_TABLES in self.manifest["files"]:
            return self._tensors(HF_TABLES)
        from portpe import tables

        return dict(tables.table_set(self.spec, self.table_positions))

    def quantized(self, kind: str) -> dict[str, Array]:
        """The tensors that graphs of a quantised type hold, in the order of the file. Raises SpecError."""
        dtype, quantization = split_type(kind)
        found = self.manifest.get("quantization", {}).get(quantization, {}).get("tensors", {}).get(dtype)
        if found is None:
            raise SpecError(f"bundle has no weights in {kind}; it has {', '.join(self.graph_types)}")
        return read_data(self.path / "onnx" / data_name(kind), found)

    @property
    def quantization_errors(self) -> dict[str, dict[str, float] | None]:
        """What each quantised type costs, as measured at export on the golden cases; None: there were none."""
        return {
            graph_type(dtype, name): facts["error"].get(dtype)
            for name, facts in self.manifest.get("quantization", {}).items()
            for dtype in self.dtypes
        }

    def golden(self, kind: str) -> list[golden.GoldenCase]:
        """The golden cases of one of ``graph_types``; a quantised one has truth of its own, on the weights that it
        holds. Raises SpecError where the bundle has none.
        """
        dtype, _ = split_type(kind)
        if not self.has_golden or kind not in self.graph_types:
            raise SpecError(f"bundle has no golden values for {kind}; export it with --dtype {dtype}, no --no-golden")
        return [replace(case, dtype=dtype) for case in golden.load(self.path / GOLDEN, kind)]

    def graph(self, form: str, dtype: str, stages: bool = False) -> Path:
        """The ONNX file of a form and one of ``graph_types``. Raises SpecError where the bundle has none."""
        name = graph_name(form, dtype, stages=stages)
        if name not in self.manifest["files"]:
            raise SpecError(f"bundle has no {name}; it has forms {list(self.forms)} in {list(self.graph_types)}")
        return self.path / name

    def _tensors(self, name: str) -> dict[str, Array]:
        if name not in self.manifest["files"]:
            raise SpecError(f"bundle has no {name}; export it again")
        try:
            tensors: dict[str, Array] = load_file(self.path / name)
        except (SafetensorError, OSError) as error:
            raise SpecError(f"{name} cannot be read: {' '.join(str(error).split())}; export the bundle again") from None
        return tensors


def graph_type(dtype: str, quantization: str = "") -> str:
    """The type in a graph's name: ``float32``, or ``float32_int4`` where its projections are quantised."""
    return f"{dtype}_{quantization}" if quantization else dtype


def split_type(kind: str) -> tuple[str, str]:
    """The dtype and the quantisation ("" for none) of a graph's type."""
    dtype, _, quantization = kind.partition("_")
    return dtype, quantization


def graph_name(form: str, dtype: str, *, stages: bool = False) -> str:
    """Where a graph lies in the bundle."""
    return f"onnx/{form}_{dtype}{'.stages' if stages else ''}.onnx"


def data_name(dtype: str) -> str:
    """The file, beside the graphs, that holds the weights of all graphs of a type."""
    return f"weights_{dtype}.data"


def open_all(path: str | Path, verify: bool = True) -> list[Bundle]:
    """The bundle at ``path``, or those of its index, in layer order. Raises SpecError."""
    folder = Path(path)
    recover(folder)
    if not (folder / INDEX).is_file():
        return [Bundle.open(folder, verify)]
    bundles: dict[int, Bundle] = {}
    for entry in _read(folder / INDEX, Index)["layers"]:
        name = _inside(entry["path"], INDEX)
        _refuse_links(folder, name)
        if digest(folder / name / MANIFEST) != entry["sha256"]:
            raise SpecError(f"{INDEX}: {name}/{MANIFEST} is not the one exported; export the layers again")
        bundle = Bundle.open(folder / name, verify)
        if bundle.layer != entry["layer"] or bundle.layer in bundles:
            raise SpecError(
                f"{INDEX} layers must name each layer once, by its number: {name} is layer {bundle.layer}, got "
                f"{entry['layer']}; export the layers again"
            )
        bundles[bundle.layer] = bundle
    return list(bundles.values())


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle or an index of bundles, so that it may be replaced."""
    return (path / MANIFEST).is_file() or (path / INDEX).is_file()


def check_target(output: Path, *, force: bool) -> None:
    """Refuse to write over anything but a bundle, and over that only with ``force``. Raises SpecError."""
    if not os.path.lexists(output):
        return
    if not output.is_dir() or not is_bundle(output):
        raise SpecError(f"output {output} exists and is no bundle; choose another place or remove it")
    if not force:
        raise SpecError(f"output {output} exists; give --force to replace this bundle")


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Arrays as safetensors; the same arrays give the same bytes."""
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)


def seal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest last, with the digest of every file but itself and the reports."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    files = {
        name: {"sha256": digest(folder / name), "bytes": (folder / name).stat().st_size}
        for name in names
        if name != MANIFEST and not name.startswith("report.")
    }
    _write_json(folder / MANIFEST, {**manifest, "files": files})


def write_index(folder: Path, layers: Mapping[int, str]) -> None:
    """Name the bundles of a stack, one a layer, with the digest of each manifest."""
    entries = [
        {"layer": layer, "path": name, "sha256": digest(folder / name / MANIFEST)} for layer, name in layers.items()
    ]
    _write_json(folder / INDEX, {"schema_version": SCHEMA_VERSION, "layers": entries})


def digest(path: Path) -> str:
    """The file's sha256 in hex. Raises SpecError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SpecError(f"{path.name} cannot be read: {error.strerror}") from None


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _read_manifest(folder: Path) -> dict[str, Any]:
    if (folder / INDEX).is_file():
        raise SpecError(f"{folder} holds one bundle a layer; give one of them, such as {folder}/layer_00")
    if not (folder / MANIFEST).is_file():
        raise SpecError(f"{folder} is no bundle: it has no {MANIFEST}; make one with portpe export")
    manifest = _read(folder / MANIFEST, Manifest)
    for name in _must_hold(manifest):
        if name not in manifest["files"]:
            raise SpecError(f"{MANIFEST} files must hold {name}, of its forms and dtypes; export the bundle again")
    return manifest


def _must_hold(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The files that are opened by name, so that each has a digest: weights, the MLX module, and every graph."""
    yield from (WEIGHTS, *MLX_FILES)
    for kind in _graph_types(manifest):
        yield f"onnx/{data_name(kind)}"
        for form in manifest["forms"]:
            yield graph_name(form, kind)
            yield graph_name(form, kind, stages=True)


def _graph_types(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = ("", *manifest.get("quantization", {}))
    return tuple(graph_type(dtype, kind) for dtype in manifest["dtypes"] for kind in kinds)


def _read(path: Path, model: type[Manifest] | type[Index]) -> dict[str, Any]:
    """The object in a file of the bundle's own, every key that ``model`` names checked."""
    if path.is_symlink():
        raise SpecError(f"{path.name} is a link; a bundle holds its own files: copy it with cp -RL")
    data = _json(path)
    if data.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(f"{path.name} schema_version must be {SCHEMA_VERSION}, got {data.get('schema_version')!r}")
    try:
        model(**data)
    except SpecError as error:
        raise SpecError(f"{path.name} {error}; export the bundle again") from None
    return data


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path.name} is not readable as JSON: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path.name} must be a JSON object, got {type(data).__name__}")
    return data


def _inside(name: str, where: str = f"{MANIFEST} files") -> str:
    """A relative path that stays inside the folder. Raises SpecError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts or ":" in path.parts[0]:
        raise SpecError(f"{where} must be relative paths inside the bundle, got {name!r}")
    return name


def _refuse_links(folder: Path, name: str) -> None:
    path = folder / name
    for part in [path, *path.parents][: len(PurePosixPath(name).parts)]:
        if part.is_symlink():
            raise SpecError(f"{name} is a link; a bundle holds its own files: copy it with cp -RL")


def _check_file(folder: Path, name: str, entry: Mapping[str, Any], *, verify: bool) -> None:
    path = folder / _inside(name)
    _refuse_links(folder, name)
    if not path.is_file():
        raise SpecError(f"{name} is missing from the bundle; export it again")
    status = path.stat()
    if status.st_nlink > 1:
        raise SpecError(f"{name} is a hard link; a bundle holds its own files: copy the bundle with cp -R")
    if status.st_size != entry.get("bytes") or (verify and digest(path) != entry.get("sha256")):
        raise SpecError(f"{name} is not the file that was exported: its sha256 differs; export the bundle again")


def _check_external_data(folder: Path, name: str, files: Mapping[str, Any]) -> None:
    """A graph's weights lie beside it, in a file that the manifest covers."""
    home = PurePosixPath(name).parent
    for location in external_data.locations((folder / name).read_bytes()):
        if (home / location).as_posix() not in files:
            raise SpecError(f"{name} takes weights from {location!r}, which is no file of the bundle; export it again")
