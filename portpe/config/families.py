"""The table of model families that a config can name: one row a ``model_type`` (and part)."""

from __future__ import annotations

import difflib

from portpe.config.alibi_families import ALIBI_FAMILIES
from portpe.config.bert_families import BERT_FAMILIES
from portpe.config.bert_variant_families import BERT_VARIANT_FAMILIES
from portpe.config.bucket_families import BUCKET_FAMILIES
from portpe.config.deepseek_v4 import DEEPSEEK_V4
from portpe.config.dense_families import DENSE_FAMILIES
from portpe.config.detection_families import DETECTION_FAMILIES
from portpe.config.encoder_rope_families import ENCODER_ROPE_FAMILIES
from portpe.config.gated_families import GATED_FAMILIES
from portpe.config.gpt_families import GPT_FAMILIES
from portpe.config.grid_families import GRID_FAMILIES
from portpe.config.hybrid_families import HYBRID_FAMILIES
from portpe.config.image_families import IMAGE_FAMILIES
from portpe.config.image_tower_families import IMAGE_TOWER_FAMILIES
from portpe.config.inkling_families import INKLING_FAMILIES
from portpe.config.joined_families import JOINED_FAMILIES
from portpe.config.layer import Family
from portpe.config.layered_families import LAYERED_FAMILIES
from portpe.config.layout_families import LAYOUT_FAMILIES
from portpe.config.mla_families import MLA_FAMILIES
from portpe.config.mrope_families import MROPE_FAMILIES
from portpe.config.multimodal_text_families import MULTIMODAL_TEXT_FAMILIES
from portpe.config.patch_families import PATCH_FAMILIES
from portpe.config.reformer import REFORMER
from portpe.config.relative_families import RELATIVE_FAMILIES
from portpe.config.rotary_families import ROTARY_FAMILIES
from portpe.config.sam_families import SAM_FAMILIES
from portpe.config.section import shown
from portpe.config.series_families import SERIES_FAMILIES
from portpe.config.sound_families import SOUND_FAMILIES
from portpe.config.sparse_families import SPARSE_FAMILIES
from portpe.config.speech_relative_families import SPEECH_RELATIVE_FAMILIES
from portpe.config.speech_rope_families import SPEECH_ROPE_FAMILIES
from portpe.config.stack_families import STACK_FAMILIES
from portpe.config.staged_families import STAGED_FAMILIES
from portpe.config.tempered_families import TEMPERED_FAMILIES
from portpe.config.tower_families import TOWER_FAMILIES
from portpe.config.video_families import VIDEO_FAMILIES
from portpe.config.vision_families import VISION_FAMILIES
from portpe.errors import SpecError

FAMILIES: tuple[Family, ...] = (
    *ROTARY_FAMILIES,
    *MLA_FAMILIES,
    DEEPSEEK_V4,
    *TEMPERED_FAMILIES,
    *DENSE_FAMILIES,
    *SPARSE_FAMILIES,
    *LAYERED_FAMILIES,
    *HYBRID_FAMILIES,
    *GATED_FAMILIES,
    *SPEECH_ROPE_FAMILIES,
    *MROPE_FAMILIES,
    *MULTIMODAL_TEXT_FAMILIES,
    *JOINED_FAMILIES,
    *ENCODER_ROPE_FAMILIES,
    *BERT_FAMILIES,
    *BERT_VARIANT_FAMILIES,
    *GPT_FAMILIES,
    REFORMER,
    *IMAGE_FAMILIES,
    *IMAGE_TOWER_FAMILIES,
    *PATCH_FAMILIES,
    *VIDEO_FAMILIES,
    *STAGED_FAMILIES,
    *DETECTION_FAMILIES,
    *STACK_FAMILIES,
    *TOWER_FAMILIES,
    *SOUND_FAMILIES,
    *SERIES_FAMILIES,
    *VISION_FAMILIES,
    *ALIBI_FAMILIES,
    *BUCKET_FAMILIES,
    *LAYOUT_FAMILIES,
    *GRID_FAMILIES,
    *SAM_FAMILIES,
    *RELATIVE_FAMILIES,
    *SPEECH_RELATIVE_FAMILIES,
    *INKLING_FAMILIES,
)
# What published configs call a family that transformers has under another name.
ALIASES = {"kimi_k2": "deepseek_v3", "gpt-sw3": "gpt2", "mlcd": "mlcd_vision_model"}
_ROWS: dict[str, list[Family]] = {}
for _family in FAMILIES:
    _ROWS.setdefault(_family.model_type, []).append(_family)
PARTS = ("text", "encoder", "decoder", "vision", "speech")


def find(model_type: str, part: str | None) -> Family:
    """The row of a model_type and part.

    Args:
        model_type: the config's own.
        part: which stack of a model that has several; None where it has one.

    Raises:
        SpecError: no such model_type, no such part, or several parts and none chosen.
    """
    if part is not None and part not in PARTS:
        raise SpecError(f"part must be one of {', '.join(PARTS)}, got {shown(part)}")
    rows = _ROWS.get(ALIASES.get(model_type, model_type))
    if rows is None:
        known = list(_ROWS)
        near = ", ".join(difflib.get_close_matches(model_type, known, n=3, cutoff=0))
        raise SpecError(
            f"model_type must be one of the {len(known)} that portpe knows (nearest: {near}), got {shown(model_type)}; "
            "give another model's layer as a spec written by hand (portpe spec --schema)"
        )
    if len(rows) == 1 and rows[0].part is None:
        if part not in (None, "text"):
            raise SpecError(f"part must be left out for model_type {model_type!r}, which has one stack, got {part!r}")
        return rows[0]
    for row in rows:
        if row.part == part:
            return row
    parts = " or ".join(repr(row.part) for row in rows)
    raise SpecError(f"part must be {parts} for model_type {model_type!r}, got {shown(part)}")
