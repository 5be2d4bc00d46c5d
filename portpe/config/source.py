"""What a user named: a config, a spec, a checkpoint folder, a bundle or a preset."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portpe.config import presets, strict_json
from portpe.config.section import shown
from portpe.errors import SpecError
from portpe.spec import AttentionSpec


@dataclass(frozen=True)
class Source:
    """A source, recognised: a config, or else the spec of one layer.

    ``name`` is never a path from the machine's root. ``layer`` and ``part`` are those of a bundle.
    """

    name: str
    sha256: str
    config: dict[str, Any] | None = None
    spec: AttentionSpec | None = None
    layer: int = 0
    part: str | None = None
    folder: Path | None = None


def recognise(source: object) -> Source:
    """Tell what a source is. Raises SpecError."""
    if isinstance(source, AttentionSpec):
        return Source("spec", _digest(source.to_dict()), spec=source)
    if isinstance(source, Mapping):
        return _from_data(dict(source), "config", _digest(source))
    if isinstance(source, str | os.PathLike):
        return _from_path(source)
    to_dict = getattr(source, "to_dict", None)
    if callable(to_dict):
        data = to_dict()
        return _from_data(dict(data), "config", _digest(data))
    raise SpecError(f"source must be a config, a spec, a path or a preset's name, got {shown(source)}")


def _from_path(source: str | os.PathLike[str]) -> Source:
    path = Path(source)
    if not _exists(path):
        config = presets.find(str(source))
        return _from_data(config, str(source), _digest(config))
    if path.is_dir():
        return _from_folder(path)
    content = _bytes(path)
    name = _printable(path.name)
    return _from_data(strict_json.loads(content, str(source)), name, hashlib.sha256(content).hexdigest())


def _from_folder(folder: Path) -> Source:
    """A bundle by its portpe.json, else a checkpoint by its config.json."""
    name = _printable(folder.name or folder.resolve().name)
    for file in ("portpe.json", "config.json"):
        path = folder / file
        if path.is_file():
            content = _bytes(path)
            data = strict_json.loads(content, str(path))
            found = _from_data(data, name, hashlib.sha256(content).hexdigest())
            return found if file == "portpe.json" else _at(found, folder)
    raise SpecError(f"source must hold a config.json or a portpe.json, got neither in {shown(str(folder))}")


def _printable(name: str) -> str:
    """A file's name as text that any file and stream takes, whatever bytes the file system holds."""
    return os.fsencode(name).decode("utf-8", "replace")


def _at(found: Source, folder: Path) -> Source:
    return Source(found.name, found.sha256, found.config, found.spec, found.layer, found.part, folder)


def _from_data(data: dict[str, Any], name: str, sha256: str) -> Source:
    if "portpe_spec" in data:
        return Source(name, sha256, spec=AttentionSpec.from_dict(data))
    if "schema_version" in data and isinstance(data.get("spec"), dict):
        layer, part = data.get("layer", 0), data.get("part")
        if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
            raise SpecError(f"layer of {name} must be an integer >= 0, got {shown(layer)}")
        return Source(name, sha256, spec=AttentionSpec.from_dict(data["spec"]), layer=layer, part=part)
    if data.get("model_type") is None:
        raise SpecError(f"{name} must have model_type, to be a config, or portpe_spec, to be a spec; got neither")
    return Source(name, sha256, config=data)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, a null byte: no path that there is
        return False


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"{shown(str(path))} must be readable: {error.strerror or error}") from None


def _digest(data: Mapping[str, Any]) -> str:
    """The sha256 of data's canonical JSON."""
    try:
        plain = json.loads(json.dumps(dict(data), default=str))  # keys become strings, so that they can be sorted
    except (TypeError, ValueError) as error:
        raise SpecError(f"config must hold what JSON can hold: {error}") from None
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
