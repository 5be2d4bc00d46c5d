"""Encoders of images and video whose tables over patches are read in ways of their own: one row a model_type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.embedding_sites import Site, on_layer_0
from portpe.config.extras import softcap
from portpe.config.image_families import ALL, SWITCHED, before, clip, grid, never, no_length, pair, patches, vit_like
from portpe.config.layer import Family, Layer, Size, Sizes, has
from portpe.config.section import Section, shown
from portpe.config.stages import Stages
from portpe.encodings import LearnedAxesEncoding, LearnedEncoding, LearnedGridEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm, ProjectionBiases

_NO_LENGTH = Size(("max_position_embeddings",), 0)


def _switched(site: Site) -> Site:
    """A table where ``use_absolute_position_embeddings`` is true."""

    def switched(layer: Layer) -> dict[str, Any]:
        found = site(layer)
        return found if layer.config.flag("use_absolute_position_embeddings", True) else {}

    return switched


def _tube(config: Section, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Frames, rows and columns of what makes one token of a video."""
    tube = config.get("tubelet_size")
    if tube is None:
        return default
    whole = isinstance(tube, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in tube)
    if not whole or len(tube) != 3 or min(tube) < 1:
        raise SpecError(f"tubelet_size must be three integers >= 1, got {shown(tube)}")
    return tube[0], tube[1], tube[2]


def _tubes(config: Section, image: int, frames: int, tube: tuple[int, int, int]) -> tuple[int, int, int]:
    """How many tubes a video has: along time, down and across."""
    time, down, across = _tube(config, tube)
    height, width = pair(config, "image_size", image)
    length = config.integer("num_frames", frames)
    for name, extent, each in (("num_frames", length, time), ("image_size", min(height, width), max(down, across))):
        if extent < each:
            raise SpecError(f"{name} must be >= {each}, its part of tubelet_size, got {extent}")
    return length // time, height // down, width // across


def _vivit(layer: Layer) -> dict[str, Any]:
    """ViViT: a row for the class token, then one a tube, by frames, rows and columns."""
    tubes = _tubes(layer.config, 224, 32, (2, 16, 16))
    return on_layer_0(layer, LearnedEncoding(rows=1 + math.prod(tubes), width=layer.hidden_size))


def _timesformer(layer: Layer) -> dict[str, Any]:
    """TimeSformer: a table over patches plus one over frames, as one whose row 1 + patch * frames + frame is their sum.

    With attention_type ``space_only`` frames are pictures by themselves and have no rows.
    """
    frames = layer.config.integer("num_frames", 8) if _kind(layer) != "space_only" else 1
    rows = 1 + math.prod(patches(layer.config, 224, 16)) * frames
    return on_layer_0(layer, LearnedEncoding(rows=rows, width=layer.hidden_size))


def _kind(layer: Layer) -> str:
    kinds = ("divided_space_time", "space_only", "joint_space_time")
    kind = layer.config.text("attention_type", kinds[0])
    if kind not in kinds:
        raise SpecError(f"attention_type must be one of {', '.join(kinds)}, got {shown(kind)}")
    return kind


def _divided(layer: Layer) -> str | None:
    return "attention over frames before the one over patches" if _kind(layer) == "divided_space_time" else None


def _videoprism_layers(config: Section) -> int:
    return config.integer("num_spatial_layers", 12) + config.integer("num_temporal_layers", 4)


def _videoprism(layer: Layer) -> dict[str, Any]:
    """VideoPrism: a table over patches before the first layer, one over frames before the first of the temporal ones.

    A temporal layer's position is (frame, 0).
    """
    frames, down, across = _tubes(layer.config, 288, 16, (1, 18, 18))
    resampling: dict[str, Any] = {"resize": "bilinear", "antialias": True}
    if layer.index == 0:
        return {"embedding": LearnedGridEncoding(grid=(down, across), width=layer.hidden_size, **resampling)}
    if layer.index == layer.config.integer("num_spatial_layers", 12):
        return {"embedding": LearnedGridEncoding(grid=(frames, 1), width=layer.hidden_size, **resampling)}
    return {}


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


# --- stages ----------------------------------------------------------------------------------------

_FOUR = Stages((2, 2, 2, 2))
_HIERA = Stages((2, 3, 16, 3))
_HEADS = (1, 2, 5, 8)


def _in_stages(model_type: str, widths: Sequence[int], site: Site, reductions: str, **more: Any) -> Family:
    """Four stages, the keys of a layer from fewer and fewer patches less: PVT and what followed."""

    def reduced(layer: Layer) -> str | None:
        ratio = _FOUR.value(layer.config, reductions, (8, 4, 2, 1), layer.index)
        return "keys of fewer patches than queries" if ratio > 1 else None

    return Family(
        model_type,
        Sizes(
            hidden=lambda config, index: _FOUR.value(config, "hidden_sizes", widths, index),
            heads=lambda config, index, _kind: _FOUR.value(config, "num_attention_heads", _HEADS, index),
            layers=_FOUR.count,
            head_dim=None,
            length=_NO_LENGTH,
        ),
        site,
        more.pop("biases", ALL),
        causal=never,
        trained_length=no_length,
        input_norm=before(1e-6),
        beyond=reduced,
        **more,
    )


def _no_positions(layer: Layer) -> dict[str, Any]:  # noqa: ARG001
    """None in attention: a convolution between its layers sees where patches lie."""
    return {}


def _pvt(layer: Layer) -> dict[str, Any]:
    """PVT: a table before each stage; the last one's has a row for a class token."""
    config = layer.config
    stage, block = _FOUR.place(config, layer.index)
    image = config.integer("image_size", 224) >> (stage + 1 if stage else 0)
    patch = _FOUR.value(config, "patch_sizes", (4, 2, 2, 2), layer.index)
    if image < patch:
        raise SpecError(f"image_size must leave a patch of {patch} to stage {stage}, got {image}")
    last = stage == len(_FOUR.depths(config)) - 1
    encoding = LearnedGridEncoding(grid=(image // patch,) * 2, width=layer.hidden_size, prefix_tokens=int(last))
    return {"embedding": encoding} if block == 0 else {}


def _mobilevit_width(config: Section, index: int) -> int:
    """MobileViT: two, four and three layers over patches, each group as wide as its convolutions."""
    widths = config.get("hidden_sizes")
    widths = (144, 192, 240) if widths is None else widths
    if not isinstance(widths, list | tuple) or len(widths) != 3 or not all(isinstance(n, int) for n in widths):
        raise SpecError(f"hidden_sizes must be three integers, got {shown(widths)}")
    return int(widths[(index >= 2) + (index >= 6)])


def _hiera_width(config: Section, index: int) -> int:
    """What a layer takes: the first of a stage widens, so it takes what the stage before it gave."""
    factor = config.positive("embed_dim_multiplier", 2.0)
    stage, block = _HIERA.place(config, index)
    return int(config.integer("embed_dim", 96) * factor ** (stage - (block == 0 and stage > 0)))


def _hiera_head(config: Section, _kind: str) -> int:
    """All heads of all stages are as wide as those of the first."""
    heads = _HIERA.value(config, "num_heads", (1, 2, 4, 8), 0)
    return config.integer("embed_dim", 96) // heads


def _hiera(layer: Layer) -> dict[str, Any]:
    """Hiera: one table over the cells of the first stage, which overlapping patches make."""
    size, stride = pair(layer.config, "image_size", 224), pair(layer.config, "patch_stride", 4)
    if size[0] < stride[0] or size[1] < stride[1]:
        raise SpecError(f"image_size must be >= patch_stride, got {shown(size)} with {shown(stride)}")
    grid_ = (size[0] // stride[0], size[1] // stride[1])
    return on_layer_0(layer, LearnedGridEncoding(grid=grid_, width=layer.hidden_size))


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
    vit_like("vivit", _vivit, before(1e-6)),
    vit_like("timesformer", _timesformer, before(1e-6), beyond=_divided),
    replace(
        vit_like(
            "videoprism_vision_model",
            _videoprism,
            norms.layer_norm("layer_norm_eps", 1e-6, weight_offset=1.0),
            extras=softcap("attn_logit_softcapping", 50.0),
            harmless=frozenset({"apply_l2norm"}),
        ),
        sizes=replace(usual_sizes(768, 12, 16, 0), layers=_videoprism_layers),
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
    Family(
        "hiera",
        Sizes(
            hidden=_hiera_width,
            heads=lambda config, index, _kind: _HIERA.value(config, "num_heads", (1, 2, 4, 8), index),
            layers=_HIERA.count,
            head_dim=_hiera_head,
            length=_NO_LENGTH,
        ),
        _hiera,
        ALL,
        causal=never,
        trained_length=no_length,
        input_norm=before(1e-6),
        beyond=has("units of cells, and queries that are the largest of several"),
        harmless=frozenset({"masked_unit_attention", "layer_norm_init", "decoder_num_heads", "normalize_pixel_loss"}),
    ),
    _in_stages("pvt", (64, 128, 320, 512), _pvt, "sequence_reduction_ratios", biases=SWITCHED),
    _in_stages(
        "pvt_v2", (32, 64, 160, 256), _no_positions, "sr_ratios", biases=SWITCHED, fixed={"linear_attention": (False,)}
    ),
    _in_stages("segformer", (32, 64, 160, 256), _no_positions, "sr_ratios"),
    _in_stages("glpn", (32, 64, 160, 256), _no_positions, "sr_ratios", harmless=frozenset({"head_in_index"})),
    Family(
        "mobilevit",
        Sizes(
            hidden=_mobilevit_width,
            heads=Size(("num_attention_heads",), 4),
            layers=lambda _config: 9,
            head_dim=None,
            length=_NO_LENGTH,
        ),
        _no_positions,
        SWITCHED,
        causal=never,
        trained_length=no_length,
        input_norm=before(1e-5),
    ),
)
