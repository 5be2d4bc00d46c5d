"""Models put together from others: which object of a composite's config holds which part, and what it is by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from portpe.config.section import Section, shown
from portpe.errors import SpecError


@dataclass(frozen=True)
class Part:
    """``key``: where the part's config stands; ``model_type``: what it is where that config does not say."""

    key: str
    model_type: str


def _text(model_type: str, key: str = "text_config") -> Mapping[str, Part]:
    return {"text": Part(key, model_type)}


COMPOSITES: dict[str, Mapping[str, Part]] = {
    "gemma3": _text("gemma3_text"),
    "gemma3n": _text("gemma3n_text"),
    "gemma4": _text("gemma4_text"),
    "t5gemma": {"encoder": Part("encoder", "t5_gemma_module"), "decoder": Part("decoder", "t5_gemma_module")},
}


class Opened(NamedTuple):
    """A config to read: a part of a composite, or the whole of what is none.

    ``inside`` is the part that is left to choose in ``config``; ``part`` the one that was chosen of ``composite``,
    which is None for a config that is none.
    """

    config: dict[str, Any]
    inside: str | None
    part: str | None = None
    composite: Section | None = None


def opened(config: dict[str, Any], part: str | None) -> Opened:
    """A part of a composite as a config of its own; None chooses the only part that portpe reads.

    Raises:
        SpecError: a part that the composite does not have, or none chosen of several.
    """
    parts = COMPOSITES.get(str(config.get("model_type")))
    if parts is None:
        return Opened(config, part)
    if part is None and len(parts) == 1:
        part = next(iter(parts))
    if part is None or part not in parts:
        known = " or ".join(repr(name) for name in parts)
        raise SpecError(f"part must be {known} for model_type {config['model_type']!r}, got {shown(part)}")
    composite = Section(config)
    inner = composite.section(parts[part].key)
    data = {} if inner is None else dict(inner.data)
    return Opened({"model_type": parts[part].model_type, **data}, None, part, composite)


def harmless(composite: Section) -> frozenset[str]:
    """What stands beside the parts: the other parts, and the composite's own model_type."""
    return frozenset(key for key, value in composite.data.items() if isinstance(value, Mapping)) | {"model_type"}
