"""Towers that turn queries and keys by the row and the column of a patch, or by its frame too. One row a model_type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portpe.config import extras, norms, projection_biases, windows
from portpe.config.layer import FULL, NO_LENGTH, Family, Layer, NormOf, Size, Sizes, never, one
from portpe.config.section import Section, shown
from portpe.config.vision_sites import axial, dinov3, eomt_dinov3, joined_by_queries, llama4, sam3, triaxial, vjepa2
from portpe.errors import SpecError
from portpe.layer_parts import ProjectionBiases

_ALL = projection_biases.fixed("qkvo")
_LAYER_NORM_KEY = norms.layer_norm("layer_norm_eps", 1e-6)
# Which patches see each other, and tables that are added before: a caller's batch and hidden states.
_PATCHES = frozenset({"window_size", "num_position_embeddings", "position_embedding_size", "deepstack_visual_indexes"})


def _sizes(
    hidden: int, heads: int, layers: int, *, names: tuple[str, str, str] = ("hidden_size", "num_heads", "depth")
) -> Sizes:
    """Heads of hidden / heads; no length: a picture has as many patches as it has."""
    keys = [(name,) for name in names]
    return Sizes(
        hidden=Size(keys[0], hidden),
        heads=Size(keys[1], heads),
        layers=Size(keys[2], layers),
        head_dim=None,
        length=NO_LENGTH,
    )


def _usual(hidden: int, heads: int, layers: int) -> Sizes:
    return _sizes(hidden, heads, layers, names=("hidden_size", "num_attention_heads", "num_hidden_layers"))


def _tower(model_type: str, sizes: Sizes, norm: NormOf, **differs: Any) -> Family:
    """A tower as Qwen2-VL's: rows, then columns, each with half of the pairs; every projection with a bias."""
    fields: dict[str, Any] = {"site": axial(), "biases": _ALL, "causal": never, "harmless": _PATCHES, **differs}
    return Family(model_type, sizes, input_norm=norm, **fields)


_WINDOWS = "attention within windows of the image, each for itself"


def _in_windows(layer: Layer) -> str | None:
    """Qwen2.5-VL: patches see their own window of the image, but in the blocks that fullatt_block_indexes lists."""
    return None if layer.index in layer.config.numbers("fullatt_block_indexes", (7, 15, 23, 31)) else _WINDOWS


def _in_listed_windows(layer: Layer) -> str | None:
    """Muse: the windows that layer_types names; by default all blocks but each fourth one and the last."""
    kinds = layer.config.get("layer_types")
    if kinds is None:
        whole = (layer.index + 1) % 4 == 0 or layer.index == layer.num_layers - 1
        return None if whole else _WINDOWS
    if not isinstance(kinds, list | tuple) or len(kinds) != layer.num_layers:
        raise SpecError(f"layer_types must list one for each of {layer.num_layers} layers, got {shown(kinds)}")
    kind = kinds[layer.index]
    if kind not in ("full_attention", "window_attention"):
        raise SpecError(f"layer_types[{layer.index}] must be full_attention or window_attention, got {shown(kind)}")
    return _WINDOWS if kind == "window_attention" else None


def _switched_qkv(layer: Layer) -> ProjectionBiases:
    """GLM-4V: attention_bias switches q, k and v; the output has none."""
    return projection_biases.switched("attention_bias", False, "qkv")(layer)


def _projections(*, key: bool) -> projection_biases.BiasesOf:
    """DINOv3: a key of the config for each projection; ``key`` is that of keys by default."""
    defaults = {"query": True, "key": key, "value": True, "proj": True}

    def biases(layer: Layer) -> ProjectionBiases:
        flags = [layer.config.flag(f"{name}_bias", default) for name, default in defaults.items()]
        return ProjectionBiases(**dict(zip("qkvo", flags, strict=True)))

    return biases


def _vjepa2_biases(layer: Layer) -> ProjectionBiases:
    qkv = layer.config.flag("qkv_bias", True)
    return ProjectionBiases(q=qkv, k=qkv, v=qkv, o=True)


def _dots3_biases(layer: Layer) -> ProjectionBiases:
    """``use_bias`` in published configs, ``attention_bias`` in transformers' own."""
    key = layer.config.either("attention_bias", "use_bias")
    return projection_biases.switched(key, False, "qkvo")(layer)


def _learned_class_angle(layer: Layer) -> str:  # noqa: ARG001
    return "a class token that is turned by trained angles"


def _sapiens2_kind(config: Section, index: int, num_layers: int) -> tuple[str, int | None]:
    """Sapiens 2: a layer's kind is its number of key heads, fewer in the middle of the stack or as a list says."""
    heads = config.integer("num_attention_heads", 16)
    grouped = config.integer("num_key_value_attention_heads", 8)
    first = config.integer("num_first_full_attention_layers", 8, minimum=0)
    last = config.integer("num_last_full_attention_layers", 8, minimum=0)
    listed = config.get("num_key_value_heads_per_layer")
    if listed is None:
        return str(grouped if first <= index < num_layers - last else heads), None
    if not isinstance(listed, list | tuple) or len(listed) != num_layers:
        raise SpecError(f"num_key_value_heads_per_layer must list one for each of {num_layers} layers, got {listed}")
    return str(Section({"num_key_value_heads_per_layer": listed[index]}).integer("num_key_value_heads_per_layer")), None


def _memory_head(config: Section, _kind: str) -> int:
    """SAM 2's memory attention: heads of the hidden size over downsample_rate."""
    rate = config.integer("memory_attention_downsample_rate", 1)
    hidden = config.integer("memory_attention_hidden_size", 256)
    return hidden // rate // config.integer("memory_attention_num_attention_heads", 1)


def _eomt_beyond(layer: Layer) -> str | None:
    """EoMT: queries of objects join in the last blocks, and see what they are predicted to cover."""
    return "a mask of its queries that it predicts" if joined_by_queries(layer) else None


def _lfm3_kind(config: Section, index: int) -> str:  # noqa: ARG001
    return "conv" if index < 2 or index % 2 else FULL


_SAPIENS2 = frozenset({"layerscale_value", "pos_embed_rescale", "head_config", "normalize_backbone_outputs"})

# The towers and heads beside the memory, its attention across frames, and sizes that its positions follow.
_TRACKER = frozenset(
    {
        *("vision_config", "prompt_encoder_config", "mask_decoder_config", "sigmoid_scale_for_mem_enc"),
        *("enable_temporal_pos_encoding_for_object_pointers", "memory_attention_feed_forward_hidden_act"),
        *("memory_attention_feed_forward_hidden_size", "memory_attention_rope_feat_sizes"),
        *("memory_attention_rope_k_sizes", "memory_attention_dropout", "memory_attention_rope_dropout"),
        *("memory_attention_mlp_hidden_size", "memory_attention_mlp_hidden_act"),
        *("memory_fuser_layer_scale_init_value", "perceiver_resampler_num_attention_heads"),
        *("perceiver_resampler_attention_head_dim", "perceiver_resampler_attention_dropout"),
    }
)

VISION_FAMILIES = (
    _tower(
        "qwen2_vl_vision",
        _sizes(1280, 16, 32, names=("embed_dim", "num_heads", "depth")),
        norms.layer_norm(None, 1e-6),
    ),
    _tower("qwen2_5_vl_vision", _sizes(3584, 16, 32), norms.fixed_rms(1e-6), beyond=_in_windows),
    _tower("qwen2_5_omni_vision_encoder", _sizes(3584, 16, 32), norms.fixed_rms(1e-6), beyond=_in_windows),
    *(
        _tower(model_type, _sizes(1152, 16, 27), norms.layer_norm(None, 1e-6))
        for model_type in (
            *("qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision", "qwen3_5_moe_vision"),
            *("qwen3_omni_moe_vision_encoder", "cohere_compass_vision", "qwen4_exp_vision"),
        )
    ),
    _tower(
        "exaone4_5_vision",
        replace(_sizes(3584, 16, 32), kv_heads=Size(("num_key_value_heads",), 8)),
        norms.fixed_rms(1e-6),
        beyond=_in_windows,
    ),
    _tower(
        "lfm3_vl_vision",
        replace(_usual(1024, 16, 14), kv_heads=Size(("num_key_value_heads",), 8)),
        norms.rms("norm_eps", 1e-5),
        site=axial(theta=1e6),
        biases=projection_biases.fixed(""),
        window=windows.hybrid(_lfm3_kind),
        qk_norms=norms.head_rms("norm_eps", 1e-5),
    ),
    *(
        _tower(
            model_type,
            _usual(1536, 16, 50),
            norms.layer_norm("layer_norm_eps", 1e-5),
            site=axial(order=(1, 0), offset=1),
            harmless=_PATCHES | {"max_position_embeddings"},
            beyond=_in_listed_windows,
        )
        for model_type in ("muse_spark_vision", "muse_glimmer_vision")
    ),
    _tower(
        "inkling2_vision",
        _usual(1024, 16, 23),
        norms.layer_norm("layer_norm_eps", 1e-5),
        site=axial(order=(1, 0), pairing="interleaved", offset=1, prefix_tokens=1),
        harmless=_PATCHES | {"layer_scale_init_value", "posemb_grid_size"},
    ),
    _tower(
        "dots3_note_vision_encoder",
        Sizes(
            hidden=Size(("hidden_size", "embed_dim"), 1536),
            heads=Size(("num_attention_heads", "num_heads"), 24),
            layers=Size(("num_hidden_layers",), 42),
            head_dim=None,
            length=NO_LENGTH,
        ),
        norms.rms("rms_norm_eps", 1e-5),
        biases=_dots3_biases,
        qk_norms=norms.head_rms("rms_norm_eps", 1e-5),
        harmless=_PATCHES | {"is_causal", "router_scale"},
    ),
    *(
        _tower(model_type, _sizes(1536, 12, 24), norms.rms("rms_norm_eps", 1e-5), biases=_switched_qkv)
        for model_type in ("glm4v_vision", "glm4v_moe_vision")
    ),
    *(
        _tower(
            model_type,
            _sizes(1024, 16, 24),
            norms.rms("rms_norm_eps", 1e-5),
            biases=projection_biases.switched("attention_bias", True, "qkvo"),
            qk_norms=norms.head_rms("rms_norm_eps", 1e-5),
        )
        for model_type in ("glm_ocr_vision", "glm5_next_vision")
    ),
    _tower("ernie4_5_vl_moe_vision", _sizes(1280, 16, 32), norms.layer_norm("rms_norm_eps", 1e-6)),
    _tower("video_llama_3_vision", _usual(768, 12, 12), _LAYER_NORM_KEY),
    _tower("paddleocr_vl_vision", _usual(1152, 16, 27), _LAYER_NORM_KEY),
    _tower(
        "step3p5_vision",
        _usual(1536, 16, 47),
        norms.layer_norm("layer_norm_eps", 1e-5),
        site=axial(order=(1, 0)),
        harmless=_PATCHES | {"layer_scale_init_value", "max_position_embeddings"},
    ),
    _tower(
        "kimi_k25_vision",
        _usual(1152, 16, 27),
        norms.layer_norm(None, 1e-5),
        site=axial(order=(1, 0), arrangement="interleaved"),
    ),
    _tower(
        "mlcd_vision_model",
        _usual(1664, 16, 48),
        norms.layer_norm("layer_norm_eps", 1e-5),
        site=axial(prefix_tokens=1),
        beyond=_learned_class_angle,
    ),
    _tower(
        "pixtral",
        _usual(1024, 16, 24),
        norms.fixed_rms(1e-5),
        site=axial(frequencies="shared"),
        biases=projection_biases.fixed(""),
    ),
    _tower("minimax_m3_vl_vision", _usual(1280, 16, 32), norms.layer_norm("layer_norm_eps", 1e-5), site=triaxial),
    _tower(
        "llama4_vision_model",
        _usual(768, 16, 34),
        norms.layer_norm(None, 1e-5),
        site=llama4,
        fixed={"norm_eps": (1e-5,)},
    ),
    _tower(
        "gemma4_vision",
        Sizes(
            hidden=Size(("hidden_size",), 768),
            heads=Size(("num_attention_heads",), 12),
            layers=Size(("num_hidden_layers",), 16),
            kv_heads=Size(("num_key_value_heads",), 12),
            head_dim=64,
            length=NO_LENGTH,
        ),
        norms.rms("rms_norm_eps", 1e-6),
        site=axial(theta=100.0, order=(1, 0), blocks=2),
        biases=projection_biases.switched("attention_bias", False, "qkvo"),
        scale=one,
        qk_norms=norms.head_rms("rms_norm_eps", 1e-6),
        extras=extras.value_norm,
        harmless=_PATCHES | {"max_position_embeddings"},
        fixed={"use_clipped_linears": (False,)},
    ),
    _tower(
        "dinov3_vit",
        _usual(384, 6, 12),
        norms.layer_norm("layer_norm_eps", 1e-5),
        site=dinov3,
        biases=_projections(key=False),
        harmless=_PATCHES | {"layerscale_value", "apply_layernorm", "pos_embed_rescale"},
    ),
    *(
        _tower(
            model_type,
            Sizes(
                hidden=Size(("memory_attention_hidden_size",), 256),
                heads=Size(("memory_attention_num_attention_heads",), 1),
                layers=Size(("memory_attention_num_layers",), layers),
                head_dim=_memory_head,
                length=NO_LENGTH,
            ),
            norms.layer_norm(None, 1e-5),
            site=axial(order=(1, 0), pairing="interleaved"),
            harmless=_PATCHES | _TRACKER,
        )
        for model_type, layers in (("sam2_video", 4), ("edgetam_video", 2), ("sam3_tracker_video", 4))
    ),
    _tower(
        "sam3_vit_model",
        _usual(1024, 16, 32),
        norms.layer_norm("layer_norm_eps", 1e-6),
        site=sam3,
        harmless=_PATCHES | {"layer_scale_init_value"},
    ),
    _tower(
        "eomt_dinov3",
        _usual(1024, 16, 24),
        norms.layer_norm("layer_norm_eps", 1e-6),
        site=eomt_dinov3,
        biases=_projections(key=False),
        beyond=_eomt_beyond,
        harmless=_PATCHES | {"layerscale_value", "pos_embed_rescale", "num_upscale_blocks"},
    ),
    _tower(
        "sapiens2",
        replace(_usual(1024, 16, 24), kv_heads=lambda _config, _heads, kind: int(kind)),
        norms.rms("rms_norm_eps", 1e-6),
        site=dinov3,
        window=_sapiens2_kind,
        biases=_projections(key=True),
        qk_norms=norms.when("use_qk_norm", True, norms.head_rms("rms_norm_eps", 1e-6)),
        harmless=_PATCHES | _SAPIENS2,
    ),
    _tower(
        "vjepa2",
        _usual(1024, 16, 24),
        _LAYER_NORM_KEY,
        site=vjepa2,
        biases=_vjepa2_biases,
        part="encoder",
        harmless=frozenset({"pred_num_attention_heads", "frames_per_clip"}),
    ),
)
