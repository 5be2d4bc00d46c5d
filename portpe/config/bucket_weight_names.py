"""Where families with T5's buckets keep the tensors of an attention layer: one row a family.

T5's table of buckets stands in layer 0 and serves all layers; UMT5 has one in each.
"""

from __future__ import annotations

from dataclasses import replace

from portpe.config.weight_layout import Fused, WeightNames


def _t5(attention: str = "SelfAttention", *, shared: bool = True) -> WeightNames:
    """T5's names, for one stack of an encoder-decoder."""
    first = "block.{layer}.layer.0"
    table = f"block.0.layer.0.{attention}" if shared else f"{first}.{attention}"
    return WeightNames(
        ("transformer.{part}.", "{part}.", ""),
        {
            **{f"{short}_proj": f"{first}.{attention}.{short}" for short in "qkvo"},
            "input_norm": f"{first}.layer_norm",
            "relative_attention_bias": f"{table}.relative_attention_bias",
        },
    )


_PIX2STRUCT = WeightNames(
    ("decoder.", ""),
    {
        **{
            f"{short}_proj": f"layer.{{layer}}.self_attention.attention.{name}"
            for short, name in {"q": "query", "k": "key", "v": "value", "o": "output"}.items()
        },
        "input_norm": "layer.{layer}.self_attention.layer_norm",
        "relative_attention_bias": "layer.0.self_attention.attention.relative_attention_bias",
    },
)

_PIX2STRUCT_IMAGE = WeightNames(
    ("encoder.", ""),
    {
        **{
            f"{short}_proj": f"encoder.layer.{{layer}}.attention.{name}"
            for short, name in {"q": "query", "k": "key", "v": "value", "o": "output"}.items()
        },
        "input_norm": "encoder.layer.{layer}.pre_attention_layer_norm",
        "position_embedding.axis_0.weight": "embeddings.row_embedder.weight",
        "position_embedding.axis_1.weight": "embeddings.column_embedder.weight",
    },
)

_MPNET = WeightNames(
    ("mpnet.", ""),
    {
        **{f"{short}_proj": f"encoder.layer.{{layer}}.attention.attn.{short}" for short in "qkvo"},
        "input_norm": "embeddings.LayerNorm",
        "position_embedding": "embeddings.position_embeddings",
        "relative_attention_bias": "encoder.relative_attention_bias",
    },
)

_LAYOUT_ATTENTION = "encoder.layer.{layer}.attention"
_LAYOUT = {
    **{
        f"{short}_proj": f"{_LAYOUT_ATTENTION}.self.{name}"
        for short, name in {"q": "query", "k": "key", "v": "value"}.items()
    },
    "o_proj": f"{_LAYOUT_ATTENTION}.output.dense",
    "relative_attention_bias": "encoder.rel_pos_bias",  # as it is named where positions have one axis
    "axis_bias_0": "encoder.rel_pos_bias",
    "axis_bias_1": "encoder.rel_pos_x_bias",
    "axis_bias_2": "encoder.rel_pos_y_bias",
}
_LAYOUT_TABLES = ("relative_attention_bias", "axis_bias_0", "axis_bias_1", "axis_bias_2")
# fast_qkv: one matrix, and two biases beside it; else as LayoutLMv3.
_LAYOUTLMV2 = WeightNames(
    ("layoutlmv2.", ""),
    {
        **_LAYOUT,
        "q_proj.bias": f"{_LAYOUT_ATTENTION}.self.q_bias|{_LAYOUT_ATTENTION}.self.query.bias",
        "v_proj.bias": f"{_LAYOUT_ATTENTION}.self.v_bias|{_LAYOUT_ATTENTION}.self.value.bias",
    },
    fused=Fused(f"{_LAYOUT_ATTENTION}.self.qkv_linear", "stacked"),
    transposed=_LAYOUT_TABLES,
)

BUCKET_ROWS: dict[str, WeightNames] = {
    "layoutlmv2": _LAYOUTLMV2,
    "layoutlmv3": WeightNames(("layoutlmv3.", ""), _LAYOUT, transposed=_LAYOUT_TABLES),
    "layoutxlm": _LAYOUTLMV2,
    "longt5": _t5(),
    "longt5 encoder": _t5("LocalSelfAttention"),
    "mpnet": _MPNET,
    "mt5": _t5(),
    "pix2struct_text_model": _PIX2STRUCT,
    "kosmos_2_5_vision_model": replace(_PIX2STRUCT_IMAGE, prefixes=("vision_model.", "")),
    "pix2struct_vision_model": _PIX2STRUCT_IMAGE,
    "pop2piano": _t5(),
    "switch_transformers": _t5(),
    "t5": _t5(),
    "udop": _t5(),
    "umt5": _t5(shared=False),
}
