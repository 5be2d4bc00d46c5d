"""transformers' own models whose tokens have several coordinates, tiny, and the calls that each is compared on.

A text model reads a picture between words, then one word more from its cache; a tower reads a grid that is no square,
but where its own class takes squares alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from tests.reference.transformers_model import norm_latents_in_float64, widen
from tests.reference.transformers_runs import Call, Record

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TEXT = {
    "vocab_size": 53,
    "pad_token_id": 0,
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}
EXPERTS = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 20,
    "experts_implementation": "eager",  # others have no float64
}
LATENTS = {"qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 12, "q_lora_rank": 14, "kv_lora_rank": 20}
TOWER = {"depth": 2, "hidden_size": 48, "num_heads": 4, "intermediate_size": 20, "patch_size": 2}
USUAL = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 20, "patch_size": 2}

SOUND = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 20}


def rope(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": list(sections), **more}}


@dataclass(frozen=True)
class Case:
    """``run`` gives the calls of a model; ``float32``: what is computed in float32 although the model is float64."""

    family: str
    cls: str
    config: dict[str, Any]
    run: Callable[[Any, Case], list[Call]]
    query: str = "self_attn.q_proj"
    output: str = "self_attn.o_proj"
    float32: tuple[str, ...] = ()
    exact: bool = False
    part: str | None = None
    gain: float = 2.9
    widest: float = 5e-5
    implementation: str = "sdpa"

    def build(self, folder: Any) -> Any:
        module = importlib.import_module(f"transformers.models.{self.family}.modeling_{self.family}")
        cls = getattr(module, self.cls)
        model = cls._from_config(cls.config_class(**self.config), attn_implementation=self.implementation)
        widen(model, 0, self.gain)
        model.eval().save_pretrained(folder)
        norm_latents_in_float64(model.double())
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.float()  # angles are float32's in a model of any type
        return model


def random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).normal(size=shape))


def reads_a_picture(model: Any, case: Case) -> list[Call]:
    """Two words, a picture of 2 x 3 patches, a word; one row of the batch has two pads before them."""
    grid = np.indices((2, 3)).reshape(2, -1)
    whole = np.array([[0, 1, *[2] * 6, 5], [0, 1, *(2 + grid[0]), 5], [0, 1, *(2 + grid[1]), 5]])
    positions = torch.from_numpy(np.stack([whole, np.pad(whole, ((0, 0), (2, 0)))[:, :9]], axis=1))
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, :2] = 0
    after = torch.tensor([6, 5]).expand(3, -1)[..., None]
    record, cache = Record(model, case), transformers.DynamicCache(config=model.config)
    calls = []
    for rows, ids in ((9, positions), (1, after)):
        done = 9 if rows == 9 else 10
        states = random(2, rows, model.config.hidden_size)
        with torch.no_grad():
            model(inputs_embeds=states, attention_mask=mask[:, :done], position_ids=ids, cache=cache, use_cache=True)
        calls.append(Call(mask[:, :done], ids, record.take()))
    return calls


def reads_words(model: Any, case: Case) -> list[Call]:
    """Five words of one coordinate, far apart, then two more from the cache; one row of the batch has two pads."""
    positions = torch.tensor([[0, 3, 4, 9, 17, 18, 30], [0, 0, 0, 5, 6, 7, 11]])
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, :2] = 0
    record, cache = Record(model, case), transformers.DynamicCache(config=model.config)
    calls = []
    for rows in (slice(0, 5), slice(5, 7)):
        states = random(2, rows.stop - rows.start, model.config.hidden_size)
        seen, ids = mask[:, : rows.stop], positions[:, rows]
        with torch.no_grad():
            model(inputs_embeds=states, attention_mask=seen, position_ids=ids, cache=cache, use_cache=True)
        calls.append(Call(seen, ids, record.take()))
    return calls


def encodes_words(model: Any, case: Case) -> list[Call]:
    """Seven words in one call, without a cache; one row of the batch has two pads."""
    positions = torch.tensor([[0, 3, 4, 9, 17, 18, 30], [0, 0, 0, 5, 6, 7, 11]])
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, :2] = 0
    record, states = Record(model, case), random(2, 7, model.config.hidden_size)
    with torch.no_grad():
        model(inputs_embeds=states, attention_mask=mask, position_ids=positions)
    return [Call(mask, positions, record.take())]


def encodes_frames(model: Any, case: Case) -> list[Call]:
    """Five frames, each of which becomes two; the last of one row of the batch is a pad."""
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[1, 4] = 0
    record, states = Record(model, case), random(2, 5, model.config.hidden_size)
    with torch.no_grad():
        model(inputs_embeds=states, attention_mask=mask)
    return [Call(mask.repeat_interleave(2, dim=1), torch.arange(10).expand(2, -1), record.take())]


def sees(positions: torch.Tensor, layers: list[Any]) -> list[Call]:
    """One call of a tower, whose tokens may have no batch."""
    batched = [tuple(x if x.ndim == 3 else x[None] for x in layer) for layer in layers]
    rows = batched[0][0].shape[1]
    return [Call(torch.ones(1, rows, dtype=torch.long), positions[:, None], batched)]


def sees_patches(model: Any, case: Case) -> list[Call]:
    """Qwen's towers take patches as they are cut, in the order of their merger; the rotary module is told where."""
    record, told = Record(model, case), []
    model.rotary_pos_emb.register_forward_pre_hook(lambda _, args: told.append(args[1]))
    config = model.config
    patch = 3 * getattr(config, "temporal_patch_size", 1) * config.patch_size**2
    with torch.no_grad():
        model(random(24, patch), grid_thw=torch.tensor([[1, 4, 6]]))
    return sees(told[0].T if told[0].shape[-1] == 2 else told[0], record.take())


def sees_rows_of_patches(model: Any, case: Case) -> list[Call]:
    """Muse: 4 x 6 patches in one window, row by row."""
    record, config = Record(model, case), model.config
    patch = 3 * config.patch_temporal * config.patch_size**2
    with torch.no_grad():
        model(random(24, patch), grid_thw=torch.tensor([[1, 4, 6]]))
    return sees(torch.from_numpy(np.indices((4, 6)).reshape(2, -1)), record.take())


def sees_behind_a_class_token(model: Any, case: Case) -> list[Call]:
    """Inkling: a class token, then 4 x 6 patches, cut in squares of 2 x 2."""
    record = Record(model, case)
    with torch.no_grad():
        model(random(6, 4, 4, 3), image_grid_thw=torch.tensor([[1, 2, 3]]))
    squares = np.indices((2, 3, 2, 2)).reshape(4, -1)
    cells = 2 * squares[:2] + squares[2:]
    return sees(torch.from_numpy(np.pad(cells, ((0, 0), (1, 0)))), record.take())


def sees_a_square_behind_registers(model: Any, case: Case) -> list[Call]:
    """EoMT: a class token and registers, then 4 x 4 patches."""
    record = Record(model, case)
    with torch.no_grad():
        model(random(1, 3, 8, 8))
    first = 1 + model.config.num_register_tokens
    return sees(torch.from_numpy(np.pad(np.indices((4, 4)).reshape(2, -1), ((0, 0), (first, 0)))), record.take())


def hears(model: Any, case: Case) -> list[Call]:
    """Frames of sound, numbered from 0 behind what folds them."""
    record = Record(model, case)
    with torch.no_grad():
        model(random(1, 8, 22))
    layers = record.take()
    frames = layers[0][0].shape[1]
    return [Call(torch.ones(1, frames, dtype=torch.long), torch.arange(frames)[None], layers)]


def hears_embedded(model: Any, case: Case) -> list[Call]:
    """Eleven frames, embedded."""
    record, frames = Record(model, case), torch.tensor([[0, 1, 5, 6, 7, 20, 21, 22, 23, 40, 41]])
    with torch.no_grad():
        model(inputs_embeds=random(1, 11, model.config.hidden_size), position_ids=frames)
    return [Call(torch.ones(1, 11, dtype=torch.long), frames, record.take())]


def sees_windows(model: Any, case: Case) -> list[Call]:
    """SAM 3: 4 x 4 patches, whose cells count as those of a window of 3."""
    record = Record(model, case)
    with torch.no_grad():
        model(random(1, 3, 8, 8))
    layers = [tuple(x.flatten(1, 2) if x.ndim == 4 else x for x in layer) for layer in record.take()]
    return sees(torch.from_numpy(np.indices((4, 4)).reshape(2, -1)), layers)


def sees_an_image(model: Any, case: Case) -> list[Call]:
    """Pixtral: 3 x 5 patches."""
    record = Record(model, case)
    with torch.no_grad():
        model(random(1, 3, 6, 10))
    return sees(torch.from_numpy(np.indices((3, 5)).reshape(2, -1)), record.take())


def sees_columns_first(model: Any, case: Case) -> list[Call]:
    """Gemma 4: 3 x 6 patches, which its processor numbers by column and row."""
    record, cells = Record(model, case), torch.from_numpy(np.indices((3, 6)).reshape(2, -1))
    with torch.no_grad():
        model(random(1, 18, 12), cells.flip(0).T[None])
    return sees(cells, record.take())


def sees_behind_registers(model: Any, case: Case) -> list[Call]:
    """DINOv3: a class token and registers, then 3 x 5 patches."""
    calls = sees_an_image(model, case)
    first = 1 + model.config.num_register_tokens
    positions = np.pad(np.indices((3, 5)).reshape(2, -1), ((0, 0), (first, 0)))
    return [Call(calls[0].mask, torch.from_numpy(positions)[:, None], calls[0].layers)]


def sees_a_square(model: Any, case: Case) -> list[Call]:
    """Llama 4: 4 x 4 patches, then the class token."""
    record = Record(model, case)
    with torch.no_grad():
        model(random(1, 3, 8, 8))
    return sees(torch.from_numpy(np.pad(np.indices((4, 4)).reshape(2, -1), ((0, 0), (0, 1)))), record.take())


def sees_a_film(model: Any, case: Case) -> list[Call]:
    """V-JEPA 2: two frames of 3 x 3 patches; its predictor comes behind its encoder."""
    record = Record(model.encoder, case)
    with torch.no_grad():
        model(random(1, 4, 3, 6, 6), skip_predictor=True)
    return sees(torch.from_numpy(np.indices((2, 3, 3)).reshape(3, -1)), record.take())


_M3_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}
_FUSED = {"query": "attn.qkv", "output": "attn.proj"}
_QWEN_TOWER = {**_FUSED, "float32": ("qk",), "gain": 1.2}
CASES = {
    "qwen2_vl_text": Case("qwen2_vl", "Qwen2VLTextModel", {**TEXT, **rope(2, 3, 3)}, reads_a_picture),
    "qwen2_5_vl_text": Case("qwen2_5_vl", "Qwen2_5_VLTextModel", {**TEXT, **rope(4, 2, 2)}, reads_a_picture),
    "qwen3_vl_text": Case(
        "qwen3_vl",
        "Qwen3VLTextModel",
        {**TEXT, "head_dim": 8, **rope(2, 1, 1)},
        reads_a_picture,
        float32=("qk",),
    ),
    **{
        f"{family}_text": Case(
            family,
            cls,
            {**TEXT, **more, "head_dim": 32, "layer_types": ["full_attention"] * 2}
            | rope(2, 1, 1, partial_rotary_factor=0.25, mrope_interleaved=True),
            reads_a_picture,
            float32=("qk",),
            widest=1e-4,
        )
        for family, cls, more in (
            ("qwen3_5", "Qwen3_5TextModel", {"attention_bias": True}),
            ("qwen3_5_moe", "Qwen3_5MoeTextModel", EXPERTS),
        )
    },
    "glm4v_text": Case(
        "glm4v", "Glm4vTextModel", {**TEXT, **rope(1, 1, 2, partial_rotary_factor=0.5)}, reads_a_picture
    ),
    "paddleocr_vl_text": Case(
        "paddleocr_vl", "PaddleOCRTextModel", {**TEXT, "head_dim": 16, **rope(2, 3, 3)}, reads_a_picture
    ),
    "glm_ocr_text": Case("glm_ocr", "GlmOcrTextModel", {**TEXT, "head_dim": 16, **rope(2, 3, 3)}, reads_a_picture),
    "glm_image_text": Case(
        "glm_image", "GlmImageTextModel", {**TEXT, **rope(1, 1, 2, partial_rotary_factor=0.5)}, reads_a_picture
    ),
    "hy_v4_vl_text": Case(
        "hy_v4_vl",
        "HYV4VLTextModel",
        {**TEXT, **LATENTS, "mlp_layer_types": ["dense"] * 2, "index_topk": 64, "index_head_dim": 8, "index_n_heads": 3}
        | rope(2, 1, 1),
        reads_a_picture,
        query="kv_a_proj_with_mqa",
        float32=("qk",),
        gain=1.7,
        widest=1e-4,
        implementation="eager",
    ),
    "qwen2_5_omni_text": Case(
        "qwen2_5_omni", "Qwen2_5OmniThinkerTextModel", {**TEXT, **rope(2, 3, 3)}, reads_a_picture
    ),
    "cosmos3_edge_text": Case(
        "cosmos3_edge", "Cosmos3EdgeTextModel", {**TEXT, "head_dim": 16, **rope(3, 3, 2)}, reads_a_picture
    ),
    "cohere_compass_text": Case(
        "cohere_compass",
        "CohereCompassTextModel",
        {**TEXT, "rope_parameters": {"full_attention": rope(4, 2, 2)["rope_parameters"]}},
        reads_a_picture,
    ),
    "qwen3_omni_moe_talker_text": Case(
        "qwen3_omni_moe",
        "Qwen3OmniMoeTalkerModel",
        {**TEXT, **EXPERTS, "head_dim": 8, **rope(2, 1, 1)},
        reads_a_picture,
        float32=("qk",),
    ),
    "qwen3_omni_moe_talker_code_predictor": Case(
        "qwen3_omni_moe",
        "Qwen3OmniMoeTalkerCodePredictorModel",
        {**TEXT, "head_dim": 8, "num_code_groups": 3},
        reads_words,
        float32=("qk",),
    ),
    "t5gemma2_text": Case(
        "t5gemma2",
        "T5Gemma2TextEncoder",
        {**TEXT, "head_dim": 8, "query_pre_attn_scalar": 5, "sliding_window": 5, "dropout_rate": 0.0}
        | {"layer_types": ["sliding_attention", "full_attention"], "attention_bias": True},
        encodes_words,
        float32=("qk",),
        widest=1e-4,
    ),
    "nemotron3_5_transcribe_word_timestamp": Case(
        "nemotron3_5_transcribe",
        "Nemotron3_5TranscribeWordTimestampModel",
        {name: size for name, size in TEXT.items() if "key_value" not in name and "pad" not in name}
        | {"vocab_size": 53, "blank_token_id": 52},
        encodes_frames,
    ),
    "muse_glimmer_text": Case(
        "muse_glimmer",
        "MuseGlimmerTextModel",
        {**TEXT, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
        reads_words,
        float32=("qk",),
    ),
    "minimax_m3_vl_text": Case(
        "minimax_m3_vl",
        "MiniMaxM3VLTextModel",
        {**TEXT, "head_dim": 8, "mlp_layer_types": ["dense"] * 2, "dense_intermediate_size": 20, **_M3_ROPE},
        reads_words,
        float32=("qk",),
        widest=1e-4,  # its norms add 1 to their weights
    ),
    "qwen2_vl_vision": Case(
        "qwen2_vl",
        "Qwen2VisionTransformerPretrainedModel",
        {"depth": 2, "embed_dim": 48, "num_heads": 4, "hidden_size": 20, "patch_size": 2},
        sees_patches,
        **_QWEN_TOWER,
    ),
    "qwen3_vl_vision": Case(
        "qwen3_vl",
        "Qwen3VLVisionModel",
        {**TOWER, "out_hidden_size": 20, "num_position_embeddings": 64, "deepstack_visual_indexes": []},
        sees_patches,
        **_QWEN_TOWER,
    ),
    "qwen3_5_vision": Case(
        "qwen3_5",
        "Qwen3_5VisionModel",
        {**TOWER, "out_hidden_size": 20, "num_position_embeddings": 64},
        sees_patches,
        **_QWEN_TOWER,
    ),
    "qwen4_exp_vision": Case(
        "qwen4_exp",
        "Qwen4ExpVisionModel",
        {**TOWER, "out_hidden_size": 20, "num_position_embeddings": 64},
        sees_patches,
        **_QWEN_TOWER,
    ),
    "exaone4_5_vision": Case(
        "exaone4_5",
        "Exaone4_5_VisionModel",
        {**TOWER, "num_key_value_heads": 2, "out_hidden_size": 20, "fullatt_block_indexes": [0, 1]},
        sees_patches,
        **_QWEN_TOWER,
    ),
    "glm5_next_vision": Case(
        "glm5_next",
        "Glm5NextVisionModel",
        {**TOWER, "out_hidden_size": 20, "projection_intermediate_size": 20},
        sees_patches,
        **_QWEN_TOWER,
        widest=1e-4,
    ),
    "dots3_note_vision_encoder": Case(
        "dots3_note",
        "Dots3NoteVisionModel",
        {**USUAL, "mlp_layer_types": ["dense"] * 2, "adapter_in_dim": 48, "adapter_out_dim": 20},
        sees_patches,
        **_QWEN_TOWER,
        widest=1e-4,
    ),
    "lfm3_vl_vision": Case(
        "lfm3_vl",
        "Lfm3VlVisionModel",
        {**USUAL, "layer_types": ["full_attention"] * 2, "num_key_value_heads": 2},
        sees_patches,
        output="self_attn.out_proj",
        float32=("qk",),
        widest=1e-4,
    ),
    **{
        f"{family}_vision": Case(
            family,
            name,
            {**USUAL, "layer_types": ["full_attention"] * 2},
            sees_rows_of_patches,
            query="attn.q_proj",
            output="attn.proj",
            float32=("qk",),
            gain=1.0,
        )
        for family, name in (("muse_spark", "MuseSparkVisionModel"), ("muse_glimmer", "MuseGlimmerVisionModel"))
    },
    "inkling2_vision": Case(
        "inkling2",
        "Inkling2VisionModel",
        {**USUAL, "projection_hidden_dim": 20, "text_hidden_size": 20},
        sees_behind_a_class_token,
        output="self_attn.out_proj",
        float32=("qk",),
        gain=1.5,
    ),
    "sapiens2": Case(
        "sapiens2",
        "Sapiens2Model",
        {
            **USUAL,
            "num_register_tokens": 2,
            "num_key_value_attention_heads": 2,
            "num_first_full_attention_layers": 1,
            "num_last_full_attention_layers": 0,
        },
        sees_behind_registers,
        query="attention.q_proj",
        output="attention.o_proj",
        float32=("qk",),
    ),
    "sam3_vit_model": Case(
        "sam3",
        "Sam3ViTModel",
        {**USUAL, "image_size": 8, "pretrain_image_size": 8, "window_size": 3, "global_attn_indexes": [0, 1]},
        sees_windows,
        query="attention.q_proj",
        output="attention.o_proj",
        float32=("qk",),
        gain=1.5,
    ),
    "glmasr_encoder": Case("glmasr", "GlmAsrEncoder", {**SOUND, "num_mel_bins": 8}, hears),
    "nemotron3_diarization_audio": Case(
        "nemotron3_diarization",
        "Nemotron3DiarizationAudioModel",
        {**SOUND, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        hears_embedded,
    ),
    "nemotron3_5_transcribe_asr_audio": Case(
        "nemotron3_5_transcribe",
        "Nemotron3_5TranscribeAsrAudioModel",
        {**SOUND, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        hears_embedded,
    ),
    "eomt_dinov3": Case(
        "eomt_dinov3",
        "EomtDinov3ForUniversalSegmentation",
        {
            **USUAL,
            "num_hidden_layers": 3,
            "num_blocks": 1,
            "image_size": 8,
            "num_register_tokens": 2,
            "num_queries": 3,
            "num_upscale_blocks": 1,
        },
        sees_a_square_behind_registers,
        query="attention.q_proj",
        output="attention.o_proj",
    ),
    "pixtral": Case(
        "pixtral",
        "PixtralVisionModel",
        {**USUAL, "image_size": 16, "head_dim": 12},
        sees_an_image,
        query="attention.q_proj",
        output="attention.o_proj",
    ),
    "dinov3_vit": Case(
        "dinov3_vit",
        "DINOv3ViTModel",
        {**USUAL, "image_size": 16, "num_register_tokens": 2},
        sees_behind_registers,
        query="attention.q_proj",
        output="attention.o_proj",
    ),
    "gemma4_vision": Case(
        "gemma4",
        "Gemma4VisionModel",
        {**USUAL, "num_key_value_heads": 2, "head_dim": 12, "position_embedding_size": 7},
        sees_columns_first,
        float32=("qk", "v"),
        widest=1e-4,
    ),
    "llama4_vision_model": Case(
        "llama4",
        "Llama4VisionModel",
        {
            **USUAL,
            "intermediate_size": 192,
            "image_size": 8,
            "vision_output_dim": 20,
            "projector_input_dim": 20,
            "projector_output_dim": 20,
        },
        sees_a_square,
        float32=("qk",),
        gain=1.5,
    ),
    "vjepa2": Case(
        "vjepa2",
        "VJEPA2Model",
        {
            "num_hidden_layers": 2,
            "hidden_size": 48,
            "num_attention_heads": 2,
            "patch_size": 2,
            "crop_size": 6,
            "frames_per_clip": 4,
            "pred_hidden_size": 24,
            "pred_num_attention_heads": 2,
            "pred_num_hidden_layers": 1,
        },
        sees_a_film,
        query="attention.query",
        output="attention.proj",
        exact=True,
        part="encoder",
    ),
}
