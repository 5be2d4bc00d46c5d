"""Encoders with BERT's positions and another attention or other embeddings: one row a model_type."""

from __future__ import annotations

import importlib

import numpy as np
import torch

from portpe import hf_tables
from tests.walk.absolute_rows import COUNT, PADDING, SHORT, bert
from tests.walk.rotary_check import assert_same_rotation
from tests.walk.row import Case, Row
from tests.walk.site_checks import learned

PLACES = np.array([[0, 7, 39, 3, 22], [11, 3, 38, 2, 1]])


def roformer(case: Case) -> None:
    """A table of sinusoids whose halves are the sines and cosines of the pairs."""
    ((_, reading),) = case.layers()
    encoding = reading.spec.rotary
    assert reading.spec.embedding is None
    with torch.no_grad():
        table = case.modeling.RoFormerSinusoidalPositionalEmbedding(40, encoding.width).create_weight()
    rows = table[torch.from_numpy(PLACES)]
    theirs_sin, theirs_cos = rows.chunk(2, dim=-1)
    for mine, theirs in zip(hf_tables.cos_sin(encoding, PLACES), (theirs_cos, theirs_sin), strict=True):
        assert np.array_equal(mine, theirs.numpy())

    def apply(q, k, cos, sin):
        sinusoids = torch.cat([sin, cos], dim=-1)[:, None]
        return case.modeling.RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoids, q, k)

    assert_same_rotation(encoding, apply, theirs_cos, theirs_sin, PLACES)


def ibert(case: Case, positions: torch.Tensor):
    """A table that gives its rows and a scaling factor."""
    padding = case.config.pad_token_id
    case.config.vocab_size = padding + 3
    module = case.modeling.IBertEmbeddings(case.config).eval()
    places = case.modeling.create_position_ids_from_input_ids(torch.full((1, COUNT), padding + 1), padding)
    module.position_embeddings.weight.normal_()
    rows, _ = module.position_embeddings(places)
    return module.position_embeddings.weight, rows[0, positions]


def blip(case: Case, positions: torch.Tensor):
    case.config.vocab_size = 3
    module = importlib.import_module("transformers.models.blip.modeling_blip_text").BlipTextEmbeddings(case.config)
    module.word_embeddings.weight.zero_()
    module.LayerNorm = torch.nn.Identity()
    return module.position_embeddings.weight, module.eval()(torch.ones(1, COUNT, dtype=torch.long))[0, positions]


def canine(case: Case, positions: torch.Tensor):
    module = case.modeling.CanineEmbeddings(case.config).eval()
    for name, parameter in module.named_parameters():
        if name != "char_position_embeddings.weight":
            parameter.zero_()
    module.LayerNorm = torch.nn.Identity()
    return module.char_position_embeddings.weight, module(torch.ones(1, COUNT, dtype=torch.long))[0, positions]


def behind_queries(name: str):
    """Text behind two queries, which come out as they went in."""

    def lookup(case: Case, positions: torch.Tensor):
        case.config.vocab_size = 3
        module = getattr(case.modeling, name)(case.config).eval()
        module.word_embeddings.weight.zero_()
        module.layernorm = torch.nn.Identity()
        module.layernorm.weight = torch.zeros(1)  # of whose type the queries become
        queries = torch.randn(1, 2, case.config.hidden_size)
        rows = module(torch.ones(1, COUNT, dtype=torch.long), query_embeds=queries)
        assert torch.equal(rows[:, :2], queries)
        return module.position_embeddings.weight, rows[0, 2 + positions]

    return lookup


def blip2(case: Case) -> None:
    """Text has a table where there is text; queries alone go to the layers as they are, but for a norm."""
    _, reading = next(case.layers())
    if not case.config.use_qformer_text_input:
        assert reading.spec.embedding is None
        module = case.modeling.Blip2QFormerModel(_small_queries(case)).eval()
        queries, image, order = torch.randn(1, 5, 24), torch.randn(1, 3, 8), torch.tensor([3, 0, 4, 2, 1])
        with torch.no_grad():
            first, second = (
                module(x, encoder_hidden_states=image).last_hidden_state for x in (queries, queries[:, order])
            )
        assert torch.allclose(first[:, order], second, rtol=0, atol=1e-5)
        assert first.std(1).min() > 0.1
        return

    def lookup(case: Case, positions: torch.Tensor):
        module = case.modeling.Blip2TextEmbeddings(case.config).eval()
        module.word_embeddings.weight.zero_()
        return module.position_embeddings.weight, module(torch.ones(1, COUNT, dtype=torch.long))[0, positions]

    learned(lookup)(case)


def _small_queries(case: Case):
    small = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 8}
    return type(case.config)(**small, cross_attention_frequency=2, encoder_hidden_size=8)


BERT_VARIANTS = (
    Row("roformer", roformer, {"heads": {"num_attention_heads": 8}}),
    bert("luke", "LukeEmbeddings", PADDING),
    Row("ibert", learned(ibert), PADDING),
    bert("lilt", "LiltTextEmbeddings", PADDING),
    bert("bros", "BrosTextEmbeddings"),
    bert("lxmert", "LxmertEmbeddings"),
    bert("mobilebert", "MobileBertEmbeddings"),
    bert("squeezebert", "SqueezeBertEmbeddings"),
    bert("convbert", "ConvBertEmbeddings", {"narrow": {"embedding_size": 64}}),
    bert("nystromformer", "NystromformerEmbeddings"),
    bert("mra", "MraEmbeddings"),
    bert("yoso", "YosoEmbeddings"),
    Row("canine", learned(canine), {"fewer": {"num_hash_buckets": 60, "max_position_embeddings": 40}}),
    Row("blip_text_model", learned(blip), SHORT),
    Row("blip_2_qformer", blip2, {"text": {"use_qformer_text_input": True}}),
    Row("instructblip_qformer", learned(behind_queries("InstructBlipQFormerEmbeddings")), SHORT),
    Row("instructblipvideo_qformer", learned(behind_queries("InstructBlipVideoQFormerEmbeddings")), SHORT),
)
