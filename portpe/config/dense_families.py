"""Decoders with rotary embeddings of one kind on every layer and one feed-forward: one row a model_type."""

from __future__ import annotations

from dataclasses import replace

from portpe.config import extras, norms, projection_biases, scales, sites, windows
from portpe.config.layer import Family, Layer, Size, Sizes, of_key, of_partial
from portpe.config.rope import Rope
from portpe.config.rows import HALF, NO_BIAS, decoder, head_norms, one_kv_a_head, rms, sizes
from portpe.layer_parts import Norm, ProjectionBiases

_APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


_HIGGS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "high_freq_factor": 0.5,
    "low_freq_factor": 0.125,
    "original_max_position_embeddings": 1024,
}


def _hyperclova_scale(layer: Layer) -> float:
    return layer.config.positive("attention_multiplier", float(layer.head_dim**-0.5))


def _exaone_eps(layer: Layer) -> Norm:
    """EXAONE 3 has two names for it, its own and Llama's."""
    key = layer.config.either("rms_norm_eps", "layer_norm_epsilon")
    return Norm(kind="rms", eps=layer.config.positive(key, 1e-5))


def _nanochat_norms(layer: Layer) -> tuple[Norm, Norm]:
    """nanochat: RMS norms without weight, after the rotation."""
    norm = Norm(kind="rms", eps=layer.config.positive("rms_norm_eps", 1e-6), affine=False, when="after")
    return norm, norm


def _bias_of_the_last(layer: Layer) -> ProjectionBiases:
    """GPT-NeoX Japanese: the output projection of the last layer alone has a bias."""
    return ProjectionBiases(o=layer.index == layer.num_layers - 1)


def _bitnet_beyond(layer: Layer) -> str:  # noqa: ARG001
    return "an RMS norm between its heads and o_proj"


def _diffllama_beyond(layer: Layer) -> str:  # noqa: ARG001
    return "a difference of two softmaxes (differential attention)"


DENSE_FAMILIES = (
    decoder("olmo", sizes(4096, 32, 32, 2048), norms.unit_layer_norm(1e-5), extras=extras.clip),
    decoder("arcee", sizes(2560, 32, 32, 4096), rms(1e-5)),
    decoder("aria_text", sizes(4096, 32, 32, 2048), rms(1e-6)),
    decoder("internlm3", sizes(4096, 32, 48, 32768, kv_heads=2, head_dim=128), rms(1e-5)),
    decoder("iquestcoder", sizes(5120, 40, 80, 131072, kv_heads=8, head_dim=128), rms(1e-5)),
    decoder(
        "exaone",
        replace(sizes(4096, 32, 32, 4096, kv_heads=8), layers=Size(("num_hidden_layers", "num_layers"), 32)),
        _exaone_eps,
        rope=replace(HALF, theta=500000.0),
    ),
    decoder(
        "apertus",
        sizes(4096, 32, 32, 65536),
        rms(1e-5),
        rope=replace(HALF, theta=12000000.0, absent=_APERTUS_ROPE),
        qk_norms=head_norms(1e-5),
        fixed={"qk_norm": (True,), "post_norm": (False,)},
    ),
    decoder(
        "apertus1p5_text",
        sizes(4096, 32, 32, 65536),
        rms(1e-5),
        rope=replace(HALF, theta=12000000.0, absent=_APERTUS_ROPE),
        qk_norms=head_norms(1e-5),
    ),
    decoder(
        "jais2",
        sizes(3328, 26, 32, 8192),
        norms.layer_norm("layer_norm_eps", 1e-5),
        biases=projection_biases.switched("attention_bias", True, "qkvo"),
    ),
    decoder(
        "seed_oss",
        sizes(4096, 80, 64, 524288, kv_heads=8, head_dim=128),
        rms(1e-6),
        biases=projection_biases.both(
            projection_biases.switched("attention_bias", True, "qkv"),
            projection_biases.switched("attention_out_bias", False, "o"),
        ),
    ),
    decoder(
        "helium",
        sizes(2560, 20, 24, 4096, kv_heads=20, head_dim=128),
        rms(1e-8),
        rope=Rope(pairing="interleaved", theta=100000.0, ignores_partial=True),
        biases=projection_biases.switched("attention_bias", False, "qkv"),
    ),
    decoder(
        "ernie4_5",
        sizes(1024, 16, 18, 131072, kv_heads=2, head_dim=128),
        rms(1e-5),
        rope=Rope(pairing="interleaved", theta=500000.0, ignores_partial=True),
        biases=projection_biases.switched("use_bias", False, "qkvo"),
    ),
    decoder("deepseek_ocr2_text", sizes(4096, 32, 32, 2048), rms(1e-6)),
    decoder("emu3_text_model", sizes(4096, 32, 32, 9216, kv_heads=8), rms(1e-5), rope=replace(HALF, theta=1e6)),
    decoder(
        "higgs_audio_v2",
        sizes(3072, 24, 28, 2048, kv_heads=8, head_dim=128),
        rms(1e-5),
        rope=replace(HALF, theta=500000.0, absent=_HIGGS_ROPE),
    ),
    decoder(
        "voxtral_realtime_text",
        sizes(4096, 32, 32, 131072, kv_heads=8),
        rms(1e-6),
        biases=NO_BIAS,
        window=windows.every_layer(4096),
    ),
    decoder(
        "csm_depth_decoder_model",
        sizes(1024, 8, 4, 33, kv_heads=2),
        rms(1e-5),
        rope=replace(HALF, theta=500000.0),
    ),
    *(
        decoder(
            model_type,
            one,
            rms(1e-5),
            rope=Rope(pairing="interleaved", theta=theta, ignores_partial=True),
            biases=NO_BIAS,
            window=windows.every_layer(window),
            harmless=frozenset({"cross_attn_all_layers", "cross_attn_k"}),
        )
        for model_type, one, theta, window in (
            ("blt_global_transformer", sizes(2048, 16, 25, 4096, head_dim=None), 500000.0, None),
            ("blt_local_encoder", sizes(1024, 16, 1, 24576, head_dim=None), 500000.0, None),
            ("blt_local_decoder", sizes(1024, 16, 9, 24576, head_dim=None), 500000.0, None),
            ("blt_patcher", sizes(768, 12, 14, 8192, head_dim=None), 10000.0, 512),
        )
    ),
    decoder(
        "codegen",
        Sizes(
            hidden=Size(("n_embd", "hidden_size"), 4096),
            heads=Size(("n_head", "num_attention_heads"), 16),
            layers=Size(("n_layer", "num_hidden_layers"), 28),
            head_dim=None,
            length=Size(("n_positions", "max_position_embeddings"), 2048),
        ),
        norms.layer_norm("layer_norm_epsilon", 1e-5),
        site=sites.gptj_rotary,
        biases=NO_BIAS,
        fixed={"scale_attn_weights": (True,)},
    ),
    decoder(
        "hyperclovax",
        sizes(4096, 32, 32, 2048),
        rms(1e-6),
        scale=_hyperclova_scale,
        harmless=frozenset({"use_post_norm"}),
    ),
    *(
        decoder(model_type, one, rms(eps), scale=scales.of_key("attention_multiplier", multiplier))
        for model_type, one, eps, multiplier in (
            ("granite4_vision_text", sizes(4096, 32, 32, 2048), 1e-6, 1.0),
            ("granite_docling_text", sizes(1024, 16, 28, 32768, kv_heads=4), 1e-5, 0.015625),
        )
    ),
    decoder("granite", sizes(4096, 32, 32, 2048), rms(1e-6), scale=scales.of_key("attention_multiplier", 1.0)),
    decoder(
        "starcoder2",
        sizes(3072, 24, 30, 4096, kv_heads=2),
        norms.layer_norm("norm_epsilon", 1e-5),
        biases=projection_biases.switched("use_bias", True, "qkvo"),
        window=windows.every_layer(None),
        fixed={"norm_type": ("layer_norm",), "scale_attn_weights": (True,)},
        restates={"layer_norm_epsilon": of_key("norm_epsilon", 1e-5)},
    ),
    decoder(
        "stablelm",
        sizes(2560, 32, 32, 4096, kv_heads=32, head_dim=None),
        norms.layer_norm("layer_norm_eps", 1e-5),
        rope=Rope(partial=0.25),
        # StableLM 2 12B says that its norms have no biases, and has them in its checkpoint
        harmless=frozenset({"use_norm_bias"}),
        fixed={"rotary_scaling_factor": (1.0,)},
        restates={"rope_pct": of_partial(0.25), "norm_eps": of_key("layer_norm_eps", 1e-5)},
        biases=projection_biases.switched("use_qkv_bias", False, "qkv"),
        qk_norms=norms.when("qk_layernorm", False, norms.head_layer_norm("layer_norm_eps", 1e-5, per_head_weight=True)),
    ),
    decoder(
        "persimmon",
        one_kv_a_head(4096, 64, 36, 16384),
        norms.layer_norm("layer_norm_eps", 1e-5),
        rope=Rope(partial=0.5),
        biases=projection_biases.fixed("qkvo"),
        qk_norms=norms.when("qk_layernorm", True, norms.head_layer_norm("layer_norm_eps", 1e-5, bias=True)),
    ),
    decoder(
        "nemotron",
        sizes(6144, 48, 32, 4096),
        norms.layer_norm("norm_eps", 1e-5, weight_offset=1.0),
        rope=Rope(partial=0.5),
    ),
    decoder(
        "nanochat",
        sizes(768, 6, 12, 2048),
        norms.unit_rms("rms_norm_eps", 1e-6),
        rope=replace(HALF, sign=-1),
        qk_norms=_nanochat_norms,
    ),
    decoder(
        "sarvam_moe",
        sizes(4096, 64, 19, 131072, kv_heads=4, head_dim=64),
        rms(1e-6),
        rope=Rope(theta=8e6),
        biases=projection_biases.switched("attention_bias", False, "qkv"),
        qk_norms=norms.when("use_qk_norm", True, head_norms(1e-6)),
    ),
    decoder(
        "bitnet",
        sizes(2560, 20, 30, 2048, kv_heads=5),
        rms(1e-5),
        rope=replace(HALF, theta=500000.0),
        beyond=_bitnet_beyond,
    ),
    decoder("diffllama", sizes(2048, 32, 16, 2048), rms(1e-5), beyond=_diffllama_beyond),
    decoder(
        "csm",
        sizes(2048, 32, 16, 2048, kv_heads=8),
        rms(1e-5),
        rope=replace(HALF, theta=500000.0),
    ),
    Family(
        "gpt_neox_japanese",
        one_kv_a_head(2560, 32, 32, 2048),
        sites.rotary(
            Rope(
                theta_keys=("rotary_emb_base", "rope_theta"),
                partial_keys=("rotary_pct", "partial_rotary_factor"),
            )
        ),
        _bias_of_the_last,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
    ),
)
