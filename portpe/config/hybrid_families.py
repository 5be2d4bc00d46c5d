"""Decoders where most layers are no attention (Mamba, linear attention, convolutions): one row a model_type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from portpe.config import norms, output_gates, projection_biases, scales, sites, windows
from portpe.config.layer import FULL, NO_LENGTH, SLIDING, Layer, Size, Sizes, of_head_dim, of_key, of_rotary_width
from portpe.config.rope import Rope
from portpe.config.rows import HALF, NO_BIAS, decoder, head_norms, rms, sizes
from portpe.config.section import Section, shown
from portpe.errors import SpecError

KindOf = Callable[[Section, int], str]

_QUARTER = Rope(partial=0.25)
_LINEAR = "linear_attention"


def _every(key: str, default: int) -> KindOf:
    """The last of each ``key`` layers is attention, the others are linear."""

    def kind_of(config: Section, index: int) -> str:
        return FULL if (index + 1) % config.integer(key, default) == 0 else _LINEAR

    return kind_of


def _at_offset(config: Section, index: int) -> str:
    """Jamba: ``attn_layer_period`` and ``attn_layer_offset``."""
    period, offset = config.integer("attn_layer_period", 8), config.integer("attn_layer_offset", 4, minimum=0)
    return FULL if index % period == offset else "mamba"


def _among(key: str, other: str, *, absent: str) -> KindOf:
    """The layers whose numbers a key lists; ``absent`` is what all are without it."""

    def kind_of(config: Section, index: int) -> str:
        numbers = config.get(key)
        if numbers is None:
            return absent
        if not isinstance(numbers, list | tuple):
            raise SpecError(f"{key} must be a list of layers, got {shown(numbers)}")
        return FULL if index in numbers else other

    return kind_of


def _of_blocks(config: Section, index: int) -> str:
    """RecurrentGemma: ``block_types`` repeats; its attention slides."""
    kinds = config.get("block_types") or ("recurrent", "recurrent", "attention")
    if not isinstance(kinds, list | tuple):
        raise SpecError(f"block_types must be a list, got {shown(kinds)}")
    return "recurrent" if kinds[index % len(kinds)] == "recurrent" else SLIDING


def _alternating(config: Section, index: int) -> str:  # noqa: ARG001
    """MiniMax: even layers are attention."""
    return _LINEAR if index % 2 else FULL


def _fourth(config: Section, index: int) -> str:  # noqa: ARG001
    """OLMo Hybrid: the last of each four layers is attention."""
    return FULL if index % 4 == 3 else _LINEAR


def _of_pattern(config: Section, index: int) -> str:
    """Nemotron-H: a letter a layer in ``hybrid_override_pattern``; without it Mamba, experts, attention, MLP."""
    if not config.has("hybrid_override_pattern") and config.has(config.either("layer_types", "layers_block_type")):
        return FULL  # the list goes first
    pattern = config.text("hybrid_override_pattern", "ME*-")
    names = {"M": _LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
    if index >= len(pattern) or pattern[index] not in names:
        raise SpecError(f"hybrid_override_pattern must have M, E, * or - for layer {index}, got {shown(pattern)}")
    return names[pattern[index]]


def _listed_layers(config: Section) -> int:
    """Nemotron-H: as many layers as its list or its pattern has."""
    kinds = config.get(config.either("layer_types", "layers_block_type"))
    config.get("num_hidden_layers")
    return len(kinds) if isinstance(kinds, list | tuple) else len(config.text("hybrid_override_pattern", "ME*-"))


def _of_zamba2(config: Section, index: int) -> str:  # noqa: ARG001
    return FULL if index in (6, 12, 18, 24, 30, 36, 42, 47, 51) else _LINEAR


def _of_zamba(config: Section, index: int) -> str:
    """Zamba: the third layer, then one of each period behind the first three."""
    period = config.integer("attn_layer_period", 6)
    offset = config.integer("attn_layer_offset", 4, minimum=0)
    return FULL if index == 2 or (index > 2 and (index - 3) % period == offset) else _LINEAR


def _zamba_head(config: Section, _kind: str) -> int:
    width = 2 * config.integer("hidden_size", 3712)
    if (stated := config.integer("attention_hidden_size", width)) != width:
        raise SpecError(f"attention_hidden_size must be {width}, twice hidden_size, got {stated}")
    return config.integer("attention_head_dim", width // config.integer("num_attention_heads", 16))


def _crossing(config: Section, index: int) -> str:
    """Llama 3.2 Vision: the listed layers attend to the image alone."""
    return "cross_attention" if index in config.numbers("cross_attention_layers", _CROSSING) else FULL


def _doubled_input(layer: Layer) -> str:  # noqa: ARG001
    """Zamba: the hidden states and the embeddings side by side go in, the hidden states come out."""
    return "an output of another width than its input"


def _twice_of(default: int) -> Callable[[Section, int], int]:
    return lambda config, _index: 2 * config.integer("hidden_size", default)


_CROSSING = (3, 8, 13, 18, 23, 28, 33, 38)
_MAMBA_KEYS = frozenset(
    {
        "mamba_n_heads",
        "mamba_d_head",
        "n_mamba_heads",
        "mamba_num_heads",
        "mamba_head_dim",
        "mamba_headdim",
        "mamba_ngroups",
    }
)
_LINEAR_KEYS = frozenset(
    {
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    }
)

HYBRID_FAMILIES = (
    decoder(
        "qwen3_next",
        sizes(2048, 16, 48, 32768, kv_heads=2, head_dim=256),
        rms(1e-6, weight_offset=1.0),
        rope=_QUARTER,
        window=windows.hybrid(_every("full_attention_interval", 4)),
        qk_norms=head_norms(1e-6, weight_offset=1.0),
        extras=output_gates.with_bias("attention_bias", "channel"),
        harmless=_LINEAR_KEYS,
    ),
    decoder(
        "minimax",
        sizes(4096, 32, 32, 131072, kv_heads=8),
        rms(1e-5),
        rope=replace(HALF, theta=1e6),
        biases=NO_BIAS,
        window=windows.hybrid(_alternating),
        harmless=frozenset({"linear_attn_alpha_factor", "linear_attn_beta_factor", "full_attn_alpha_factor"})
        | {"full_attn_beta_factor"},
    ),
    decoder(
        "lfm2",
        sizes(2560, 32, 32, 128000, kv_heads=8),
        rms(1e-5, key="norm_eps"),
        rope=replace(HALF, theta=1e6),
        biases=NO_BIAS,
        window=windows.hybrid(_among("full_attn_idxs", "conv", absent=FULL)),
        qk_norms=head_norms(1e-5, key="norm_eps"),
        harmless=frozenset({"block_mlp_init_scale", "block_out_init_scale"}),
        fixed={"use_pos_enc": (True,)},
        restates={"block_norm_eps": of_key("norm_eps", 1e-5), "num_heads": of_key("num_attention_heads", 32)},
    ),
    decoder(
        "lfm2_moe",
        sizes(2048, 32, 32, 128000, kv_heads=8),
        rms(1e-5, key="norm_eps"),
        rope=replace(HALF, theta=1e6),
        biases=NO_BIAS,
        window=windows.listed(None),
        qk_norms=head_norms(1e-5, key="norm_eps"),
    ),
    decoder(
        "bamba",
        sizes(4096, 32, 32, 262144, kv_heads=8),
        rms(1e-5),
        rope=Rope(partial=0.5),
        window=windows.hybrid(_among("attn_layer_indices", "mamba", absent="mamba")),
        harmless=_MAMBA_KEYS,
        restates={"attn_rotary_emb": of_rotary_width},
    ),
    decoder(
        "falcon_h1",
        sizes(4096, 32, 32, 8192, kv_heads=8),
        rms(1e-5),
        window=windows.listed(None),
        scale=scales.multiplied_keys("key_multiplier"),
        harmless=_MAMBA_KEYS
        | {"attention_in_multiplier", "attention_out_multiplier", "lm_head_multiplier"}
        | {"mamba_norm_before_gate", "mamba_rms_norm"},
    ),
    decoder(
        "jamba",
        sizes(4096, 32, 32, 262144, kv_heads=8),
        rms(1e-6),
        site=sites.no_encoding,
        biases=NO_BIAS,
        window=windows.hybrid(_at_offset),
        harmless=_MAMBA_KEYS,
    ),
    decoder(
        "nemotron_h",
        replace(sizes(4096, 32, 4, 4096, kv_heads=8, head_dim=128), layers=_listed_layers),
        rms(1e-5, key="layer_norm_epsilon"),
        site=sites.no_encoding,
        window=windows.hybrid(_of_pattern),
        harmless=_MAMBA_KEYS | {"rescale_prenorm_residual", "mtp_layers_block_type"},
        restates={"attention_head_dim": of_head_dim},
    ),
    decoder(
        "granitemoehybrid",
        sizes(4096, 32, 32, 2048),
        rms(1e-6),
        site=sites.rotary_where("position_embedding_type", "rope", HALF),
        window=windows.listed(None, _LINEAR),
        scale=scales.of_key("attention_multiplier", 1.0),
        harmless=_MAMBA_KEYS,
        fixed={"normalization_function": ("rmsnorm",)},
    ),
    decoder(
        "mllama_text_model",
        sizes(4096, 32, 40, 131072, kv_heads=8),
        rms(1e-5),
        rope=replace(HALF, theta=500000.0),
        biases=NO_BIAS,
        window=windows.hybrid(_crossing),
    ),
    decoder(
        "recurrent_gemma",
        Sizes(
            hidden=Size(("hidden_size",), 2560),
            heads=Size(("num_attention_heads",), 10),
            layers=Size(("num_hidden_layers",), 26),
            kv_heads=Size(("num_key_value_heads",), 0),
            head_dim=None,
            length=NO_LENGTH,
        ),
        rms(1e-6, weight_offset=1.0),
        rope=Rope(partial=0.5),
        biases=projection_biases.both(
            projection_biases.switched("attention_bias", False, "qkv"), projection_biases.fixed("o")
        ),
        window=windows.hybrid(_of_blocks, 2048, "attention_window_size"),
        harmless=frozenset({"logits_soft_cap", "w_init_variance_scale", "final_w_init_variance_scale"}),
    ),
    decoder(
        "zamba",
        replace(sizes(3712, 16, 76, 4096, kv_heads=16), hidden=_twice_of(3712), head_dim=_zamba_head),
        rms(1e-5),
        site=sites.no_encoding,
        biases=NO_BIAS,
        window=windows.hybrid(_of_zamba),
        scale=scales.of_half_head,
        beyond=_doubled_input,
        harmless=_MAMBA_KEYS,
    ),
    decoder(
        "zamba2",
        replace(
            sizes(2560, 32, 54, 4096),
            hidden=_twice_of(2560),
            head_dim=lambda config, _kind: (
                2 * config.integer("hidden_size", 2560) // config.integer("num_attention_heads", 32)
            ),
        ),
        rms(1e-5),
        site=sites.switched(HALF, "use_mem_rope", False),
        biases=NO_BIAS,
        window=windows.hybrid(_of_zamba2),
        scale=scales.of_half_head,
        beyond=_doubled_input,
        harmless=_MAMBA_KEYS | {"attention_hidden_size", "attention_head_dim", "use_shared_attention_adapter"},
        fixed={"use_shared_attention_lora": (False,)},
    ),
    decoder(
        "olmo_hybrid",
        sizes(3840, 30, 32, 65536),
        norms.none,
        window=windows.hybrid(_fourth),
        qk_norms=norms.all_heads_rms("rms_norm_eps", 1e-6),
        harmless=_LINEAR_KEYS,
    ),
)
