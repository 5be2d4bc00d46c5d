"""Hugging Face configs, specs, bundles and presets become AttentionSpecs here, and only here."""

from __future__ import annotations

from portpe.config.presets import names as preset_names
from portpe.config.reading import Reading, RegimeName, load_layers, load_spec, read, read_layers

__all__ = ["Reading", "RegimeName", "load_layers", "load_spec", "preset_names", "read", "read_layers"]
