"""Towers with vectors for offsets of rows and of columns, in windows or over the whole picture: ViTDet, SAM, SegGPT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.bert_families import usual_sizes
from portpe.config.image_families import pair, patches
from portpe.config.layer import Family, Layer, never, no_length
from portpe.encodings import GridVectorsEncoding, LearnedGridEncoding
from portpe.errors import SpecError

Site = Callable[[Layer], dict[str, Any]]
_BIASES = projection_biases.with_output(projection_biases.switched("qkv_bias", True, "qkv"))
_HARMLESS = frozenset({"num_pos_feats", "scale", "post_conv_in_channels", "decoder_hidden_size"})


def _vectors(layer: Layer, image: int, window: int) -> GridVectorsEncoding:
    """Over a window of ``window`` cells a side, or where that is 0 over the picture."""
    height, width = (window, window) if window else patches(layer.config, image, 16)
    if window:
        layer.warn(f"a sequence is a window of {window} by {window} cells, whose first is at (0, 0)")
    return GridVectorsEncoding(height=height, width=width)


def _sam(image: int) -> Site:
    """Windows but for the layers of ``global_attn_indexes``; the picture's table stands before them."""

    def site(layer: Layer) -> dict[str, Any]:
        config = layer.config
        whole = layer.index in layer.config.numbers("global_attn_indexes", (2, 5, 8, 11))
        window = config.integer("window_size", 14, minimum=0)
        if config.flag("use_abs_pos", True) and layer.index == 0:
            layer.warn("the table over the picture is added before it is cut into windows: it belongs to hidden_states")
        patches(config, image, 16)
        return {"bias": (_vectors(layer, image, 0 if whole else window),)} if config.flag("use_rel_pos", True) else {}

    return site


def _table(layer: Layer, pretrained: int) -> dict[str, Any]:
    """A table over the picture of pretraining, resized; its first row, a class token's, is not used."""
    config, key = layer.config, "pretrain_image_size"
    size, each = pair(config, key, pretrained), pair(config, "patch_size", 16)
    if layer.index:
        return {}
    grid = size[0] // each[0], size[1] // each[1]
    if not all(grid):
        raise SpecError(f"{key} must hold a patch of {each[0]} x {each[1]}, got {size[0]} x {size[1]}")
    return {"embedding": LearnedGridEncoding(grid=grid, width=layer.hidden_size)}


def _vitdet(layer: Layer) -> dict[str, Any]:
    """Tables of both kinds are switched apart; a layer 0 in windows has none of the picture's."""
    config = layer.config
    patches(config, 224, 16)
    in_windows = layer.index in config.numbers("window_block_indices", ())
    window = config.integer("window_size", 0, minimum=0) if in_windows else 0
    config.seen |= {"window_size", "pretrain_image_size"}
    found: dict[str, Any] = {}
    if config.flag("use_absolute_position_embeddings", True):
        found = {} if window else _table(layer, 224)
        if window and layer.index == 0:
            layer.warn("the table over the picture is added before it is cut into windows: it belongs to hidden_states")
    if config.flag("use_relative_position_embeddings", False):
        found["bias"] = (_vectors(layer, 224, window),)
    return found


def _seggpt(layer: Layer) -> dict[str, Any]:
    """Two pictures above each other make one: the table of one is added to each before, and not to the whole."""
    config = layer.config
    if layer.index == 0:
        layer.warn(
            "the table over each of the two pictures is added before they are joined: it belongs to hidden_states"
        )
    _table(layer, 224)
    size, each = pair(config, "image_size", 896), pair(config, "patch_size", 16)
    if not config.has("image_size"):
        size = (896, 448)
    if not config.flag("use_relative_position_embeddings", True):
        return {}
    return {"bias": (GridVectorsEncoding(height=size[0] // each[0], width=size[1] // each[1]),)}


def _tower(model_type: str, site: Site, sizes: tuple[int, int, int] = (768, 12, 12), **more: Any) -> Family:
    """``sizes``: hidden, heads, layers."""
    return Family(
        model_type,
        usual_sizes(*sizes, 0),
        site,
        _BIASES,
        causal=never,
        trained_length=no_length,
        input_norm=norms.layer_norm("layer_norm_eps", 1e-6),
        harmless=_HARMLESS,
        **more,
    )


SAM_FAMILIES = (
    _tower("vitdet", _vitdet),
    _tower("sam_vision_model", _sam(1024)),
    _tower("sam_hq_vision_model", _sam(1024)),
    _tower("got_ocr2_vision", _sam(1024)),
    _tower("deepseek_ocr2_sam_vision_model", _sam(1024)),
    _tower("unlimited_ocr_sam_vision_model", _sam(1024)),
    _tower("slanext_vision", _sam(512)),
    _tower("pp_formulanet_vision", _sam(512)),
    _tower("seggpt", _seggpt, (1024, 16, 24)),
)
