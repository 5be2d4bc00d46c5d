"""Speech models with rotary embeddings: one row a model_type and part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import norms, projection_biases, scales, sites, windows
from portpe.config.layer import Family, Size, Sizes, never
from portpe.config.rope import Rope
from portpe.config.rows import HALF, LENGTH, NO_BIAS, SWITCHED, decoder, one_kv_a_head, rms, sizes
from portpe.layer_parts import Norm

_MOONSHINE = Rope(pairing="interleaved", partial=0.9)


def _moonshine(part: str) -> Family:
    other = "decoder" if part == "encoder" else "encoder"
    return decoder(
        "moonshine",
        Sizes(
            hidden=Size(("hidden_size",), 288),
            heads=Size((f"{part}_num_attention_heads",), 8),
            layers=Size((f"{part}_num_hidden_layers",), 6),
            kv_heads=lambda config, heads, _kind: config.integer(f"{part}_num_key_value_heads", heads),
            head_dim=None,
            length=Size((LENGTH,), 512),
        ),
        norms.layer_norm(None, 1e-5, bias=False),
        site=sites.rotary(_MOONSHINE),
        biases=projection_biases.switched("attention_bias", False, "qkv"),
        part=part,
        causal=(lambda _layer: True) if part == "decoder" else never,
        harmless=frozenset({f"{other}_num_attention_heads", f"{other}_num_key_value_heads"})
        | {"pad_head_dim_to_multiple_of"},
    )


def _dia(model_type: str, one: Sizes) -> Family:
    """Dia: no scale; its two stacks are model types of their own."""
    return decoder(
        model_type,
        one,
        rms(1e-5, key="norm_eps"),
        biases=NO_BIAS,
        scale=scales.fixed(1.0),
        causal=(lambda _layer: True) if model_type == "dia_decoder" else never,
        harmless=frozenset({"cross_num_attention_heads", "cross_head_dim", "cross_num_key_value_heads"}),
    )


def _nemotron(model_type: str, one: Sizes, partial: float, **more: Any) -> Family:
    """Nemotron 3's encoders of sound: of its projections the output's alone has a bias."""
    return decoder(
        model_type,
        one,
        norms.layer_norm(None, 1e-5),
        rope=Rope(partial=partial),
        biases=projection_biases.fixed("o"),
        causal=never,
        **more,
    )


_HEAD_NORM = Norm(kind="layer", eps=1e-5, scope="head", bias=True)
_MIMI = decoder(
    "mimi",
    sizes(512, 8, 8, 8000, kv_heads=8),
    norms.layer_norm("norm_eps", 1e-5),
    window=windows.every_layer(250),
    harmless=frozenset({"layer_scale_initial_scale"}),
)

SPEECH_ROPE_FAMILIES = (
    _moonshine("encoder"),
    _moonshine("decoder"),
    _dia("dia_encoder", sizes(1024, 16, 12, 1024, kv_heads=16, head_dim=128)),
    _dia("dia_decoder", sizes(2048, 16, 18, 3072, kv_heads=4, head_dim=128)),
    decoder(
        "moshi",
        sizes(4096, 32, 32, 3000),
        rms(1e-8),
        biases=NO_BIAS,
        window=windows.every_layer(3000),
    ),
    *(
        decoder(
            model_type,
            one,
            norms.layer_norm("layer_norm_eps", 1e-5),
            harmless=frozenset(
                {"flow_head_config", "flow_head_embed_dim", "flow_head_num_layers", "duration_delta_scale"}
            ),
        )
        for model_type, one in (
            ("pocket_tts", sizes(1024, 16, 6, 8192)),
            ("gradium_phonon_tts", sizes(768, 12, 6, 8192)),
        )
    ),
    _MIMI,
    replace(_MIMI, model_type="mimi_encoder"),
    replace(_MIMI, model_type="mimi_decoder"),
    decoder(
        "voxtral_realtime_encoder",
        replace(one_kv_a_head(1280, 32, 32, 1500), head_dim=64),
        rms(1e-5),
        biases=projection_biases.fixed("qvo"),
        window=windows.every_layer(750),
    ),
    *(
        replace(
            _MIMI,
            model_type=f"pocket_tts_audio_tokenizer{part}",
            sizes=replace(_MIMI.sizes, layers=Size(("num_hidden_layers",), 2)),
        )
        for part in ("", "_encoder", "_decoder")
    ),
    decoder(
        "glmasr_encoder",
        sizes(1280, 20, 32, 1500),
        norms.layer_norm(None, 1e-5),
        rope=Rope(partial=0.5),
        biases=projection_biases.fixed("qvo"),
        causal=never,
    ),
    _nemotron("nemotron3_diarization_audio", sizes(512, 8, 31, 5000), 1.0),
    _nemotron(
        "nemotron3_5_transcribe_asr_audio",
        sizes(1280, 10, 32, 5000),
        0.5,
        qk_norms=lambda _layer: (_HEAD_NORM, _HEAD_NORM),
    ),
    decoder(
        "dots3_note_audio_encoder",
        one_kv_a_head(1280, 20, 32, 6000),
        norms.fixed_rms(1e-6),
        rope=Rope(partial=0.5),
        biases=projection_biases.switched("attention_bias", True, "qvo"),
        causal=never,
    ),
    decoder(
        "lasr_encoder",
        one_kv_a_head(512, 8, 17, 10000),
        norms.layer_norm("layer_norm_eps", 1e-6, bias=False),
        biases=SWITCHED,
        causal=never,
        rope=HALF,
        harmless=frozenset({"dropout_positions", "batch_norm_momentum"}),
    ),
)
