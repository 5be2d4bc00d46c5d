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
    the composite's. ``flat``: older configs have the part's keys at the top. ``first``: what the part was called when
    it was released.
    """

    key: str
    model_type: str
    flat: bool = False
    first: str | None = None


def _text(model_type: str, key: str = "text_config", *, flat: bool = False) -> Mapping[str, Part]:
    return {"text": Part(key, model_type, flat)}


def _both(model_type: str, *, flat: bool = False) -> Mapping[str, Part]:
    """A text model and a tower that are read, under names that begin with the whole's."""
    text = Part("text_config", f"{model_type}_text", flat)
    return {"text": text, "vision": Part("vision_config", f"{model_type}_vision")}


# Of adapters and projectors, which stand before the text part, and of losses over both towers.
_BETWEEN = frozenset(
    {
        *("layer_norm_eps", "logit_scale_init_value", "max_logit_scale", "num_attention_heads", "hidden_size"),
        *("decoder_num_attention_heads", "decoder_attention_dropout", "init_layernorm_from_vision_encoder"),
        *("prompt_num_attention_heads", "prompt_attention_dropout", "adapter_layer_norm_eps", "head_dim"),
        *("max_position_embeddings", "model_type", "norm_eps", "projector_layernorm_eps"),
        *("projector_use_layernorm", "scale_factor", "window_size", "projection_layer_norm_eps"),
        *("position_id_per_seconds", "head_hidden_size", "head_in_index", "scale_factors", "norm_strategy"),
    }
)
# By the model_type of the text part where the config of that part states none.
_WITH_TEXT = {
    "apertus1p5_text": ("apertus1p5",),
    "aria_text": ("aria",),
    "cohere2": ("aya_vision", "cohere2_vision"),
    "deepseek_ocr2_text": ("deepseek_ocr2",),
    "diffusion_gemma_text": ("diffusion_gemma",),
    "emu3_text_model": ("emu3",),
    "embedding_gemma2_text": ("embedding_gemma2",),
    "gemma": ("paligemma",),
    "gemma3_text": ("gemma3", "shieldgemma2"),
    "gemma3n_text": ("gemma3n",),
    "gemma4_text": ("gemma4",),
    "gemma4_unified_text": ("gemma4_unified",),
    "glm4v_text": ("glm46v", "glmga"),
    "granite": ("granite_speech", "granite_speech_plus"),
    "granite4_vision_text": ("granite4_vision",),
    "granite_docling_text": ("granite_docling",),
    "hy_v4_vl_text": ("hy_v4_vl",),
    "hyperclovax": ("hyperclovax_vision_v2",),
    "inkling_text": ("inkling_mm_model",),
    "inkling2_text": ("inkling2",),
    "inkling2_loop_text": ("inkling2_loop",),
    "lfm2": ("lfm2_vl",),
    "lfm3": ("lfm3_vl",),
    "llama": (
        *(
            "deepseek_vl",
            "deepseek_vl_hybrid",
            "glmasr",
            "idefics3",
            "janus",
            "llava",
            "llava_next",
            "llava_next_video",
        ),
        *("omniasr", "perception_lm", "smolvlm", "video_llava", "vipllava", "voxtral"),
    ),
    "mistral": ("idefics2", "mistral3"),
    "mllama_text_model": ("mllama",),
    "modernbert": ("modernvbert", "pe_audio", "pe_audio_video", "pe_video"),
    "molmo2_text": ("molmo2",),
    "nemotron_h": ("nemo_speechlm", "nemotron_h_omni"),
    "persimmon": ("fuyu",),
    "qwen2": (
        *("audioflamingo3", "fast_vlm", "got_ocr2", "internvl", "llava_onevision", "musicflamingo", "ovis2"),
        *("pp_chart2table", "qwen2_audio", "vibevoice", "vibevoice_asr", "video_llama_3"),
    ),
    "qwen3": ("fun_asr_nano", "lighton_ocr", "moss_transcribe_diarize", "qianfan_ocr", "qwen3_asr"),
    "qwen3_5_text": ("jev", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7"),
    "qwen3_vl_text": ("cosmos3_omni",),
    "step3p5": ("step3p7",),
    "ultrabert": ("ultravbert",),
    "unlimited_ocr_text": ("unlimited_ocr",),
    "voxtral_realtime_text": ("voxtral_realtime",),
}

COMPOSITES: dict[str, Mapping[str, Part]] = {
    **{whole: _text(text) for text, wholes in _WITH_TEXT.items() for whole in wholes},
    "qwen2_vl": _both("qwen2_vl", flat=True),
    "qwen2_5_vl": _both("qwen2_5_vl", flat=True),
    "paddleocr_vl": _both("paddleocr_vl", flat=True),
    "cosmos3_edge": _text("cosmos3_edge_text"),
    "exaone4_5": {"text": Part("text_config", "exaone4", first="exaone4_5_text")},
    "glm_image": _text("glm_image_text"),
    **{
        name: _both(name)
        for name in (
            *("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
            *("glm4v", "glm4v_moe", "glm_ocr", "ernie4_5_vl_moe", "cohere_compass", "hunyuan_vl", "qwen4_exp"),
            *("glm5_next", "muse_spark", "muse_glimmer", "minimax_m3_vl"),
        )
    },
    **{
        whole: {"encoder": Part("encoder_config", "parakeet_encoder")}
        for whole in ("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt")
    },
    "nemotron_asr_streaming": {"encoder": Part("encoder_config", "nemotron_asr_streaming_encoder")},
    **{
        name: {
            "text": Part("text_config", f"{name}_text_model"),
            "vision": Part("vision_config", f"{name}_vision_model"),
        }
        for name in (
            *("aimv2", "altclip", "chinese_clip", "clip", "clipseg", "metaclip_2", "owlvit", "owlv2"),
            *("siglip", "siglip2", "tipsv2"),
        )
    },
    **{
        whole: {"vision": Part("vision_config", tower)}
        for whole, tower in (
            ("sam", "sam_vision_model"),
            ("sam_hq", "sam_hq_vision_model"),
            ("slanext", "slanext_vision"),
        )
    },
    "kosmos-2.5": {
        "text": Part("text_config", "kosmos_2_5_text_model"),
        "vision": Part("vision_config", "kosmos_2_5_vision_model"),
    },
    "videoprism": {
        "text": Part("text_config", "videoprism_text_model"),
        "vision": Part("vision_config", "videoprism_vision_model"),
    },
    "pix2struct": {
        "text": Part("text_config", "pix2struct_text_model"),
        "vision": Part("vision_config", "pix2struct_vision_model"),
    },
    "pp_formulanet": {
        "text": Part("text_config", "pp_formulanet_text"),
        "vision": Part("vision_config", "pp_formulanet_vision"),
    },
    "flava": {
        "text": Part("text_config", "flava_text_model"),
        "vision": Part("image_config", "flava_image_model"),
    },
    **{name: _text(f"{name}_text_model") for name in ("align", "bridgetower", "groupvit", "xclip")},
    "clap": {"text": Part("text_config", "clap_text_model"), "audio": Part("audio_config", "clap_audio_model")},
    **{
        name: {"vision": Part("vision_config", f"{name.replace('-', '_')}_vision_model")}
        for name in ("blip", "kosmos-2")
    },
    **{
        name: {
            "text": Part("text_config", "opt"),
            "vision": Part("vision_config", f"{name.replace('-', '_')}_vision_model"),
        }
        for name in ("blip-2", "instructblip", "instructblipvideo")
    },
    **{name: {"decoder": Part("decoder", f"{name}_decoder")} for name in ("musicgen", "musicgen_melody")},
    "canary": {"decoder": Part("decoder_config", "canary_decoder")},
    "dia": {"encoder": Part("encoder_config", "dia_encoder"), "decoder": Part("decoder_config", "dia_decoder")},
    "t5gemma": {"encoder": Part("encoder", "t5_gemma_module"), "decoder": Part("decoder", "t5_gemma_module")},
}


# Wholes whose parts have names of their own.
COMPOSITES |= {
    "llama4": {
        "text": Part("text_config", "llama4_text"),
        "vision": Part("vision_config", "llama4_vision_model"),
    },
    "mistral_large4": {
        "text": Part("text_config", "mistral_large4_text"),
        "vision": Part("vision_config", "pixtral"),
    },
    "kimi_k25": {
        "text": Part("text_config", "deepseek_v3"),
        "vision": Part("vision_config", "kimi_k25_vision"),
    },
    **{
        f"{name}_thinker": {
            "text": Part("text_config", f"{name}_text"),
            "vision": Part("vision_config", f"{name}_vision_encoder"),
            "encoder": Part("audio_config", f"{name}_audio_encoder"),
        }
        for name in ("qwen2_5_omni", "qwen3_omni_moe")
    },
    "dots3_note": {
        "vision": Part("vision_config", "dots3_note_vision_encoder"),
        "encoder": Part("audio_config", "dots3_note_audio_encoder"),
    },
    **{
        whole: {"vision": Part(key, part)}
        for whole, key, part in (
            ("chmv2", "backbone_config", "dinov3_vit"),
            ("depth_anything", "backbone_config", "dinov2"),
            ("prompt_depth_anything", "backbone_config", "dinov2"),
            ("tipsv2_dpt", "backbone_config", "tipsv2_vision_model"),
            ("sam3_vision_model", "backbone_config", "sam3_vit_model"),
            ("diffusion_gemma", "vision_config", "gemma4_vision"),
            ("git", "vision_config", "git_vision_model"),
            ("unlimited_ocr_vision", "encoder_config", "unlimited_ocr_vision_encoder"),
        )
    },
    **{
        whole: {"encoder": Part(key, part)}
        for whole, key, part in (
            ("lasr_ctc", "encoder_config", "lasr_encoder"),
            ("nemotron3_diarization", "audio_config", "nemotron3_diarization_audio"),
            ("nemotron3_5_asr", "encoder_config", "nemotron_asr_streaming_encoder"),
            ("nemotron3_5_transcribe_audio", "asr_config", "nemotron3_5_transcribe_asr_audio"),
        )
    },
    "qwen2_5_omni_token2wav": {"decoder": Part("dit_config", "qwen2_5_omni_dit")},
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
    if data.get("model_type") in (None, config["model_type"], chosen.first):
        data["model_type"] = chosen.model_type
    at_the_top = any(one.flat and composite.section(one.key) is None for one in parts.values())
    return Opened(data, None, part, None if at_the_top else composite)


def harmless(composite: Section) -> frozenset[str]:
    """What stands beside the parts: the other parts, and what is said of the way between them."""
    others = {key for key, value in composite.data.items() if isinstance(value, Mapping)}
    return _BETWEEN | others
