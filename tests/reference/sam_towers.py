"""transformers' own models with SAM's tower in them, tiny: one row a model, saved whole, so under published names."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.reference.biased_models import GRID_MODELS, Vectors

_TOWER = GRID_MODELS["sam_vision_model"].config
_TEXT = {
    "vocab_size": 53,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1}
_ENCODER = {"hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}


@dataclass(frozen=True)
class SamTower(Vectors):
    """A tower in a model: ``tower``, its attribute path there."""

    tower: str = field(kw_only=True)
    query: str = "attn.qkv"
    output: str = "attn.proj"
    implementation: str = "eager"
    image: tuple[int, int] = (32, 32)
    float32: tuple[str, ...] = ("softmax",)

    def save_both(self, folder: Path) -> Any:
        """The whole in ``folder``, the tower's config beside it in ``tower``; and the tower."""
        tower = operator.attrgetter(self.tower)(self.save(folder))
        tower.config.save_pretrained(folder / "tower")
        return tower


def _ocr(cls: str, encoder: dict[str, Any], **text: Any) -> SamTower:
    """Behind SAM's tower stands another, of a whole picture."""
    sam = {**_TOWER, "downsample_channels": [8, 8]}
    vision = {"sam_config": sam, "encoder_config": {**_ENCODER, **encoder}}
    config = {"vision_config": vision, "text_config": {**_TEXT, **_EXPERTS, **text}, "image_token_id": 52}
    return SamTower(cls, config, tower="model.vision_tower.sam_encoder")


_FORMULA_TEXT = {
    "vocab_size": 53,
    "d_model": 16,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 12,
    "max_position_embeddings": 20,
}
_FORMULA_TOWER = {
    **_TOWER,
    **{f"post_conv_{end}_channels": 8 for end in ("in", "mid", "out")},
    "decoder_hidden_size": 16,
}
SAM_TOWERS: dict[str, SamTower] = {
    "deepseek_ocr2_sam_vision_model": _ocr(
        "DeepseekOcr2ForConditionalGeneration", {"num_key_value_heads": 2}, mlp_layer_types=["dense"]
    ),
    "got_ocr2_vision": SamTower(
        "GotOcr2ForConditionalGeneration",
        {"vision_config": _TOWER, "text_config": {"model_type": "qwen2", **_TEXT}, "image_token_index": 52},
        tower="model.vision_tower",
    ),
    "pp_formulanet_vision": SamTower(
        "PPFormulaNetForConditionalGeneration",
        {"vision_config": _FORMULA_TOWER, "text_config": _FORMULA_TEXT},
        tower="model.encoder",
    ),
    "slanext_vision": SamTower(
        "SLANeXtForTableRecognition",
        {"vision_config": _TOWER, "post_conv_in_channels": 8, "post_conv_out_channels": 8, "hidden_size": 16},
        tower="backbone.vision_tower",
    ),
    "unlimited_ocr_sam_vision_model": _ocr("UnlimitedOcrForConditionalGeneration", {"image_size": 32, "patch_size": 4}),
}
