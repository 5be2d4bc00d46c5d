"""Decoders whose tokens have several coordinates: the text models of vision-language models. One row a model_type."""

from __future__ import annotations

from portpe.config import norms, output_gates, projection_biases, sites, windows
from portpe.config.layer import FULL, SLIDING, Layer
from portpe.config.mrope import InTurn, MRope
from portpe.config.rope import Rope
from portpe.config.rows import NO_BIAS, decoder, head_norms, rms, sizes
from portpe.config.section import Section

_QWEN2 = MRope("sectioned", (16, 24, 24))
_QWEN3 = MRope("interleaved", (24, 20, 20))
_QWEN3_5 = MRope("interleaved", (11, 11, 10))
_GLM = MRope("sectioned", (8, 12, 12))
_ERNIE = MRope("alternating", (22, 22, 20))
_HUNYUAN = MRope("over_channels", None, alias="xdrope_section")
_QKV = projection_biases.fixed("qkv")
_LINEAR_KEYS = frozenset(
    {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"}
)


def _whole(axes: MRope, theta: float, *, pairing: str = "half") -> Rope:
    """The whole head turned, whatever partial_rotary_factor says."""
    return Rope(axes=axes, theta=theta, ignores_partial=True, pairing="half" if pairing == "half" else "interleaved")


def _fourth(config: Section, index: int) -> str:
    """Qwen3.5: the last of each ``full_attention_interval`` layers is attention."""
    return FULL if (index + 1) % config.integer("full_attention_interval", 4) == 0 else "linear_attention"


def _indexed(layer: Layer) -> str:
    """Qwen4: its indexer has sizes of its own, all of them null in a config without them."""
    layer.config.seen |= {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim"}
    return "an indexer that chooses blocks of keys"


def _neomme_kind(index: int, num_layers: int) -> str:
    return FULL if (index + 1) % 6 == 0 or index == num_layers - 1 else SLIDING


def _neomme_window(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """NeoMME: every second sliding layer sees 1024 to either side, where no ``per_layer_config`` says what it sees."""
    rule = windows.hybrid_of_layers(_neomme_kind, 256)
    kind, window = rule(config, index, num_layers)
    if kind == FULL or config.has("per_layer_config"):
        return kind, window
    before = sum(rule(config, earlier, num_layers)[0] == SLIDING for earlier in range(index))
    return kind, 1024 if before % 2 else window


def _neomme_beyond(layer: Layer) -> str:  # noqa: ARG001
    return "values that tokens add to, an output without its part along a token's own value, and a gate"


MROPE_FAMILIES = (
    *(
        decoder(
            model_type,
            sizes(8192, 64, 80, 32768, kv_heads=8, head_dim=None),
            rms(1e-5),
            rope=_whole(_QWEN2, 1e6),
            biases=_QKV,
            window=windows.upper_layers,
        )
        for model_type in ("qwen2_vl_text", "qwen2_5_vl_text")
    ),
    decoder(
        "qwen2_5_omni_text",
        sizes(3584, 28, 28, 32768, kv_heads=4),
        rms(1e-6),
        rope=_whole(_QWEN2, 1e6),
        biases=_QKV,
        window=windows.upper_layers,
    ),
    decoder(
        "qwen2_5_omni_talker",
        sizes(3584, 28, 28, 32768, kv_heads=4, head_dim=128),
        rms(1e-6),
        rope=_whole(_QWEN2, 1e6),
        biases=_QKV,
        window=windows.upper_layers,
        harmless=frozenset({"position_id_per_seconds"}),
    ),
    decoder(
        "qwen3_vl_text",
        sizes(4096, 32, 32, 128000, kv_heads=32, head_dim=128),
        rms(1e-6),
        rope=_whole(_QWEN3, 500000.0),
        qk_norms=head_norms(1e-6),
    ),
    decoder(
        "qwen3_vl_moe_text",
        sizes(2048, 16, 24, 128000, kv_heads=16, head_dim=128),
        rms(1e-6),
        rope=_whole(_QWEN3, 500000.0),
        qk_norms=head_norms(1e-6),
        harmless=frozenset({"norm_topk_prob"}),
        fixed={"sliding_window": ()},
    ),
    decoder(
        "qwen3_omni_moe_text",
        sizes(2048, 28, 28, 32768, kv_heads=4),
        rms(1e-6),
        rope=_whole(_QWEN3, 1e6),
        qk_norms=head_norms(1e-6),
        harmless=frozenset({"norm_topk_prob", "use_sliding_window"}),
        fixed={"sliding_window": ()},
    ),
    *(
        decoder(
            model_type,
            sizes(hidden, 16, layers, 32768, kv_heads=kv_heads, head_dim=256),
            rms(1e-6, weight_offset=1.0),
            rope=Rope(axes=_QWEN3_5, partial=0.25),
            window=windows.hybrid(_fourth),
            qk_norms=head_norms(1e-6, weight_offset=1.0),
            extras=output_gates.with_bias("attention_bias", "channel"),
            harmless=_LINEAR_KEYS | {"norm_topk_prob"},
            fixed={"attn_output_gate": (True,)},
        )
        for model_type, hidden, layers, kv_heads in (("qwen3_5_text", 4096, 32, 4), ("qwen3_5_moe_text", 2048, 40, 2))
    ),
    decoder(
        "qwen4_exp_text",
        sizes(2048, 16, 40, 32768, kv_heads=2, head_dim=256),
        norms.none,
        rope=Rope(axes=_QWEN3_5),
        window=windows.chosen_keys(windows.hybrid(_fourth)),
        qk_norms=head_norms(1e-6, weight_offset=1.0),
        extras=output_gates.with_bias("attention_bias", "channel"),
        beyond=_indexed,
        harmless=_LINEAR_KEYS | {"norm_topk_prob", "heads_per_ngram"},
    ),
    decoder(
        "qwen3_omni_moe_talker_text",
        sizes(1024, 16, 20, 32768, kv_heads=2),
        rms(1e-6),
        rope=_whole(_QWEN3, 10000.0),
        qk_norms=head_norms(1e-6),
        harmless=frozenset({"norm_topk_prob", "use_sliding_window"}),
        fixed={"sliding_window": ()},
    ),
    decoder(
        "cohere_compass_text",
        sizes(8192, 64, 40, 8192, head_dim=None),
        norms.layer_norm("layer_norm_eps", 1e-5, bias=False),
        rope=_whole(_QWEN3, 10000.0),
        window=windows.listed(4096),
    ),
    decoder(
        "neomme",
        sizes(1024, 16, 17, 16384, kv_heads=4, head_dim=64),
        norms.unit_rms("norm_eps", 1e-6),
        site=sites.by_type(
            full=Rope(axes=InTurn(2), theta=1e6, partial=0.25), sliding=Rope(axes=InTurn(2), theta=10000.0)
        ),
        causal=lambda _layer: False,
        window=_neomme_window,
        qk_norms=head_norms(1e-6, key="norm_eps", affine=False),
        beyond=_neomme_beyond,
    ),
    decoder(
        "cosmos3_edge_text",
        sizes(2048, 16, 28, 131072, kv_heads=8, head_dim=128),
        rms(1e-5),
        rope=_whole(_QWEN3, 1e8),
    ),
    decoder(
        "glm4v_text",
        sizes(4096, 32, 40, 32768, kv_heads=2, head_dim=None),
        rms(1e-5),
        rope=Rope(axes=_GLM, pairing="interleaved"),
        biases=_QKV,
    ),
    decoder(
        "glm_ocr_text",
        sizes(1024, 16, 16, 131072, kv_heads=8),
        rms(1e-5),
        rope=Rope(axes=_GLM, pairing="interleaved"),
        biases=NO_BIAS,
    ),
    decoder(
        "glm4v_moe_text",
        sizes(4096, 96, 46, 65536, kv_heads=8),
        rms(1e-5),
        rope=Rope(axes=_GLM, partial=0.5),
        biases=projection_biases.switched("attention_bias", True, "qkv"),
        harmless=frozenset({"routed_scaling_factor", "norm_topk_prob"}),
        fixed={"use_qk_norm": (False,)},
    ),
    decoder(
        "glm_image_text",
        sizes(4096, 32, 40, 131072, kv_heads=2),
        rms(1e-5),
        rope=Rope(axes=_GLM),
        biases=projection_biases.switched("attention_bias", True, "qkv"),
    ),
    decoder(
        "ernie4_5_vl_moe_text",
        sizes(2560, 20, 28, 131072, kv_heads=4),
        rms(1e-5),
        site=sites.rotary(_whole(_ERNIE, 500000.0, pairing="interleaved")),
        biases=projection_biases.switched("use_bias", False, "qkvo"),
        harmless=frozenset({"moe_norm_min"}),
    ),
    decoder(
        "paddleocr_vl_text",
        sizes(1024, 16, 18, 131072, kv_heads=2, head_dim=128),
        rms(1e-5),
        rope=_whole(_QWEN2, 500000.0),
        biases=projection_biases.switched("use_bias", False, "qkvo"),
    ),
    decoder(
        "hunyuan_vl_text",
        sizes(4096, 32, 32, 2048),
        rms(1e-5),
        rope=Rope(axes=_HUNYUAN, ignores_partial=True, alpha=True),
        qk_norms=head_norms(1e-5, when="after"),
    ),
)
