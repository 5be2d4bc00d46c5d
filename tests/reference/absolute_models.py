"""transformers' own models with positions in their embeddings, tiny: one row a family or variant.

A row says besides what ``Model`` does where the positions come in: the module whose output is added, and the module
whose input is the sum. What was added to is the difference, so nothing is said of tokens, types or boxes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import transformers

from tests.reference.transformers_model import Model, widen

HIDDEN, LENGTH = 48, 40
TOKENS = {"vocab_size": 53, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAIRSEQ = {"vocab_size": 53, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


@dataclass(frozen=True)
class Absolute(Model):
    """A tiny model with an embedding site.

    Attributes:
        table: the end of the name of the module that gives the positions' rows.
        summed: the end of the name of the module that takes the sum; the query projection where nothing stands between.
        stack: the attribute path of the stack that is called; "" is the model.
        counts: who numbers tokens: ``given`` position_ids, the ``mask``, or ``slots``, whatever is padded.
        exact: transformers forms its angles in the model's own type, here float64.
        keeps: the end of the name of a table that is made, not trained, and must keep its values.
        right: pads stand at the right, as the model takes for granted.
        sequence_first: the projections see (sequence, batch, width).
    """

    table: str = "embeddings.position_embeddings"
    summed: str = "embeddings.LayerNorm"
    stack: str = ""
    counts: str = "slots"
    exact: bool = False
    keeps: str = ""
    right: bool = False
    sequence_first: bool = False

    def build(self, seed: int = 0) -> Any:
        """In float32 with wide weights, and torch's fused attention where the class has it, which keeps float64."""
        cls = getattr(transformers, self.cls)
        implementation = "sdpa" if cls._supports_sdpa else "eager"
        model = cls._from_config(cls.config_class(**self.config), attn_implementation=implementation)
        kept = [parameter for name, parameter in model.named_parameters() if self.keeps and name.endswith(self.keeps)]
        for parameter in kept:
            parameter.requires_grad_(False)
        widen(model, seed, self.gain)
        return model.eval()


_BERT = {
    **TOKENS,
    "hidden_size": HIDDEN,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": LENGTH,
}
_PATHS = {"query": "attention.self.query", "output": "attention.output.dense"}
_OUT = {"query": "self_attn.q_proj", "output": "self_attn.out_proj"}
_CONV = {"query": "attn.c_attn", "output": "attn.c_proj", "table": "wpe", "summed": "h.0.ln_1"}
_GPT = dict(**TOKENS, n_embd=HIDDEN, n_head=6, n_layer=2, n_positions=LENGTH)
_BART = dict(
    **FAIRSEQ,
    d_model=HIDDEN,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=6,
    decoder_attention_heads=4,
    encoder_ffn_dim=20,
    decoder_ffn_dim=20,
    max_position_embeddings=LENGTH,
)


def _bert(cls: str, *, counts: str = "given", more: dict[str, Any] | None = None, **config: Any) -> Absolute:
    return Absolute(cls, {**_BERT, **config}, **{**_PATHS, "counts": counts, **(more or {})})


def _roberta(cls: str, *, more: dict[str, Any] | None = None, **config: Any) -> Absolute:
    """Pads are known by their token: positions follow the mask."""
    fairseq = {"pad_token_id": 1, "bos_token_id": 0}
    return _bert(cls, counts="mask", more=more, **{**fairseq, **config})


def _bart(
    name: str, part: str, *, summed: str = "layernorm_embedding", more: dict[str, Any] | None = None, **config: Any
) -> Absolute:
    """A config value of None takes the key out."""
    merged = {key: value for key, value in {**_BART, **config}.items() if value is not None}
    paths = {**_OUT, "table": "embed_positions", "summed": summed, "stack": f"model.{part}", "part": part}
    cls = name if name.endswith("Model") else f"{name}ForConditionalGeneration"
    return Absolute(cls, merged, **{**paths, **(more or {})})


def _stacks(label: str, name: str, **keywords: Any) -> dict[str, Absolute]:
    """Both stacks of an encoder-decoder."""
    return {f"{label} {part}": _bart(name, part, **keywords) for part in ("encoder", "decoder")}


def _gpt(cls: str, *, more: dict[str, Any] | None = None, **config: Any) -> Absolute:
    return Absolute(cls, {**_GPT, **config}, **{**_CONV, "counts": "given", **(more or {})})


def _xlm(cls: str, *, more: dict[str, Any] | None = None, **config: Any) -> Absolute:
    base = dict(**TOKENS, emb_dim=HIDDEN, n_heads=6, n_layers=2, max_position_embeddings=LENGTH)
    paths = {"query": "q_lin", "output": "out_lin", "table": "position_embeddings", "summed": "layer_norm_emb"}
    fields = {**paths, "counts": "given", "float32": ("softmax",), **(more or {})}
    return Absolute(cls, {**base, **config}, **fields)


def _distilbert(**config: Any) -> Absolute:
    base = dict(**TOKENS, dim=HIDDEN, n_heads=6, n_layers=2, hidden_dim=20, max_position_embeddings=LENGTH)
    return Absolute(
        "DistilBertForMaskedLM", {**base, **config}, query="attention.q_lin", output="attention.out_lin", counts="given"
    )


def _decoder(
    cls: str, config: dict[str, Any], *, summed: str = "layers.0.self_attn_layer_norm", **more: Any
) -> Absolute:
    return Absolute(cls, {**FAIRSEQ, **config}, **{**_OUT, "table": "embed_positions", "summed": summed, **more})


_LXMERT = {"l_layers": 1, "r_layers": 1, "x_layers": 1, "visual_feat_dim": 8}
_TROCR = {
    "d_model": HIDDEN,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": LENGTH,
}
_MUSIC = {
    "hidden_size": HIDDEN,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "ffn_dim": 20,
    "num_codebooks": 1,
    "max_position_embeddings": LENGTH,
    "audio_channels": 1,
}
_PRE = "layers.0.self_attn_layer_norm"
_NEO = {**TOKENS, "hidden_size": HIDDEN, "num_heads": 6, "num_layers": 2, "intermediate_size": 20}
_LOCAL = {"attention_window": [4, 6]}
_SPEECH = {"max_position_embeddings": None, "max_source_positions": LENGTH, "max_target_positions": LENGTH}
_TEXT_TOWER = {"query": "self_attn.q_proj", "output": "self_attn.out_proj", "table": "embeddings.position_embedding"}

ABSOLUTE_MODELS: dict[str, Absolute] = {
    "bert-generation": _bert("BertGenerationEncoder"),
    "big_bird": _bert("BigBirdForMaskedLM", attention_type="original_full", use_bias=False),
    "ernie": _bert("ErnieForMaskedLM", use_task_id=True, task_type_vocab_size=3),
    "roc_bert": _bert("RoCBertForMaskedLM", pronunciation_vocab_size=9, shape_vocab_size=9),
    "splinter": _bert("SplinterModel", more={"float32": ("softmax",)}),
    "visual_bert": _bert("VisualBertModel", visual_embedding_dim=8),
    "layoutlm": _bert("LayoutLMForMaskedLM", max_2d_position_embeddings=30),
    "tapas": _bert("TapasModel", type_vocab_sizes=[3, 5, 5, 2, 5, 5, 10]),
    "megatron-bert": _bert("MegatronBertForMaskedLM", more={"summed": "layer.0.attention.ln"}),
    "electra": _bert("ElectraForMaskedLM", embedding_size=20),
    "electra unprojected": _bert("ElectraForMaskedLM", embedding_size=HIDDEN),
    "rembert": _bert("RemBertForMaskedLM", input_embedding_size=20, output_embedding_size=24),
    "bert decoder": _bert("BertLMHeadModel", is_decoder=True),
    "camembert": _roberta("CamembertForMaskedLM"),
    "xlm-roberta": _roberta("XLMRobertaForMaskedLM", pad_token_id=3),
    "xlm-roberta-xl": _roberta("XLMRobertaXLForMaskedLM", more={"summed": "layer.0.attention.self_attn_layer_norm"}),
    "data2vec-text": _roberta("Data2VecTextForMaskedLM"),
    "markuplm": _roberta("MarkupLMModel", more={"float32": ("softmax",)}, pad_token_id=0, bos_token_id=2, max_depth=3),
    "roberta-prelayernorm": _roberta("RobertaPreLayerNormForMaskedLM"),
    "xmod": _roberta("XmodForMaskedLM", languages=["en_XX"], default_language="en_XX"),
    "longformer": _roberta(
        "LongformerForMaskedLM", more={"query": "attention.self", "float32": ("softmax",)}, **_LOCAL
    ),
    "esm": _roberta(
        "EsmForMaskedLM",
        more={"summed": "layer.0.attention.LayerNorm"},
        token_dropout=False,
        mask_token_id=5,
        emb_layer_norm_before=False,
    ),
    "esm norm": _roberta(
        "EsmForMaskedLM",
        more={"summed": "embeddings.layer_norm"},
        token_dropout=False,
        mask_token_id=5,
        emb_layer_norm_before=True,
    ),
    "luke": _roberta("LukeModel", entity_vocab_size=7, entity_emb_size=8, use_entity_aware_attention=False),
    "ibert": _roberta("IBertForMaskedLM"),
    "lxmert": Absolute(
        "LxmertModel",
        {**{key: _BERT[key] for key in _BERT if key != "num_hidden_layers"}, **_LXMERT},
        query=".layer.0.attention.self.query",
        output=".layer.0.attention.output.dense",
        layers=(0,),
    ),
    "blip_text_model": _bert("BlipTextModel", is_decoder=False, encoder_hidden_size=8),
    "distilbert": _distilbert(),
    "distilbert sinusoids": replace(_distilbert(sinusoidal_pos_embds=True), keeps="position_embeddings.weight"),
    **_stacks("bart", "Bart"),
    **_stacks("bart scaled", "Bart", scale_embedding=True),
    **_stacks("mvp", "Mvp"),
    **_stacks("plbart", "PLBart"),
    **_stacks("mbart", "MBart", scale_embedding=True),
    **_stacks("blenderbot", "Blenderbot", summed=_PRE, scale_embedding=True),
    **_stacks("blenderbot-small", "BlenderbotSmall"),
    **_stacks("marian", "MarianMTModel", summed="layers.0.self_attn.q_proj", scale_embedding=True),
    **_stacks("pegasus", "Pegasus", summed=_PRE),
    "blenderbot-small decoder": _bart(
        "BlenderbotSmall", "decoder", summed="layers.0.self_attn.q_proj", scale_embedding=True
    ),
    "bigbird_pegasus encoder": _bart(
        "BigBirdPegasus",
        "encoder",
        summed=_PRE,
        more={"query": "self_attn.self.query", "output": "self_attn.output"},
        attention_type="original_full",
    ),
    "bigbird_pegasus decoder": _bart("BigBirdPegasus", "decoder", summed=_PRE, use_bias=True),
    "pegasus_x decoder": _bart("PegasusX", "decoder", summed=_PRE, more={"exact": True}),
    **_stacks("m2m_100", "M2M100", summed=_PRE, more={"counts": "mask"}),
    "nllb-moe encoder": _bart("NllbMoe", "encoder", summed=_PRE, more={"counts": "mask"}, num_experts=2),
    **_stacks(
        "fsmt",
        "FSMT",
        summed="layers.0.self_attn.q_proj",
        more={"counts": "mask", "sequence_first": True, "keeps": "embed_positions.weight"},
        langs=["en", "de"],
        src_vocab_size=53,
        tgt_vocab_size=53,
    ),
    "led encoder": _bart(
        "LED",
        "encoder",
        more={
            "stack": "led.encoder",
            "query": "longformer_self_attn",
            "output": "self_attn.output",
            "float32": ("softmax",),
        },
        max_position_embeddings=None,
        max_encoder_position_embeddings=LENGTH,
        **_LOCAL,
    ),
    "led decoder": _bart(
        "LED",
        "decoder",
        more={"stack": "led.decoder"},
        max_position_embeddings=None,
        max_decoder_position_embeddings=30,
        **_LOCAL,
    ),
    "speech_to_text decoder": _bart(
        "Speech2Text", "decoder", summed=_PRE, more={"counts": "mask"}, **_SPEECH, conv_channels=8
    ),
    "gpt_bigcode": _gpt("GPTBigCodeForCausalLM"),
    "gpt_bigcode heads": _gpt("GPTBigCodeForCausalLM", multi_query=False),
    "imagegpt": _gpt("ImageGPTForCausalImageModeling"),
    "openai-gpt": _gpt("OpenAIGPTLMHeadModel", more={"table": "positions_embed", "summed": "h.0.attn.c_attn"}),
    "gpt_neo": Absolute(
        "GPTNeoForCausalLM",
        {**_NEO, "max_position_embeddings": LENGTH, "window_size": 5, "attention_types": [[["global", "local"], 1]]},
        query="attention.q_proj",
        output="attention.out_proj",
        table="wpe",
        summed="h.0.ln_1",
        counts="given",
        float32=("qk", "softmax"),
        gain=0.9,
    ),
    "biogpt": _decoder(
        "BioGptForCausalLM",
        {key: _BERT[key] for key in _BERT if key not in TOKENS},
    ),
    "xglm": _decoder(
        "XGLMForCausalLM",
        {
            "d_model": HIDDEN,
            "num_layers": 2,
            "attention_heads": 6,
            "ffn_dim": 20,
            "max_position_embeddings": LENGTH,
        },
        counts="given",
    ),
    "xlm": _xlm("XLMWithLMHeadModel"),
    "xlm causal": _xlm("XLMWithLMHeadModel", more={"right": True}, causal=True),
    "xlm sinusoids": _xlm(
        "XLMWithLMHeadModel", more={"keeps": "position_embeddings.weight"}, sinusoidal_embeddings=True
    ),
    "flaubert": _xlm("FlaubertWithLMHeadModel"),
    "trocr": _decoder(
        "TrOCRForCausalLM",
        _TROCR,
        summed="layernorm_embedding",
        stack="model.decoder",
    ),
    "trocr sinusoids": _decoder(
        "TrOCRForCausalLM",
        _TROCR | {"use_learned_position_embeddings": False, "layernorm_embedding": False, "scale_embedding": True},
        summed="layers.0.self_attn.q_proj",
        stack="model.decoder",
        counts="mask",
    ),
    "clvp_decoder": Absolute(
        "ClvpForCausalLM",
        _BERT,
        query="attn.q_proj",
        output="attn.out_proj",
        table="position_embeds_layer",
        summed="layers.0.input_layernorm",
        stack="model.decoder",
        counts="given",
    ),
    "pp_formulanet_text": _decoder(
        "PPFormulaNetTextModel",
        {**_TROCR, "encoder_layers": 1, "encoder_attention_heads": 6},
        summed="layernorm_embedding",
    ),
    "musicgen_decoder": _decoder("MusicgenForCausalLM", _MUSIC, stack="model.decoder"),
    "musicgen_melody_decoder": _decoder("MusicgenMelodyForCausalLM", _MUSIC, stack="model.decoder"),
    "clip_text_model": Absolute("CLIPTextModel", _BERT, **_TEXT_TOWER, summed="layers.0.layer_norm1", counts="given"),
    "siglip_text_model": Absolute(
        "SiglipTextModel", _BERT, **_TEXT_TOWER, summed="layers.0.layer_norm1", counts="given"
    ),
}
