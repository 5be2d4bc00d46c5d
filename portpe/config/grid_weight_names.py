"""Where vision families with a table of offsets keep the tensors of an attention layer: one row a family."""

from __future__ import annotations

import math
from dataclasses import replace

from portpe.config.weight_layout import Fused, WeightNames

_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}


def _blocks(prefix: str, block: str = "encoder.layers.{stage}.blocks.{block}") -> WeightNames:
    """Swin's names: blocks of a stage."""
    return WeightNames(
        (prefix, ""),
        {
            **{canonical: f"{block}.attention.self.{name}" for canonical, name in _PROJECTIONS.items()},
            "o_proj": f"{block}.attention.output.dense",
            "input_norm": f"{block}.layernorm_before",
            "relative_position_bias_table": f"{block}.attention.self.relative_position_bias_table",
        },
    )


def _layers(prefix: str) -> WeightNames:
    """BEiT's names; the table is each layer's own or the encoder's."""
    layer, table = "encoder.layer.{layer}", "relative_position_bias.relative_position_bias_table"
    return WeightNames(
        (prefix, ""),
        {
            **{canonical: f"{layer}.attention.attention.{name}" for canonical, name in _PROJECTIONS.items()},
            "o_proj": f"{layer}.attention.output.dense",
            "input_norm": f"{layer}.layernorm_before",
            "relative_position_bias_table": f"{layer}.attention.attention.{table}|encoder.{table}",
        },
    )


def _swinv2(prefix: str = "swinv2.", block: str = "encoder.layers.{stage}.blocks.{block}") -> WeightNames:
    """Swin v2: blocks whose norm stands behind, with a network of the offset and a scale of the cosines."""
    attention, row = f"{block}.attention.self", _blocks(prefix, block)
    network = f"{attention}.continuous_position_bias_mlp"
    names = {name: place for name, place in row.names.items() if name.endswith("_proj")}
    names |= {"q_norm.weight": f"{attention}.logit_scale", "grid_in": f"{network}.0", "grid_out": f"{network}.2"}
    scales = frozenset({"q_norm.weight"})
    return replace(row, names=names, by_head=scales, logarithms=dict.fromkeys(scales, math.log(100)))


def _vectors(prefixes: tuple[str, ...], layer: str, attention: str, norm: str) -> WeightNames:
    """ViTDet's names: q, k and v in one tensor, and two tables in the attention of each layer."""
    return WeightNames(
        prefixes,
        {
            "o_proj": f"{layer}.{attention}.proj",
            "input_norm": f"{layer}.{norm}",
            "relative_height": f"{layer}.{attention}.rel_pos_h",
            "relative_width": f"{layer}.{attention}.rel_pos_w",
        },
        fused=Fused(f"{layer}.{attention}.qkv", "stacked"),
        bare=frozenset({"relative_height", "relative_width"}),
    )


def _sam(*prefixes: str) -> WeightNames:
    return _vectors((*prefixes, ""), "layers.{layer}", "attn", "layer_norm1")


# As DeepSeek's models are published, under the names of SAM's own code.
_SAM_MODEL = _vectors(("model.sam_model.", "sam_model.", ""), "blocks.{layer}", "attn", "norm1")

GRID_ROWS: dict[str, WeightNames] = {
    "beit": _layers("beit."),
    "clap_audio_model": _blocks("audio_model.", "audio_encoder.layers.{stage}.blocks.{block}"),
    "data2vec-vision": _layers("data2vec_vision."),
    "donut-swin": _blocks("encoder."),
    "deepseek_ocr2_sam_vision_model": _SAM_MODEL,
    "got_ocr2_vision": _sam("model.vision_tower.", "vision_tower."),
    "maskformer-swin": _blocks("model."),
    "pp_formulanet_vision": _sam("model.encoder.", "encoder."),
    "sam_hq_vision_model": _sam("vision_encoder."),
    "sam_vision_model": _sam("vision_encoder."),
    "seggpt": _vectors(("model.", ""), "encoder.layers.{layer}", "attention", "layernorm_before"),
    "slanext_vision": _sam("backbone.vision_tower.", "vision_tower."),
    "swin": _blocks("swin."),
    "swin2sr": _swinv2("swin2sr.", "encoder.stages.{stage}.layers.{block}"),
    "swinv2": _swinv2(),
    "unlimited_ocr_sam_vision_model": _SAM_MODEL,
    "vitdet": _vectors(("vitdet.", ""), "encoder.layer.{layer}", "attention", "norm1"),
}
