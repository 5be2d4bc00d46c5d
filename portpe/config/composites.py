"""Models put together from others: which object of a composite's config holds which part, and what it is by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from portpe.config.section import Section, shown
from portpe.errors import SpecError


@dataclass(frozen=True)
class Part:
    """``key``: where the part's config stands; ``model_type``: what it is where that config does not say, or repeats
    the composite's. ``flat``: older configs have the part's keys at the top.
    """

    key: str
    model_type: str
    flat: bool = False


def _text(model_type: str, key: str = "text_config", *, flat: bool = False) -> Mapping[str, Part]:
    return {"text": Part(key, model_type, flat)}


COMPOSITES: dict[str, Mapping[str, Part]] = {
    "gemma3": _text("gemma3_text"),
    "gemma3n": _text("gemma3n_text"),
    "gemma4": _text("gemma4_text"),
    "qwen2_vl": _text("qwen2_vl_text", flat=True),
    "qwen2_5_vl": _text("qwen2_5_vl_text", flat=True),
    "paddleocr_vl": _text("paddleocr_vl_text", flat=True),
    **{
        name: _text(f"{name}_text")
        for name in (
            *("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "cosmos3_edge"),
            *("glm4v", "glm4v_moe", "glm_ocr", "glm_image", "ernie4_5_vl_moe"),
        )
    },
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
    composite, chosen = Section(config), parts[part]
    inner = composite.section(chosen.key)
    if inner is None and chosen.flat:
        other = {one.key for one in parts.values()} | {"vision_config"}
        data = {key: value for key, value in config.items() if key not in other}
        return Opened({**data, "model_type": chosen.model_type}, None, part)
    data = {} if inner is None else dict(inner.data)
    if data.get("model_type") in (None, config["model_type"]):
        data["model_type"] = chosen.model_type
    return Opened(data, None, part, composite)


def harmless(composite: Section) -> frozenset[str]:
    """What stands beside the parts: the other parts, and the composite's own model_type."""
    return frozenset(key for key, value in composite.data.items() if isinstance(value, Mapping)) | {"model_type"}
