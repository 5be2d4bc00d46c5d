"""Families with positions in their embeddings, besides the first of ``embedding_rows``: one row a model_type and part.

No positions are given: each module numbers a row of tokens by itself, so its offset is compared too.
"""

from __future__ import annotations

import torch

from tests.walk.row import Case, Row
from tests.walk.site_checks import POSITIONS, learned, sinusoids

COUNT = int(POSITIONS.max()) + 1
SHORT = {"short": {"max_position_embeddings": 40}}
PADDING = {"padding": {"pad_token_id": 3}}


# What these classes cannot do without, and the shape of what a token has.
_ZEROS = {
    "LayoutLMEmbeddings": ("bbox", (4,)),
    "TapasEmbeddings": ("token_type_ids", (7,)),
    "LukeEmbeddings": ("token_type_ids", ()),
    "LxmertEmbeddings": ("token_type_ids", ()),
}


def tokens(name: str, table: str = "position_embeddings"):
    """An embeddings class with every parameter 0 but the table's, and without its norm: what is left are positions."""

    def lookup(case: Case, positions: torch.Tensor):
        config = case.config
        config.vocab_size = (getattr(config, "pad_token_id", 0) or 0) + 3
        module = getattr(case.modeling, name)(config).eval()
        for at, parameter in module.named_parameters():
            if at != f"{table}.weight":
                parameter.zero_()
        for at, child in list(module.named_children()):
            if isinstance(child, torch.nn.LayerNorm) or at == "LayerNorm":
                setattr(module, at, torch.nn.Identity())
        key, shape = _ZEROS.get(name, ("", ()))
        given = {key: torch.zeros(1, COUNT, *shape, dtype=torch.long)} if key else {}
        found = module(torch.full((1, COUNT), config.vocab_size - 1), **given)
        rows = found if isinstance(found, torch.Tensor) else found[0]
        return getattr(module, table).weight, rows[0, positions]

    return lookup


def counted(name: str, rows: str = "max_position_embeddings", width: str = "d_model", shape: bool = False):
    """A table class of fairseq's kind, called with tokens or with their shape."""

    def lookup(case: Case, positions: torch.Tensor):
        module = getattr(case.modeling, name)(getattr(case.config, rows), getattr(case.config, width))
        ids = torch.zeros(1, COUNT, dtype=torch.long)
        found = module(ids.shape if shape else ids)
        return module.weight, found.reshape(COUNT, -1)[positions]

    return lookup


def masked(name: str):
    """A table class that counts a mask."""

    def lookup(case: Case, positions: torch.Tensor):
        module = getattr(case.modeling, name)(case.config.max_position_embeddings, case.config.hidden_size)
        return module.weight, module(torch.ones(1, COUNT, dtype=torch.long))[0, positions]

    return lookup


def model(name: str, table: str, **small):
    """A whole model of one layer, whose table is looked up as its forward does."""

    def lookup(case: Case, positions: torch.Tensor):
        case.config.vocab_size = (case.config.pad_token_id or 0) + 3
        for key, value in small.items():
            setattr(case.config, key, value)
        made = getattr(case.modeling, name)(case.config).eval()
        module, seen = made.get_submodule(table), []
        module.register_forward_hook(lambda _, __, output: seen.append(output))
        heard = getattr(case.config, "encoder_config", None)
        given = {} if heard is None else {"encoder_hidden_states": torch.zeros(1, 2, heard.hidden_size)}
        made(torch.full((1, COUNT), case.config.vocab_size - 1), **given)
        return module.weight, seen[0].reshape(COUNT, -1)[positions]

    return lookup


def prophetnet(case: Case, positions: torch.Tensor):
    module = case.modeling.ProphetNetPositionalEmbeddings(case.config)
    return module.weight, module((1, COUNT), "cpu")[0][0, positions]


def sound(name: str, **small):
    """An encoder of sound: its table is added whole."""

    def lookup(case: Case, positions: torch.Tensor):
        for key, value in small.items():
            setattr(case.config, key, value)
        module = getattr(case.modeling, name)(case.config).embed_positions
        torch.nn.init.normal_(module.weight)
        return module.weight, module.weight[positions]

    return lookup


def created(name: str):
    """Marian's kind of table, which its class makes."""
    return lambda case: getattr(case.modeling, name)(40, case.config.d_model).create_weight()


def fairseq(name: str, width: str = "d_model"):
    """A growing table, from the row on that the first token reads."""

    def table(case: Case) -> torch.Tensor:
        cls, padding = getattr(case.modeling, name), case.config.pad_token_id
        ids = torch.full((1, 40), padding + 1)
        return cls(60, getattr(case.config, width), padding)(ids)[0]

    return table


def fsmt(case: Case) -> torch.Tensor:
    cls, padding = case.modeling.SinusoidalPositionalEmbedding, case.config.pad_token_id
    places = cls.make_positions(torch.full((1, 40), padding + 1), padding)[0]
    return cls.get_embedding(60, case.config.d_model, padding)[places]


def series(name: str, part: str):
    """The whole table; the decoder's part begins behind the context."""

    def table(case: Case) -> torch.Tensor:
        config = case.config
        rows = config.context_length + config.prediction_length
        made = getattr(case.modeling, name)(rows, config.d_model).create_weight()
        return made[config.context_length :] if part == "decoder" else made

    return table


def xglm(case: Case) -> torch.Tensor:
    module = case.modeling.XGLMSinusoidalPositionalEmbedding(50, case.config.d_model, case.config.pad_token_id)
    return module(torch.arange(40)[None])[0]


def musicgen(name: str):
    return lambda case: getattr(case.modeling, name).get_embedding(40, case.config.hidden_size)


def canary(case: Case) -> torch.Tensor:
    return case.modeling.CanaryPositionalEmbedding(40, case.config.hidden_size)(torch.arange(40))


def pegasus_x(case: Case) -> torch.Tensor:
    module = case.modeling.PegasusXSinusoidalPositionalEmbedding(case.config.d_model)
    return module(torch.zeros(1, 40, case.config.d_model))[0]


def bert(model_type: str, name: str, configs=SHORT, table: str = "position_embeddings", **more) -> Row:
    return Row(model_type, learned(tokens(name, table)), configs, **more)


def stacks(model_type: str, check, configs=SHORT, **more) -> tuple[Row, Row]:
    """Both stacks of an encoder-decoder."""
    return tuple(Row(model_type, check, configs, part=part, **more) for part in ("encoder", "decoder"))


def clip(model_type: str, name: str, length: int = 77) -> Row:
    return bert(model_type, name, {"short": {"max_position_embeddings": length - 3}}, "position_embedding")


SOUND = {"short": {"max_source_positions": 60}}
WIDE = {"wide": {"d_model": 512, "encoder_attention_heads": 8, "decoder_attention_heads": 8}}
MUSIC = {"wide": {"hidden_size": 512}}
_DENSE = {"attention_type": "original_full"}
_DENSE_WHY = "its attention is block-sparse by default, which no spec holds"
_SERIES = {"prediction_length": 9, "context_length": 11}
_LENGTHS = "its config has no lengths by default"
_LONGER = {"longer": {"context_length": 17}}


def _series(model_type: str, name: str, **more) -> tuple[Row, ...]:
    return tuple(
        Row(model_type, sinusoids(series(name, part)), _LONGER, {**_SERIES, **more}, because=_LENGTHS, part=part)
        for part in ("encoder", "decoder")
    )


ABSOLUTE = (
    bert("bert-generation", "BertGenerationEmbeddings"),
    bert("big_bird", "BigBirdEmbeddings", default=_DENSE, because=_DENSE_WHY),
    bert("ernie", "ErnieEmbeddings"),
    bert("roc_bert", "RoCBertEmbeddings"),
    bert("splinter", "SplinterEmbeddings"),
    bert("visual_bert", "VisualBertEmbeddings"),
    bert("layoutlm", "LayoutLMEmbeddings"),
    bert("tapas", "TapasEmbeddings"),
    bert("megatron-bert", "MegatronBertEmbeddings"),
    bert("electra", "ElectraEmbeddings", {"wide": {"embedding_size": 256}}),
    bert("rembert", "RemBertEmbeddings", {"narrow": {"input_embedding_size": 64}}),
    bert("distilbert", "Embeddings"),
    bert("camembert", "CamembertEmbeddings", PADDING),
    bert("xlm-roberta", "XLMRobertaEmbeddings", PADDING),
    bert("xlm-roberta-xl", "XLMRobertaXLEmbeddings", PADDING),
    bert("data2vec-text", "Data2VecTextEmbeddings", PADDING),
    bert("markuplm", "MarkupLMEmbeddings", PADDING),
    bert("roberta-prelayernorm", "RobertaPreLayerNormEmbeddings", PADDING),
    bert("xmod", "XmodEmbeddings", PADDING),
    bert("longformer", "LongformerEmbeddings", PADDING),
    bert("chinese_clip_text_model", "ChineseCLIPTextEmbeddings"),
    bert("align_text_model", "AlignTextEmbeddings"),
    bert("flava_text_model", "FlavaTextEmbeddings"),
    bert("altclip_text_model", "AltRobertaEmbeddings", PADDING),
    bert("clap_text_model", "ClapTextEmbeddings", PADDING),
    bert("bridgetower_text_model", "BridgeTowerTextEmbeddings", PADDING),
    clip("clip_text_model", "CLIPTextEmbeddings"),
    clip("clipseg_text_model", "CLIPSegTextEmbeddings"),
    clip("metaclip_2_text_model", "MetaClip2TextEmbeddings"),
    clip("xclip_text_model", "XCLIPTextEmbeddings"),
    clip("groupvit_text_model", "GroupViTTextEmbeddings"),
    clip("owlvit_text_model", "OwlViTTextEmbeddings", 16),
    clip("owlv2_text_model", "Owlv2TextEmbeddings", 16),
    clip("aimv2_text_model", "Aimv2TextEmbeddings"),
    clip("siglip_text_model", "SiglipTextEmbeddings", 64),
    clip("siglip2_text_model", "Siglip2TextEmbeddings", 64),
    Row(
        "tipsv2_text_model",
        sinusoids(lambda case: case.modeling.Tipsv2SinusoidalPositionalEmbedding(case.config).weights),
        {"short": {"max_position_embeddings": 40}},
    ),
    *stacks("bart", learned(counted("BartLearnedPositionalEmbedding"))),
    *stacks("mvp", learned(counted("MvpLearnedPositionalEmbedding"))),
    *stacks("plbart", learned(counted("PLBartLearnedPositionalEmbedding"))),
    Row("pp_formulanet_text", learned(counted("PPFormulaNetLearnedPositionalEmbedding")), SHORT),
    *stacks("mbart", learned(counted("MBartLearnedPositionalEmbedding"))),
    *stacks("blenderbot", learned(counted("BlenderbotLearnedPositionalEmbedding", shape=True))),
    *stacks("blenderbot-small", learned(counted("BlenderbotSmallLearnedPositionalEmbedding", shape=True))),
    *stacks(
        "bigbird_pegasus",
        learned(counted("BigBirdPegasusLearnedPositionalEmbedding", shape=True)),
        default=_DENSE,
        because=_DENSE_WHY,
    ),
    Row(
        "led",
        learned(counted("LEDLearnedPositionalEmbedding", "max_encoder_position_embeddings", shape=True)),
        {"short": {"max_encoder_position_embeddings": 40}},
        part="encoder",
    ),
    Row(
        "led",
        learned(counted("LEDLearnedPositionalEmbedding", "max_decoder_position_embeddings", shape=True)),
        {"short": {"max_decoder_position_embeddings": 40}},
        part="decoder",
    ),
    Row("prophetnet", learned(prophetnet), PADDING, part="encoder"),
    *stacks("marian", sinusoids(created("MarianSinusoidalPositionalEmbedding")), WIDE),
    *stacks("pegasus", sinusoids(created("PegasusSinusoidalPositionalEmbedding")), WIDE),
    Row("pegasus_x", sinusoids(pegasus_x), WIDE, part="decoder"),
    *stacks("fsmt", sinusoids(fsmt), PADDING),
    *stacks("m2m_100", sinusoids(fairseq("M2M100SinusoidalPositionalEmbedding")), PADDING),
    *stacks("nllb-moe", sinusoids(fairseq("NllbMoeSinusoidalPositionalEmbedding")), PADDING),
    *stacks("speech_to_text", sinusoids(fairseq("Speech2TextSinusoidalPositionalEmbedding")), PADDING),
    *_series("informer", "InformerSinusoidalPositionalEmbedding", attention_type="full"),
    *_series("time_series_transformer", "TimeSeriesSinusoidalPositionalEmbedding"),
    Row("gpt_bigcode", learned(model("GPTBigCodeModel", "wpe", n_layer=1)), {"short": {"n_positions": 40}}),
    Row("imagegpt", learned(model("ImageGPTModel", "wpe", n_layer=1)), {"short": {"n_positions": 40}}),
    Row("openai-gpt", learned(model("OpenAIGPTModel", "positions_embed", n_layer=1)), {"short": {"n_positions": 40}}),
    Row("gpt_neo", learned(model("GPTNeoModel", "wpe", num_layers=1, attention_layers=["global"])), SHORT),
    Row("xlm", learned(model("XLMModel", "position_embeddings", n_layers=1)), SHORT),
    Row("flaubert", learned(model("FlaubertModel", "position_embeddings", n_layers=1)), SHORT),
    Row("biogpt", learned(masked("BioGptLearnedPositionalEmbedding")), SHORT),
    Row("xglm", sinusoids(xglm), {"wide": {"d_model": 512}}),
    Row("trocr", learned(counted("TrOCRLearnedPositionalEmbedding")), SHORT),
    Row(
        "ctrl",
        sinusoids(lambda case: case.modeling.positional_encoding(40, case.config.n_embd, torch.float)),
        {"wide": {"n_embd": 512}},
    ),
    Row("musicgen_decoder", sinusoids(musicgen("MusicgenSinusoidalPositionalEmbedding")), MUSIC),
    Row("musicgen_melody_decoder", sinusoids(musicgen("MusicgenMelodySinusoidalPositionalEmbedding")), MUSIC),
    Row("canary_decoder", sinusoids(canary), MUSIC),
    Row(
        "cohere_asr",
        learned(model("CohereAsrDecoder", "pos_emb", num_hidden_layers=1, intermediate_size=8)),
        SHORT,
    ),
    Row(
        "qwen2_audio_encoder",
        learned(sound("Qwen2AudioEncoder", encoder_layers=1)),
        SOUND,
    ),
    Row(
        "voxtral_encoder",
        learned(sound("VoxtralEncoder", num_hidden_layers=1)),
        SOUND,
    ),
    Row(
        "audioflamingo3_encoder",
        learned(sound("AudioFlamingo3Encoder", num_hidden_layers=1)),
        SOUND,
    ),
)
