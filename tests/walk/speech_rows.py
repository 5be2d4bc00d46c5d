"""Encoders of sound, and series, with a rotary module or sinusoids: one row a model_type."""

from __future__ import annotations

import torch

from tests.walk.ropes import scaled
from tests.walk.rotary_check import rotary
from tests.walk.row import Case, Row
from tests.walk.site_checks import sinusoids


def omni(case: Case) -> torch.Tensor:
    """Qwen-Omni's rows of sinusoids."""
    rows: torch.Tensor = case.modeling.SinusoidsPositionEmbedding(40, case.config.d_model).positional_embedding
    return rows


SPEECH = (
    *(
        Row(f"pocket_tts_audio_tokenizer{part}", rotary("PocketTTSAudioTokenizerRotaryEmbedding"), scaled())
        for part in ("", "_encoder", "_decoder")
    ),
    Row("glmasr_encoder", rotary("GlmAsrRotaryEmbedding"), scaled(partial_rotary_factor=0.25)),
    Row(
        "nemotron3_diarization_audio",
        rotary("Nemotron3DiarizationRotaryEmbedding"),
        scaled(partial_rotary_factor=0.5),
    ),
    Row(
        "nemotron3_5_transcribe_asr_audio",
        rotary("Nemotron3_5TranscribeRotaryEmbedding"),
        scaled(partial_rotary_factor=0.25),
    ),
    Row("dots3_note_audio_encoder", rotary("Dots3NoteAudioRotaryEmbedding"), scaled(partial_rotary_factor=0.25)),
    Row("timesfm2_5", rotary("TimesFm2_5RotaryEmbedding"), scaled()),
    *(
        Row(name, sinusoids(omni), {"narrow": {"d_model": 320}})
        for name in ("qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder")
    ),
)
