"""Families whose positions are added to the embeddings: one row a model_type and part."""

from __future__ import annotations

import torch

from tests.walk.row import Case, Row
from tests.walk.site_checks import learned, sinusoids

Rows = tuple[torch.Tensor, torch.Tensor]


def bert_like(name: str, shift: int | None = None):
    """The embeddings' class with token and type rows of 0 and without its norm: what is left are positions.

    ``shift``: what is added to positions before they are given, None: padding_idx + 1.
    """

    def lookup(case: Case, positions: torch.Tensor) -> Rows:
        case.config.vocab_size = case.config.pad_token_id + 2
        module = getattr(case.modeling, name)(case.config).eval()
        module.word_embeddings.weight.zero_()
        module.token_type_embeddings.weight.zero_()
        module.LayerNorm = torch.nn.Identity()
        offset = case.config.pad_token_id + 1 if shift is None else shift
        rows = module(torch.zeros(1, len(positions), dtype=torch.long), position_ids=positions[None] + offset)
        return module.position_embeddings.weight, rows[0]

    return lookup


def roberta_from_tokens(case: Case, positions: torch.Tensor) -> Rows:
    """RoBERTa's own positions of a row of tokens."""
    module, table = case.modeling.RobertaEmbeddings, bert_like("RobertaEmbeddings")(case, positions)[0]
    ids = torch.full((1, int(positions.max()) + 1), case.config.pad_token_id + 1)
    return table, table[module.create_position_ids_from_input_ids(ids, case.config.pad_token_id)[0, positions]]


def opt_lookup(case: Case, positions: torch.Tensor) -> Rows:
    """OPT's own positions: it counts the mask."""
    config = case.config
    module = case.modeling.OPTLearnedPositionalEmbedding(config.max_position_embeddings, config.hidden_size)
    return module.weight, module(torch.ones(1, int(positions.max()) + 1, dtype=torch.long))[0, positions]


def gpt2_lookup(case: Case, positions: torch.Tensor) -> Rows:
    case.config.vocab_size, case.config.n_layer = 3, 1
    module = case.modeling.GPT2Model(case.config)
    return module.wpe.weight, module.wpe(positions)


def whisper_decoder(case: Case, positions: torch.Tensor) -> Rows:
    config = case.config
    module = case.modeling.WhisperPositionalEmbedding(config.max_target_positions, config.d_model)
    given = torch.zeros(1, len(positions))
    return module.weight, module(given, position_ids=positions)


def whisper_encoder(case: Case) -> torch.Tensor:
    return case.modeling.sinusoids(case.config.max_source_positions, case.config.d_model)


EMBEDDINGS = (
    Row("gpt2", learned(gpt2_lookup), {"short": {"n_positions": 40}}),
    Row("opt", learned(opt_lookup), {"short": {"max_position_embeddings": 40}}),
    Row("bert", learned(bert_like("BertEmbeddings", 0)), {"short": {"max_position_embeddings": 40}}),
    Row("roberta", learned(roberta_from_tokens), {"padding": {"pad_token_id": 3}}),
    Row("albert", learned(bert_like("AlbertEmbeddings", 0)), {"short": {"max_position_embeddings": 40}}),
    Row(
        "whisper", sinusoids(whisper_encoder), {"wide": {"d_model": 510, "encoder_attention_heads": 5}}, part="encoder"
    ),
    Row("whisper", learned(whisper_decoder), {"short": {"max_target_positions": 40}}, part="decoder"),
)
