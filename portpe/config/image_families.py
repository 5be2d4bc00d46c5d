"""Encoders of images with a trained table over their patches: one row a model_type.

Positions are (row, column) of a patch; class tokens come first and have rows of their own.
"""

from __future__ import annotations

from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.embedding_sites import Site, learned, on_layer_0, sinusoids
from portpe.config.layer import Family, Layer, NormOf, has, never, no_length, no_norm
from portpe.config.section import Section, shown
from portpe.config.sites import no_encoding
from portpe.encodings import LearnedGridEncoding, SinusoidalGridEncoding
from portpe.errors import SpecError

ALL = projection_biases.fixed("qkvo")
SWITCHED = projection_biases.with_output(projection_biases.switched("qkv_bias", True, "qkv"))
_LOOKS = frozenset(
    {
        "layerscale_value",
        "apply_layernorm",
        "vision_use_head",
        "decoder_num_attention_heads",
        "norm_pix_loss",
        "use_head",
    }
)


def pair(config: Section, key: str, default: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width): a list of both, or one number for both."""
    value = config.get(key)
    if value is None and not isinstance(default, int):
        return default
    if not isinstance(value, list | tuple):
        side = config.integer(key, default if isinstance(default, int) else default[0])
        return side, side
    if len(value) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in value):
        raise SpecError(f"{key} must be an integer >= 1 or two of them, got {shown(value)}")
    return value[0], value[1]


def patches(config: Section, image: int | tuple[int, int], patch: int, key: str = "image_size") -> tuple[int, int]:
    """(rows, columns) of the patches of an image as the config states its size, under ``key``."""
    size, each = pair(config, key, image), pair(config, "patch_size", patch)
    if size[0] < each[0] or size[1] < each[1]:
        raise SpecError(f"{key} must hold a patch of {each[0]} x {each[1]}, got {size[0]} x {size[1]}")
    return size[0] // each[0], size[1] // each[1]


def grid(image: int, patch: int, *, prefix: int | str = 1, plain: str | None = None, **resampling: Any) -> Site:
    """A table over patches, on layer 0. ``prefix``: how many first tokens have rows, or the key that says so (and its
    default 8: Pixio); ``plain``: the key of how many registers follow them.
    """

    def site(layer: Layer) -> dict[str, Any]:
        config = layer.config
        encoding = LearnedGridEncoding(
            grid=patches(config, image, patch),
            width=layer.hidden_size,
            prefix_tokens=prefix if isinstance(prefix, int) else config.integer(prefix, 8, minimum=0),
            plain_tokens=0 if plain is None else config.integer(plain, _REGISTERS[layer.config.text("model_type")]),
            **resampling,
        )
        return on_layer_0(layer, encoding)

    return site


_REGISTERS = {"dinov2_with_registers": 4, "tipsv2_vision_model": 1}


def siglip2(layer: Layer) -> dict[str, Any]:
    """SigLIP 2: ``num_patches`` (256) is a square, resampled with antialiasing for each image."""
    count = layer.config.integer("num_patches", 256)
    side = round(count**0.5)
    if side * side != count:
        raise SpecError(f"num_patches must be a square, got {count}")
    encoding = LearnedGridEncoding(grid=(side, side), width=layer.hidden_size, resize="bilinear", antialias=True)
    return on_layer_0(layer, encoding)


def _aimv2(layer: Layer) -> dict[str, Any]:
    """AIMv2: a table without a class token; for native resolutions, sinusoids of both coordinates."""
    if not layer.config.flag("is_native", False):
        return grid(224, 14, prefix=0)(layer)
    for key in ("image_size", "patch_size"):
        layer.config.get(key)
    encoding = SinusoidalGridEncoding(width=layer.hidden_size, order="sin_cos")
    return on_layer_0(layer, encoding)


def _videomae(layer: Layer) -> dict[str, Any]:
    """VideoMAE: the paper's sinusoids over the tubes of a video, in the order of frames, rows and columns."""
    config = layer.config
    frames = config.integer("num_frames", 16) // config.integer("tubelet_size", 2)

    def rows(config: Section) -> int:
        down, across = patches(config, 224, 16)
        return frames * down * across

    return sinusoids("interleaved", "half", rows=rows)(layer)


def _vilt(part: str) -> Family:
    """ViLT: words with BERT's table, then patches with one that is resized; both attend to both."""
    words = part == "text"
    return vit_like(
        "vilt",
        learned("max_position_embeddings", 40) if words else grid(384, 32, resize="bilinear", align_corners=True),
        before(1e-12),
        part=part,
        embedding_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-12) if words else no_norm,
        beyond=has("words and patches in one sequence, with positions of their own each"),
        harmless=frozenset({"max_image_length", "max_position_embeddings"}),
    )


def before(eps: float) -> NormOf:
    """A layer norm before the attention of every layer."""
    return norms.layer_norm("layer_norm_eps", eps)


def vit_like(
    model_type: str,
    site: Site,
    norm: NormOf,
    sizes: tuple[int, int, int] = (768, 12, 12),
    *,
    harmless: frozenset[str] = frozenset(),
    **more: Any,
) -> Family:
    """ViT's block: two-way, a norm before attention. ``sizes``: hidden, heads, layers."""
    return Family(
        model_type,
        usual_sizes(*sizes, 0),
        site,
        more.pop("biases", SWITCHED),
        causal=never,
        trained_length=no_length,
        input_norm=norm,
        harmless=_LOOKS | harmless,
        **more,
    )


def clip(model_type: str, size: int = 224, patch: int = 32, **more: Any) -> Family:
    """CLIP's image tower: a norm behind the embeddings besides the one before attention."""
    closing = norms.embedding_layer_norm("layer_norm_eps", 1e-5)
    return vit_like(model_type, grid(size, patch), before(1e-5), biases=ALL, embedding_norm=closing, **more)


def _blip(model_type: str) -> Family:
    return vit_like(model_type, grid(224, 14), before(1e-6), (1408, 16, 39))


IMAGE_FAMILIES = (
    vit_like("vit", grid(224, 16), before(1e-12)),
    vit_like("deit", grid(224, 16, prefix=2), before(1e-12)),
    vit_like("vit_mae", grid(224, 16), before(1e-12)),
    vit_like("vit_msn", grid(224, 16), before(1e-6)),
    vit_like("ijepa", grid(224, 16, prefix=0), before(1e-12)),
    vit_like("dinov2", grid(224, 14), before(1e-6)),
    vit_like("dinov2_with_registers", grid(224, 16, plain="num_register_tokens", antialias=True), before(1e-6)),
    vit_like("pixio", grid(256, 16, prefix="n_cls_tokens"), before(1e-6), (1280, 16, 32)),
    vit_like("flava_image_model", grid(224, 16), before(1e-12)),
    vit_like(
        "tipsv2_vision_model",
        grid(448, 14, plain="num_register_tokens", resize="bilinear", antialias=True),
        before(1e-6),
    ),
    vit_like("siglip_vision_model", grid(224, 16, prefix=0), before(1e-6), biases=ALL),
    vit_like("siglip2_vision_model", siglip2, before(1e-6), biases=ALL),
    clip("clip_vision_model"),
    clip("clipseg_vision_model"),
    clip("metaclip_2_vision_model"),
    clip("chinese_clip_vision_model"),
    clip("altclip_vision_model"),
    clip("git_vision_model", patch=16),
    clip("kosmos_2_vision_model", patch=14, sizes=(1024, 16, 24)),
    clip("owlvit_vision_model", size=768),
    clip("owlv2_vision_model", size=768, patch=16),
    vit_like("blip_vision_model", grid(384, 16), before(1e-5), biases=ALL),
    _blip("blip_2_vision_model"),
    _blip("instructblip_vision_model"),
    _blip("instructblipvideo_vision_model"),
    vit_like(
        "aimv2_vision_model",
        _aimv2,
        norms.rms("rms_norm_eps", 1e-5),
        (1024, 8, 24),
        biases=projection_biases.switched("qkv_bias", False, "qkvo"),
    ),
    _vilt("text"),
    _vilt("vision"),
    vit_like("flava_multimodal_model", no_encoding, before(1e-12), (768, 12, 6)),
    vit_like(
        "videomae",
        _videomae,
        before(1e-12),
        biases=projection_biases.with_output(projection_biases.switched("qv_bias", True, "qv")),
    ),
)
