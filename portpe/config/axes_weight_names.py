"""Where models whose tokens or patches have several coordinates keep the tensors of an attention layer."""

from __future__ import annotations

from dataclasses import replace

from portpe.config.decoder_weight_names import DECODER_ROWS
from portpe.config.weight_layout import Fused, WeightNames, separate

_VISUAL = ("model.visual.", "thinker.visual.", "visual.", "model.vision_tower.", "")
_BLOCK = "blocks.{layer}"

_QWEN_TOWER = WeightNames(
    _VISUAL,
    {
        "o_proj": f"{_BLOCK}.attn.proj",
        "q_norm": f"{_BLOCK}.attn.q_norm",
        "k_norm": f"{_BLOCK}.attn.k_norm",
        "input_norm": f"{_BLOCK}.norm1",
    },
    fused=Fused(f"{_BLOCK}.attn.qkv", "stacked"),
)
_GEMMA4 = "encoder.layers.{layer}.self_attn"

AXES_ROWS: dict[str, WeightNames] = {
    **dict.fromkeys(
        (
            *("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3_vl_text", "cosmos3_edge_text"),
            *("glm4v_text", "glm_ocr_text", "glm_image_text", "paddleocr_vl_text"),
        ),
        DECODER_ROWS["qwen3_moe"],
    ),
    "cohere_compass_text": DECODER_ROWS["qwen3_moe"],
    "minimax_m3_vl_text": DECODER_ROWS["qwen3_moe"],
    "qwen3_omni_moe_talker_text": replace(DECODER_ROWS["qwen3_moe"], prefixes=("talker.model.", "model.", "")),
    "qwen3_omni_moe_talker_code_predictor": replace(
        DECODER_ROWS["qwen3_moe"], prefixes=("talker.code_predictor.model.", "code_predictor.model.", "model.", "")
    ),
    **dict.fromkeys(
        (
            *("qwen2_vl_vision", "qwen3_vl_vision", "qwen3_5_vision", "qwen4_exp_vision"),
            *("exaone4_5_vision", "glm5_next_vision"),
        ),
        _QWEN_TOWER,
    ),
    "dots3_note_vision_encoder": replace(
        _QWEN_TOWER,
        prefixes=("vision_encoder.", ""),
        names=dict(_QWEN_TOWER.names) | {"input_norm": f"{_BLOCK}.norm_1|{_BLOCK}.norm1"},
    ),
    "lfm3_vl_vision": WeightNames(
        _VISUAL,
        separate(
            "layers.{layer}.self_attn",
            "out_proj",
            q_norm="layers.{layer}.self_attn.q_layernorm",
            k_norm="layers.{layer}.self_attn.k_layernorm",
            input_norm="layers.{layer}.operator_norm",
        ),
    ),
    **dict.fromkeys(
        ("muse_spark_vision", "muse_glimmer_vision"),
        WeightNames(_VISUAL, separate("layers.{layer}.attn", "proj", input_norm="layers.{layer}.norm1")),
    ),
    "inkling2_vision": WeightNames(
        _VISUAL, separate("layers.{layer}.self_attn", "out_proj", input_norm="layers.{layer}.layernorm_before")
    ),
    "sapiens2": WeightNames(
        ("backbone.", ""),
        {
            "q_proj": f"{_BLOCK}.attn.wq",
            "k_proj": f"{_BLOCK}.attn.wk",
            "v_proj": f"{_BLOCK}.attn.wv",
            "o_proj": f"{_BLOCK}.attn.proj",
            "q_norm": f"{_BLOCK}.attn.q_norm",
            "k_norm": f"{_BLOCK}.attn.k_norm",
            "input_norm": f"{_BLOCK}.ln1",
        },
    ),
    **dict.fromkeys(
        ("glmasr_encoder", "nemotron3_diarization_audio", "nemotron3_5_transcribe_asr_audio"),
        WeightNames(
            ("model.audio_tower.", "audio_tower.", "audio_model.", "asr_model.", "asr_encoder.", ""),
            separate(
                "layers.{layer}.self_attn",
                "o_proj",
                q_norm="layers.{layer}.self_attn.q_norm",
                k_norm="layers.{layer}.self_attn.k_norm",
                input_norm="layers.{layer}.input_layernorm|layers.{layer}.layer_norm1",
            ),
        ),
    ),
    "sam3_vit_model": WeightNames(
        ("backbone.", ""), separate("layers.{layer}.attention", "o_proj", input_norm="layers.{layer}.layer_norm1")
    ),
    "eomt_dinov3": WeightNames(
        ("",), separate("layers.{layer}.attention", "o_proj", input_norm="layers.{layer}.norm1")
    ),
    "pixtral": WeightNames(
        ("model.vision_tower.", "vision_tower.", ""),
        separate(
            "transformer.layers.{layer}.attention", "o_proj", input_norm="transformer.layers.{layer}.attention_norm"
        ),
    ),
    "dinov3_vit": WeightNames(
        ("model.", "backbone.", ""), separate("layer.{layer}.attention", "o_proj", input_norm="layer.{layer}.norm1")
    ),
    "gemma4_vision": WeightNames(
        _VISUAL,
        {
            **{f"{short}_proj": f"{_GEMMA4}.{short}_proj.linear" for short in "qkvo"},
            "q_norm": f"{_GEMMA4}.q_norm",
            "k_norm": f"{_GEMMA4}.k_norm",
            "input_norm": "encoder.layers.{layer}.input_layernorm",
        },
    ),
    "llama4_vision_model": WeightNames(
        ("vision_model.model.", "model.vision_model.model.", "model.", ""),
        separate("layers.{layer}.self_attn", "o_proj", input_norm="layers.{layer}.input_layernorm"),
    ),
    "vjepa2": WeightNames(
        ("vjepa2.", ""),
        {
            "q_proj": "encoder.layer.{layer}.attention.query",
            "k_proj": "encoder.layer.{layer}.attention.key",
            "v_proj": "encoder.layer.{layer}.attention.value",
            "o_proj": "encoder.layer.{layer}.attention.proj",
            "input_norm": "encoder.layer.{layer}.norm1",
        },
    ),
}
