"""Image towers of multimodal models with a trained table over their patches: one row a model_type."""

from __future__ import annotations

from typing import Any

from portpe.config import norms, projection_biases
from portpe.config.embedding_sites import Site, on_layer_0
from portpe.config.image_families import grid, patches, siglip2
from portpe.config.layer import NO_LENGTH, Family, Layer, NormOf, Size, Sizes
from portpe.config.section import shown
from portpe.encodings import LearnedEncoding, LearnedGridEncoding
from portpe.errors import SpecError

_ALL = projection_biases.fixed("qkvo")
_SWITCHED = projection_biases.switched("attention_bias", True, "qkvo")
_USUAL = ("hidden_size", "num_attention_heads", "num_hidden_layers")


def _sizes(hidden: int, heads: int, layers: int, names: tuple[str, str, str] = _USUAL, **more: Any) -> Sizes:
    """No length: a table that is resized has none along a sequence."""
    keys = [(name,) for name in names]
    return Sizes(
        hidden=Size(keys[0], hidden),
        heads=Size(keys[1], heads),
        layers=Size(keys[2], layers),
        length=NO_LENGTH,
        **{"head_dim": None} | more,
    )


def _tower(model_type: str, site: Site, norm: NormOf, sizes: Sizes, **more: Any) -> Family:
    """Two-way, a norm before attention, every projection with a bias."""
    fields: dict[str, Any] = {"biases": _ALL, "causal": lambda _layer: False, **more}
    return Family(model_type, sizes, site, input_norm=norm, **fields)


def _before(eps: float) -> NormOf:
    return norms.layer_norm("layer_norm_eps", eps)


def _hunyuan(layer: Layer) -> dict[str, Any]:
    """HunYuan-VL: a table for the largest image, behind a row that nothing reads."""
    side = layer.config.integer("max_image_size", 2048) // layer.config.integer("patch_size", 16)
    how = layer.config.text("interpolate_mode", "bilinear")
    if how not in ("bilinear", "bicubic"):
        raise SpecError(f"interpolate_mode must be 'bilinear' or 'bicubic', got {shown(how)}")
    encoding = LearnedGridEncoding(grid=(side, side), width=layer.hidden_size, resize=how)
    return on_layer_0(layer, encoding)


def _molmo2(layer: Layer) -> dict[str, Any]:
    """Molmo 2: crops of one size; the table has a row for each of their patches."""
    rows, columns = patches(layer.config, 378, 14)
    count = layer.config.integer("num_position_embeddings", rows * columns)
    if count != rows * columns:
        raise SpecError(f"num_position_embeddings must be the {rows * columns} patches of a crop, got {count}")
    return on_layer_0(layer, LearnedEncoding(rows=count, width=layer.hidden_size))


IMAGE_TOWER_FAMILIES = (
    _tower("cosmos3_edge_vision", siglip2, _before(1e-6), _sizes(1152, 16, 27)),
    _tower(
        "granite_docling_vision",
        grid(512, 16, prefix=0),
        _before(1e-6),
        _sizes(768, 12, 12),
        harmless=frozenset({"scale_factor"}),
    ),
    _tower(
        "phi4_multimodal_vision",
        grid(448, 14, prefix=0, resize="nearest"),
        _before(1e-6),
        _sizes(1152, 16, 27),
        harmless=frozenset({"crop_size"}),
    ),
    _tower(
        "glm_image_vision",
        grid(2048, 16, prefix=0, resize="bilinear"),
        _before(1e-6),
        _sizes(1536, 16, 40, ("hidden_size", "num_heads", "depth")),
        biases=_SWITCHED,
    ),
    _tower(
        "hunyuan_vl_vision",
        _hunyuan,
        norms.layer_norm("rms_norm_eps", 1e-5),
        _sizes(1152, 16, 27),
        harmless=frozenset({"max_vit_seq_len"}),
    ),
    _tower(
        "molmo2_vision",
        _molmo2,
        _before(1e-6),
        _sizes(1152, 16, 25, kv_heads=Size(("num_key_value_heads",), 16), head_dim=72),
        biases=_SWITCHED,
    ),
    _tower(
        "unlimited_ocr_vision_encoder",
        grid(224, 14, antialias=True),
        _before(1e-5),
        _sizes(1024, 16, 24),
        embedding_norm=norms.embedding_layer_norm("layer_norm_eps", 1e-5),
    ),
)
