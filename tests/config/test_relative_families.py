"""Families whose scores read vectors of the distance: what their keys mean, worked out from transformers' code."""

import pytest

from portpe.config import load_spec, read
from portpe.encodings import DebertaEncoding, LearnedEncoding, ShawEncoding, TransformerXlEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm

SIZES = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
DEBERTA = {**SIZES, "relative_attention": True, "pos_att_type": "p2c|c2p", "max_position_embeddings": 40}
CONFORMER = TransformerXlEncoding(order="interleaved", contract="conformer")


@pytest.mark.parametrize(
    ("keys", "bias"),
    [
        ({}, (ShawEncoding(left=64, right=8),)),
        ({"left_max_position_embeddings": 0, "right_max_position_embeddings": 5}, (ShawEncoding(left=0, right=5),)),
        ({"position_embeddings_type": "relative"}, (CONFORMER,)),
        ({"position_embeddings_type": None}, ()),
    ],
)
def test_wav2vec2_bert(keys, bias):
    spec = load_spec({"model_type": "wav2vec2-bert", **SIZES, **keys})
    assert (spec.bias, spec.causal, spec.scale, spec.input_norm) == (bias, False, 8**-0.5, None)
    normed = read({"model_type": "wav2vec2-bert", "layer_norm_eps": 3e-6, **SIZES}, input_norm=True).spec
    assert normed.input_norm == Norm(kind="layer", eps=3e-6, bias=True)


def test_speecht5_counts_rows_from_ahead():
    spec = load_spec({"model_type": "speecht5", "encoder_max_relative_position": 20, "hidden_size": 24}, part="encoder")
    assert spec.bias == (ShawEncoding(left=19, right=20, descending=True),)


def test_conformers_of_other_makers():
    parakeet = load_spec({"model_type": "parakeet_encoder", **SIZES, "attention_bias": False})
    assert parakeet.bias == (TransformerXlEncoding(order="interleaved"),)
    assert not parakeet.biases.q
    whole = load_spec({"model_type": "parakeet_ctc", "encoder_config": SIZES})
    assert whole.bias == parakeet.bias
    fastspeech = {"model_type": "fastspeech2_conformer", "hidden_size": 48, "decoder_num_attention_heads": 6}
    assert load_spec(fastspeech, part="decoder").num_heads == 6
    assert load_spec(fastspeech, part="encoder").num_heads == 2


def test_a_streaming_encoder_says_what_a_spec_does_not_hold():
    reading = read({"model_type": "nemotron_asr_streaming_encoder", **SIZES})
    assert reading.spec.bias == (TransformerXlEncoding(order="interleaved"),)
    assert any("attention in chunks" in line for line in reading.warnings)


@pytest.mark.parametrize(
    ("keys", "clamp", "causal"), [({}, None, False), ({"clamp_len": 9}, 9, False), ({"attn_type": "uni"}, None, True)]
)
@pytest.mark.filterwarnings("ignore:token_type_ids")
def test_xlnet(keys, clamp, causal):
    spec = load_spec({"model_type": "xlnet", "d_model": 48, "n_head": 6, "n_layer": 2, **keys})
    assert (spec.bias, spec.causal) == ((TransformerXlEncoding(clamp=clamp),), causal)
    assert spec.head_dim == 8


@pytest.mark.parametrize(
    ("model_type", "keys", "bias", "terms"),
    [
        ("deberta", {}, DebertaEncoding(span=40), 2),
        (
            "deberta",
            {"max_relative_positions": 9, "pos_att_type": ["c2p"]},
            DebertaEncoding(span=9, position_to_content=False),
            1,
        ),
        ("deberta-v2", {"position_buckets": 8}, DebertaEncoding(span=8, max_distance=40, key_bias=True), 2),
        (
            "deberta-v2",
            {"position_buckets": 8, "max_relative_positions": 30, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
            DebertaEncoding(span=8, max_distance=30, share_projections=True, norm_eps=1e-7),
            2,
        ),
        ("deberta-v2", {"max_relative_positions": 9}, DebertaEncoding(span=9, key_bias=True), 2),
    ],
)
def test_deberta(model_type, keys, bias, terms):
    spec = load_spec({"model_type": model_type, **DEBERTA, **keys}, layer=1)
    assert (spec.bias, spec.embedding) == ((bias,), None)
    assert spec.scale == (8 * (1 + terms)) ** -0.5
    first = load_spec({"model_type": model_type, **DEBERTA, **keys})
    assert first.embedding == LearnedEncoding(rows=40, width=48)
    assert first.input_norm == Norm(kind="layer", eps=1e-7, bias=True)
    unbiased = load_spec({"model_type": model_type, **DEBERTA, **keys, "position_biased_input": False})
    assert (unbiased.embedding, unbiased.input_norm) == (None, None)


def test_deberta_counts_terms_that_it_does_not_use():
    """transformers divides by sqrt(3 head_dim) as soon as pos_att_type names both, whatever else is set."""
    spec = load_spec({"model_type": "deberta-v2", **DEBERTA, "relative_attention": False})
    assert (spec.bias, spec.scale) == ((), 24**-0.5)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"model_type": "wav2vec2-bert", "position_embeddings_type": "rotary"}, "'rotary' turns hidden states before"),
        (
            {"model_type": "wav2vec2-conformer", "position_embeddings_type": "relative_key"},
            "position_embeddings_type must be 'relative', got 'relative_key'",
        ),
        ({"model_type": "xlnet", "attn_type": "both"}, "attn_type must be 'bi' or 'uni', got 'both'"),
        ({"model_type": "xlnet", "d_head": 9}, r"d_head must be d_model / n_head = 64, got 9"),
        ({"model_type": "xlnet", "bi_data": True}, "bi_data must be False for model_type 'xlnet', got True"),
        ({"model_type": "deberta", **DEBERTA, "pos_att_type": "c2p|p2p"}, "pos_att_type must hold c2p and p2c at most"),
        ({"model_type": "deberta", **DEBERTA, "talking_head": True}, "talking_head must be False"),
        (
            {"model_type": "deberta-v2", **DEBERTA, "embedding_size": 20},
            "embedding_size must equal hidden_size = 48 where positions are added to the embeddings, got 20",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_refused(config, rule):
    with pytest.raises(SpecError, match=rule):
        load_spec(config)


def test_relative_key_of_older_berts_is_refused_in_a_line():
    """transformers has dropped it since version 5: a spec by hand says it."""
    for kind in ("relative_key", "relative_key_query"):
        with pytest.raises(SpecError, match=f"position_embedding_type must be 'absolute', got '{kind}'"):
            load_spec({"model_type": "bert", "position_embedding_type": kind})
