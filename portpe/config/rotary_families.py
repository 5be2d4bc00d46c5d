"""Families with rotary embeddings alone: one row a model_type. Defaults are transformers' own."""

from __future__ import annotations

from portpe.config import extras, norms, projection_biases, sites, windows
from portpe.config.layer import Family, Layer, Size, Sizes, of_head_dim
from portpe.config.rope import Rope
from portpe.config.rows import COHERE, GPT_OSS_YARN, HALF, LENGTH, NO_BIAS, SWITCHED, one_kv_a_head, sizes


def _gemma_causal(layer: Layer) -> bool:
    return not layer.config.flag("use_bidirectional_attention", False)


_GLM = Rope(pairing="interleaved", partial=0.5)
_FALSE = {"attention_bias": (False,)}

ROTARY_FAMILIES = (
    Family(
        "llama",
        sizes(4096, 32, 32, 2048),
        sites.rotary(HALF),
        SWITCHED,
        input_norm=norms.rms("rms_norm_eps", 1e-6),
        fixed={"rope_interleaved": (False,)},
    ),
    Family(
        "mistral",
        sizes(4096, 32, 32, 131072, kv_heads=8),
        sites.rotary(HALF),
        NO_BIAS,
        window=windows.every_layer(4096),
        input_norm=norms.rms("rms_norm_eps", 1e-6),
        fixed=_FALSE,
    ),
    Family(
        "qwen2",
        sizes(4096, 32, 32, 32768, kv_heads=32),
        sites.rotary(HALF),
        projection_biases.fixed("qkv"),
        window=windows.upper_layers,
        input_norm=norms.rms("rms_norm_eps", 1e-6),
        fixed={"use_mrope": (False,)},
    ),
    Family(
        "qwen3",
        sizes(4096, 32, 32, 32768, kv_heads=32, head_dim=128),
        sites.rotary(HALF),
        SWITCHED,
        window=windows.upper_layers,
        qk_norms=norms.head_rms("rms_norm_eps", 1e-6),
        input_norm=norms.rms("rms_norm_eps", 1e-6),
    ),
    Family(
        "phi",
        sizes(2048, 32, 24, 2048),
        sites.rotary(Rope(partial=0.5)),
        projection_biases.fixed("qkvo"),
        qk_norms=norms.phi_norms,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
    ),
    Family(
        "phi3",
        sizes(3072, 32, 32, 4096),
        sites.rotary(Rope(longrope_names=("su", "yarn"), original=4096)),
        NO_BIAS,
        window=windows.every_layer(None),
        input_norm=norms.rms("rms_norm_eps", 1e-5),
        harmless=frozenset({"lm_head_bias"}),
        fixed={**_FALSE, "full_attn_mod": (1,)},
    ),
    Family(
        "gemma",
        sizes(3072, 16, 28, 8192, kv_heads=16, head_dim=256),
        sites.rotary(HALF),
        SWITCHED,
        causal=_gemma_causal,
        input_norm=norms.rms("rms_norm_eps", 1e-6, weight_offset=1.0),
    ),
    Family(
        "gpt_neox",
        one_kv_a_head(6144, 64, 44, 2048),
        sites.rotary(
            Rope(
                theta_keys=("rotary_emb_base", "rope_theta"),
                partial=0.25,
                partial_keys=("rotary_pct", "partial_rotary_factor"),
            )
        ),
        projection_biases.switched("attention_bias", True, "qkvo"),
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5),
    ),
    Family(
        "gptj",
        Sizes(
            hidden=Size(("n_embd", "hidden_size"), 4096),
            heads=Size(("n_head", "num_attention_heads"), 16),
            layers=Size(("n_layer", "num_hidden_layers"), 28),
            head_dim=None,
            length=Size(("n_positions", LENGTH), 2048),
        ),
        sites.gptj_rotary,
        NO_BIAS,
        input_norm=norms.layer_norm("layer_norm_epsilon", 1e-5),
        fixed={"rotary": (True,), "scale_attn_weights": (True,)},
    ),
    Family(
        "cohere",
        sizes(8192, 64, 40, 8192),
        sites.rotary(Rope(pairing="interleaved", theta=500000.0, ignores_partial=True)),
        SWITCHED,
        qk_norms=norms.cohere_norms,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-5, bias=False),
        fixed=COHERE,
    ),
    Family(
        "glm",
        sizes(4096, 32, 40, 131072, kv_heads=2, head_dim=128),
        sites.rotary(_GLM),
        projection_biases.switched("attention_bias", True, "qkv"),
        input_norm=norms.rms("rms_norm_eps", 1.5625e-7),
    ),
    Family(
        "glm4",
        sizes(4096, 32, 40, 131072, kv_heads=2, head_dim=128),
        sites.rotary(_GLM),
        projection_biases.switched("attention_bias", True, "qkv"),
        input_norm=norms.rms("rms_norm_eps", 1.5625e-7),
    ),
    Family(
        "olmo2",
        sizes(4096, 32, 32, 2048),
        sites.rotary(HALF),
        SWITCHED,
        qk_norms=norms.all_heads_rms("rms_norm_eps", 1e-5),
    ),
    *(
        Family(
            name,
            sizes(4096, 32, 32, 2048),
            sites.rotary(Rope(ignores_partial=True, alpha=True)),
            SWITCHED,
            qk_norms=norms.head_rms("rms_norm_eps", 1e-5, when="after"),
            input_norm=norms.rms("rms_norm_eps", 1e-5),
            harmless=frozenset({"add_classification_head"}),
            fixed={"use_qk_norm": (True,), "use_rotary_pos_emb": (True,), "use_cla": (False,), "norm_type": ("rms",)},
            restates={"attention_head_dim": of_head_dim},
        )
        for name in ("hunyuan_v1_dense", "hunyuan_v1_moe")
    ),
    Family(
        "gpt_oss",
        sizes(2880, 64, 36, 131072, kv_heads=8, head_dim=64),
        sites.rotary(Rope(theta=150000.0, ignores_partial=True, absent=GPT_OSS_YARN)),
        projection_biases.switched("attention_bias", True, "qkvo"),
        window=windows.patterned(128, 2),
        input_norm=norms.rms("rms_norm_eps", 1e-5),
        extras=extras.sinks,
    ),
)
