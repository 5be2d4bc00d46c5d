"""Where towers over patches or bands of sound, and detectors, keep an attention layer's tensors: one row a family."""

from __future__ import annotations

from portpe.config.weight_layout import Fused, WeightNames, separate

_BARE = frozenset({"position_embedding"})


def _encoder(prefix: str, attention: str, output: str, norm: str, table: str, *, bare: bool) -> WeightNames:
    """Projections under their usual names in a module of each layer."""
    layer = attention.rpartition(".")[0]
    names = separate(
        attention,
        output,
        q_norm=f"{attention}.q_norm",
        k_norm=f"{attention}.k_norm",
        input_norm=f"{layer}.{norm}",
        position_embedding=table,
    )
    return WeightNames((prefix, ""), names, bare=_BARE if bare else frozenset())


def _vit(prefix: str) -> WeightNames:
    attention = "encoder.layer.{layer}.attention"
    names = {
        **{f"{name[0]}_proj": f"{attention}.attention.{name}" for name in ("query", "key", "value")},
        "o_proj": f"{attention}.output.dense",
        "input_norm": "encoder.layer.{layer}.layernorm_before",
        "position_embedding": "embeddings.position_embeddings",
    }
    return WeightNames((prefix, ""), names, bare=_BARE)


_INTERNVL = ("projection_layer", "layernorm_before", "embeddings.position_embeddings")
_NAVIT = ("encoder.layers.{layer}.self_attn", "out_proj", "layer_norm1", "embeddings.position_embedding")


def _detector(*prefixes: str) -> WeightNames:
    """DETR's names for its encoder."""
    return WeightNames((*prefixes, ""), separate("layers.{layer}.self_attn", "out_proj"))


PATCH_ROWS: dict[str, WeightNames] = {
    "audio-spectrogram-transformer": _vit("audio_spectrogram_transformer."),
    "conditional_detr": _detector("model.encoder."),
    "detr": _detector("model.encoder."),
    "eomt": _encoder("", "layers.{layer}.attention", "out_proj", "norm1", "embeddings.position_embeddings", bare=False),
    "glm_image_vision": WeightNames(
        ("model.visual.", ""),
        {
            "o_proj": "blocks.{layer}.attn.proj",
            "input_norm": "blocks.{layer}.norm1",
            "position_embedding": "embeddings.position_embedding",
        },
        fused=Fused("blocks.{layer}.attn.qkv", "stacked"),
    ),
    "idefics2_vision": _encoder("model.vision_model.", *_NAVIT, bare=False),
    "idefics3_vision": _encoder("model.vision_model.", *_NAVIT, bare=False),
    "internvl_vision": _encoder("model.vision_tower.", "encoder.layer.{layer}.attention", *_INTERNVL, bare=True),
    "janus_vision_model": _encoder(
        "model.vision_model.",
        "encoder.layers.{layer}.self_attn",
        "projection_layer",
        "layer_norm1",
        "embeddings.position_embedding",
        bare=False,
    ),
    **{
        name: _encoder("model.vision_tower.", *_NAVIT, bare=False)
        for name in ("minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision")
    },
    "mgp-str": WeightNames(
        ("mgp_str.", ""),
        {
            "o_proj": "encoder.blocks.{layer}.attn.proj",
            "input_norm": "encoder.blocks.{layer}.norm1",
            "position_embedding": "embeddings.pos_embed",
        },
        fused=Fused("encoder.blocks.{layer}.attn.qkv", "stacked"),
        bare=_BARE,
    ),
    "ovis2_vision": _encoder(
        "model.vision_tower.",
        "transformer.encoder.layers.{layer}.attention",
        "out_proj",
        "rms_norm1",
        "transformer.embeddings.position_embedding",
        bare=False,
    ),
    "qianfan_ocr_vision": _encoder("model.vision_tower.", "layers.{layer}.attention", *_INTERNVL, bare=True),
    "radio": WeightNames(
        ("radio_model.model.", "model.", ""),
        {
            "o_proj": "blocks.{layer}.attn.proj",
            "input_norm": "blocks.{layer}.norm1",
            "position_embedding": "patch_generator.pos_embed",
        },
        fused=Fused("blocks.{layer}.attn.qkv", "stacked"),
        bare=_BARE,
    ),
    "rf_detr_dinov2": _encoder(
        "backbone.", "encoder.layer.{layer}.attention", "o_proj", "norm1", "embeddings.position_embeddings", bare=True
    ),
    "rt_detr": _detector("model.encoder.encoder.0.", "encoder.encoder.0."),
    "smolvlm_vision": _encoder("model.vision_model.", *_NAVIT, bare=False),
    "table-transformer": _detector("model.encoder."),
    "vivit": _vit("vivit."),
}
