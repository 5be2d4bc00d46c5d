"""Encoders of images whose tables over patches are read in ways of their own: one row a model_type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.embedding_sites import Site, on_layer_0
from portpe.config.image_families import ALL, before, clip, grid, patches, vit_like
from portpe.config.layer import Family, Layer, has
from portpe.config.section import Section, shown
from portpe.config.stages import Stages
from portpe.encodings import LearnedAxesEncoding, LearnedGridEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm, ProjectionBiases


def _switched(site: Site) -> Site:
    """A table where ``use_absolute_position_embeddings`` is true."""

    def switched(layer: Layer) -> dict[str, Any]:
        found = site(layer)
        return found if layer.config.flag("use_absolute_position_embeddings", True) else {}

    return switched


def _behind_plain(image: int, patch: int, plain: Callable[[Section], int], **resampling: Any) -> Site:
    """A table over patches alone, behind tokens that have no positions."""

    def site(layer: Layer) -> dict[str, Any]:
        encoding = LearnedGridEncoding(
            grid=patches(layer.config, image, patch),
            width=layer.hidden_size,
            plain_tokens=plain(layer.config),
            **resampling,
        )
        return on_layer_0(layer, encoding)

    return site


def _class_and_registers(config: Section) -> int:
    return 1 + config.integer("num_register_tokens", 4, minimum=0)


def _radio(layer: Layer) -> dict[str, Any]:
    """RADIO: a table for the largest picture, shrunk to the square of a picture's longer side and cut."""
    config = layer.config
    largest, patch = config.integer("max_img_size", 2048), config.integer("patch_size", 16)
    if largest < patch:
        raise SpecError(f"max_img_size must be >= patch_size = {patch}, got {largest}")
    plain = config.integer("num_cls_tokens", 3, minimum=0) + config.integer("num_registers", 7, minimum=0)
    encoding = LearnedGridEncoding(
        grid=(largest // patch,) * 2, width=layer.hidden_size, plain_tokens=plain, resize="bilinear", square=True
    )
    return on_layer_0(layer, encoding)


def _lw_detr(layer: Layer) -> dict[str, Any]:
    """ViTDet's table, for pictures of the size it was trained on; the row of a class token is not read."""
    side = patches(layer.config, 224, 16, "pretrain_image_size")
    if side[0] != side[1]:
        raise SpecError(f"pretrain_image_size must be square, got {side[0]} x {side[1]} patches")
    return on_layer_0(layer, LearnedGridEncoding(grid=side, width=layer.hidden_size))


def _lw_detr_windows(layer: Layer) -> str | None:
    listed = layer.config.get("window_block_indices")
    listed = [] if listed is None else listed
    if not isinstance(listed, list | tuple) or not all(isinstance(n, int) for n in listed):
        raise SpecError(f"window_block_indices must list numbers of layers, got {shown(listed)}")
    return "windows, in each of which a token sees its own" if layer.index in listed else None


def _lw_detr_biases(layer: Layer) -> ProjectionBiases:
    return projection_biases.fixed("qvo" if layer.config.flag("qkv_bias", True) else "o")(layer)


def _dinov2_windows(layer: Layer) -> str | None:
    """RF-DETR: pictures are cut into windows, each with the class token; some layers join them again."""
    layer.config.get("window_block_indexes")
    return "windows, each with a class token" if layer.config.integer("num_windows", 4) > 1 else None


def _internvl_norm(layer: Layer) -> Norm | None:
    kind = layer.config.text("norm_type", "layer_norm")
    if kind not in ("layer_norm", "rms_norm"):
        raise SpecError(f"norm_type must be 'layer_norm' or 'rms_norm', got {shown(kind)}")
    return (norms.layer_norm if kind == "layer_norm" else norms.rms)("layer_norm_eps", 1e-6)(layer)


def _qk_norms(layer: Layer) -> tuple[Norm, Norm] | None:
    """Over all heads of q at once, and of k, where ``use_qk_norm`` is true; their eps is not in the config."""
    norm = Norm(kind="rms", eps=1e-6, scope="all_heads")
    return (norm, norm) if layer.config.flag("use_qk_norm", False) else None


def _internvl(model_type: str, *, biased: bool) -> Family:
    return vit_like(
        model_type,
        _switched(grid(448, 14)),
        _internvl_norm,
        (1024, 16, 24),
        biases=projection_biases.with_output(projection_biases.switched("attention_bias", biased, "qkv")),
        qk_norms=_qk_norms,
        harmless=frozenset({"layer_scale_init_value"}),
    )


def _navit(model_type: str, hidden: int, heads: int, patch: int) -> Family:
    """SigLIP's block over pictures of any shape: fractional coordinates choose rows of a square table."""
    site = grid(224, patch, prefix=0, resize="nearest")
    harmless = frozenset({"window_kernel_size", "insert_layer_id"})
    return vit_like(model_type, site, before(1e-6), (hidden, heads, 12), biases=ALL, harmless=harmless)


def _mgp(layer: Layer) -> dict[str, Any]:
    encoding = LearnedGridEncoding(grid=patches(layer.config, (32, 128), 4), width=layer.hidden_size, prefix_tokens=1)
    return on_layer_0(layer, encoding)


def _vitpose(layer: Layer) -> dict[str, Any]:
    """ViTPose: the class token's row is added to every patch, and so belongs to hidden_states."""
    return on_layer_0(layer, LearnedGridEncoding(grid=patches(layer.config, (256, 192), 16), width=layer.hidden_size))


def _kosmos(layer: Layer) -> dict[str, Any]:
    """KOSMOS-2.5: a table of rows plus one of columns, counted from 1 as Pix2Struct's are."""
    count = layer.config.integer("max_num_patches", 4096)
    encoding = LearnedAxesEncoding(rows=(count, count), width=layer.hidden_size, offset=1)
    return on_layer_0(layer, encoding)


def _heads_of_64(config: Section, _index: int, _kind: str) -> int:
    return max(config.integer("hidden_size", 768) // 64, 1)


PATCH_FAMILIES = (
    replace(
        clip("bridgetower_vision_model", size=288, patch=16, harmless=frozenset({"share_layernorm"})),
        sizes=replace(usual_sizes(768, 12, 12, 0), heads=_heads_of_64),
    ),
    clip(
        "xclip_vision_model",
        beyond=has("a message between frames as its last token"),
        harmless=frozenset({"mit_num_attention_heads"}),
    ),
    replace(
        vit_like(
            "groupvit_vision_model",
            grid(224, 16, prefix=0),
            before(1e-5),
            biases=ALL,
            beyond=has("group tokens behind its patches, which have no positions"),
        ),
        sizes=replace(usual_sizes(384, 6, 12, 0), layers=Stages((6, 3, 3)).count),
    ),
    *(
        vit_like(
            model_type,
            _behind_plain(640, 16, _class_and_registers),
            before(1e-6),
            (1024, 16, 24),
            biases=ALL,
            harmless=frozenset({"mask_weight", "train_num_points", "num_upscale_blocks"}),
        )
        for model_type in ("eomt", "videomt")
    ),
    _navit("idefics2_vision", 768, 12, 32),
    _navit("idefics3_vision", 1152, 16, 32),
    _navit("smolvlm_vision", 1152, 16, 32),
    _navit("minicpmv4_6_vision", 768, 12, 16),
    _navit("minicpmv4_7_vision", 768, 12, 16),
    _navit("minicpm_ocr_vision", 768, 12, 16),
    _internvl("internvl_vision", biased=False),
    _internvl("qianfan_ocr_vision", biased=True),
    vit_like(
        "janus_vision_model",
        grid(384, 16, prefix=0),
        before(1e-6),
        (1024, 16, 24),
        biases=projection_biases.with_output(projection_biases.switched("attention_bias", True, "qkv")),
        fixed={"use_qk_norm": (False,)},
    ),
    vit_like(
        "ovis2_vision",
        grid(224, 14, prefix=0),
        norms.rms("rms_norm_eps", 1e-5),
        (1024, 8, 24),
        biases=projection_biases.switched("qkv_bias", False, "qkvo"),
    ),
    vit_like("radio", _radio, before(1e-6), (1280, 16, 32), harmless=frozenset({"norm_mean", "norm_std"})),
    vit_like(
        "rf_detr_dinov2",
        grid(224, 14, antialias=True),
        before(1e-6),
        beyond=_dinov2_windows,
        harmless=frozenset({"num_windows"}),
    ),
    vit_like(
        "lw_detr_vit",
        _switched(_lw_detr),
        before(1e-6),
        biases=_lw_detr_biases,
        beyond=_lw_detr_windows,
        harmless=frozenset({"num_windows", "num_windows_side"}),
    ),
    replace(
        vit_like(
            "kosmos_2_5_vision_model",
            _kosmos,
            norms.rms("layer_norm_eps", 1e-6),
            biases=projection_biases.fixed(""),
        ),
        sizes=replace(usual_sizes(1536, 24, 18, 0), head_dim=64),
    ),
    vit_like("vitpose_backbone", _vitpose, before(1e-12)),
    vit_like(
        "mgp-str",
        _mgp,
        before(1e-5),
        harmless=frozenset({"attn_drop_rate", "output_a3_attentions"}),
        fixed={"distilled": (False,)},
    ),
)
