"""Where families with positions in their embeddings keep the tensors of an attention layer: one row a family."""

from __future__ import annotations

from typing import Literal

from portpe.config.weight_layout import Fused, WeightNames, separate


def _bert(prefix: str, **others: str) -> WeightNames:
    """BERT's names; ``others`` replace some of them."""
    attention = "encoder.layer.{layer}.attention"
    projections = {f"{short}_proj": f"{attention}.self.{name}" for short, name in _BERT_PROJECTIONS.items()}
    names = {
        **projections,
        "o_proj": f"{attention}.output.dense",
        "input_norm": "embeddings.LayerNorm",
        "position_embedding": "embeddings.position_embeddings",
    }
    return WeightNames((prefix, ""), names | others)


def _stack(*prefixes: str, **others: str) -> WeightNames:
    """Names of fairseq, for one stack of an encoder-decoder; a norm before attention."""
    names = separate(
        "layers.{layer}.self_attn",
        "out_proj",
        input_norm="layers.{layer}.self_attn_layer_norm",
        embedding_norm="layernorm_embedding",
        position_embedding="embed_positions",
    )
    return WeightNames((*prefixes, "{part}.", ""), names | others)


def _gpt(
    prefix: str, *, transposed: bool = True, layout: Literal["stacked", "grouped"] = "stacked", **others: str
) -> WeightNames:
    """GPT-2's names: q, k and v in one tensor."""
    names = {"o_proj": "h.{layer}.attn.c_proj", "input_norm": "h.{layer}.ln_1", "position_embedding": "wpe"}
    fused = Fused("h.{layer}.attn.c_attn", layout)
    return WeightNames((prefix, ""), names | others, fused=fused, transposed=transposed)


_BERT_PROJECTIONS = {"q": "query", "k": "key", "v": "value"}

_ALBERT_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.0.attention"
_ALBERT = _bert(
    "albert.",
    **{f"{short}_proj": f"{_ALBERT_LAYER}.{name}" for short, name in _BERT_PROJECTIONS.items()},
    o_proj=f"{_ALBERT_LAYER}.dense",
    embedding_projection="encoder.embedding_hidden_mapping_in",
)

_DISTILBERT_LAYER = "transformer.layer.{layer}.attention"
_XLM = separate("attentions.{layer}", "out_lin") | {
    f"{short}_proj": f"attentions.{{layer}}.{short}_lin" for short in "qkv"
}
_XLM_NAMES = WeightNames(
    ("transformer.", ""), _XLM | {"input_norm": "layer_norm_emb", "position_embedding": "position_embeddings"}
)


def _own_encoder(prefix: str, attention: str, **others: str) -> WeightNames:
    """An encoder whose attention has BERT's names inside fairseq's stack."""
    projections = {f"{short}_proj": f"{attention}.{name}" for short, name in _BERT_PROJECTIONS.items()}
    return _stack(prefix, **projections, o_proj="layers.{layer}.self_attn.output", **others)


_NEO = separate("h.{layer}.attn.attention", "out_proj", input_norm="h.{layer}.ln_1", position_embedding="wpe")
_CLIP = WeightNames(
    ("text_model.", ""),
    separate(
        "encoder.layers.{layer}.self_attn",
        "out_proj",
        input_norm="encoder.layers.{layer}.layer_norm1",
        position_embedding="embeddings.position_embedding",
    ),
)

_BARE = frozenset({"position_embedding"})


def _vit(*prefixes: str, norm: str = "layernorm_before") -> WeightNames:
    """ViT's names: BERT's, twice attention; the table is a bare tensor."""
    attention = "encoder.layer.{layer}.attention"
    names = {
        **{f"{short}_proj": f"{attention}.attention.{name}" for short, name in _BERT_PROJECTIONS.items()},
        "o_proj": f"{attention}.output.dense",
        "input_norm": f"encoder.layer.{{layer}}.{norm}",
        "position_embedding": "embeddings.position_embeddings",
    }
    return WeightNames((*prefixes, ""), names, bare=_BARE)


def _tower(*prefixes: str, **others: str) -> WeightNames:
    """CLIP's names for the encoder of images."""
    return WeightNames((*prefixes, ""), {**_CLIP.names, "embedding_norm": "pre_layrnorm", **others})


_BLIP = WeightNames(
    ("vision_model.", ""),
    {
        "o_proj": "encoder.layers.{layer}.self_attn.projection",
        "input_norm": "encoder.layers.{layer}.layer_norm1",
        "position_embedding": "embeddings.position_embedding",
    },
    fused=Fused("encoder.layers.{layer}.self_attn.qkv", "stacked"),
    bare=_BARE,
)

ABSOLUTE_ROWS: dict[str, WeightNames] = {
    "albert": _ALBERT,
    "blip_vision_model": _BLIP,
    "clip_vision_model": _tower("vision_model."),
    "clvp_decoder": WeightNames(
        ("speech_decoder_model.model.decoder.", "model.decoder.", "decoder.", ""),
        separate(
            "layers.{layer}.attn",
            "out_proj",
            input_norm="layers.{layer}.input_layernorm",
            position_embedding="position_embeds_layer",
        ),
    ),
    "deit": _vit("deit."),
    "dinov2": _vit("dinov2.", "backbone.", norm="norm1"),
    "dinov2_with_registers": _vit("dinov2_with_registers.", norm="norm1"),
    "flava_image_model": _vit("image_model."),
    "ijepa": _vit("ijepa."),
    "pixio": _vit("pixio.", norm="norm1"),
    "siglip2_vision_model": _tower("vision_model."),
    "siglip_vision_model": _tower("vision_model."),
    "vit": _vit("vit."),
    "vit_mae": _vit("vit."),
    "vit_msn": _vit("vit."),
    "bart": _stack("model.{part}.", input_norm="layernorm_embedding"),
    "bert": _bert("bert."),
    "bert-generation": _bert("bert."),
    "big_bird": _bert("bert."),
    "bigbird_pegasus": _stack("model.{part}."),
    "bigbird_pegasus encoder": _own_encoder("model.encoder.", "layers.{layer}.self_attn.self"),
    "biogpt": WeightNames(("biogpt.", ""), _stack().names),
    "blip_text_model": _bert("text_encoder."),
    "blenderbot": _stack("model.{part}."),
    "blenderbot-small": _stack("model.{part}.", input_norm="layernorm_embedding"),
    "camembert": _bert("roberta."),
    "clip_text_model": _CLIP,
    "data2vec-text": _bert("data2vec_text."),
    "distilbert": _bert(
        "distilbert.",
        **{f"{short}_proj": f"{_DISTILBERT_LAYER}.{short}_lin" for short in "qkv"},
        o_proj=f"{_DISTILBERT_LAYER}.out_lin",
    ),
    "electra": _bert("electra.", embedding_projection="embeddings_project"),
    "ernie": _bert("ernie."),
    "esm": _bert(
        "esm.", input_norm="encoder.layer.{layer}.attention.LayerNorm", embedding_norm="embeddings.layer_norm"
    ),
    "flaubert": _XLM_NAMES,
    "fsmt": _stack("model.{part}."),
    "gpt2": _gpt("transformer."),
    "gpt_bigcode": _gpt("transformer.", transposed=False, layout="grouped"),
    "gpt_neo": WeightNames(("transformer.", ""), _NEO),
    "ibert": _bert("ibert."),
    "imagegpt": _gpt("transformer."),
    "layoutlm": _bert("layoutlm."),
    "led": _stack("led.{part}.", input_norm="layernorm_embedding"),
    "led encoder": _own_encoder(
        "led.encoder.", "layers.{layer}.self_attn.longformer_self_attn", input_norm="layernorm_embedding"
    ),
    "longformer": _bert("longformer."),
    "luke": _bert("luke."),
    "lxmert": _bert("lxmert."),
    "m2m_100": _stack("model.{part}."),
    "marian": _stack("model.{part}."),
    "markuplm": _bert("markuplm."),
    "mbart": _stack("model.{part}."),
    "megatron-bert": _bert("bert.", input_norm="encoder.layer.{layer}.attention.ln"),
    "musicgen_decoder": _stack("decoder.model.decoder.", "model.decoder."),
    "musicgen_melody_decoder": _stack("decoder.model.decoder.", "model.decoder."),
    "mvp": _stack("model.{part}.", input_norm="layernorm_embedding"),
    "nllb-moe": _stack("model.{part}."),
    "openai-gpt": _gpt("transformer.", position_embedding="positions_embed"),
    "opt": WeightNames(("model.decoder.", "decoder.", ""), _stack().names),
    "pegasus": _stack("model.{part}."),
    "pegasus_x": _stack("model.{part}."),
    "pp_formulanet_text": _stack("model.decoder.", "decoder."),
    "plbart": _stack("model.{part}.", input_norm="layernorm_embedding"),
    "rembert": _bert("rembert.", embedding_projection="encoder.embedding_hidden_mapping_in"),
    "roberta": _bert("roberta."),
    "roberta-prelayernorm": _bert(
        "roberta_prelayernorm.",
        input_norm="encoder.layer.{layer}.attention.LayerNorm",
        embedding_norm="embeddings.LayerNorm",
    ),
    "roc_bert": _bert("roc_bert."),
    "roformer": _bert("roformer."),
    "siglip_text_model": _CLIP,
    "speech_to_text": _stack("model.{part}."),
    "splinter": _bert("splinter."),
    "tapas": _bert("tapas."),
    "trocr": _stack("decoder.model.decoder.", "model.decoder.", "decoder.", input_norm="layernorm_embedding"),
    "visual_bert": _bert("visual_bert."),
    "whisper": _stack("model.{part}."),
    "xglm": _stack("model."),
    "xlm": _XLM_NAMES,
    "xlm-roberta": _bert("roberta."),
    "xlm-roberta-xl": _bert("roberta.", input_norm="encoder.layer.{layer}.attention.self_attn_layer_norm"),
    "xmod": _bert("roberta."),
}
