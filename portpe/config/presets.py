"""Published settings of well-known models, by name, as config dicts that the same reader reads."""

from __future__ import annotations

import difflib
from importlib import resources
from typing import Any

from portpe.config import strict_json
from portpe.config.section import shown
from portpe.errors import SpecError


def names() -> list[str]:
    """The names of all presets, sorted."""
    return sorted(_load())


def find(name: str) -> dict[str, Any]:
    """A preset's config. Raises SpecError, naming the nearest presets."""
    presets = _load()
    if name not in presets:
        near = difflib.get_close_matches(name.lower(), presets, n=3, cutoff=0.5)
        hint = f"near ones: {', '.join(near)}" if near else "portpe spec --list-presets names the presets"
        raise SpecError(f"source must be an existing path or a preset's name, got {shown(name)}; {hint}")
    config: dict[str, Any] = presets[name]
    return config


def _load() -> dict[str, Any]:
    text = resources.files("portpe.config").joinpath("presets.json").read_text(encoding="utf-8")
    return strict_json.loads(text, "presets.json")
