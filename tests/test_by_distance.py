"""Rows of tables by distance: where they are clipped, in which order they stand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portpe
from portpe.biases.by_distance import distance_rows
from portpe.encodings import ShawEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec, weight_shapes

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 5, "scale": 0.3}


def test_rows_of_shaw_by_hand():
    rows = distance_rows(ShawEncoding(left=3, right=1))
    # the query at 10; keys 9 behind, 3 behind, 2 behind, at it, 1 ahead, 40 ahead
    assert rows.of([10], [1, 7, 8, 10, 11, 50]).tolist() == [[0, 0, 1, 3, 4, 4]]
    descending = distance_rows(ShawEncoding(left=3, right=1, descending=True))
    assert descending.of([10], [1, 7, 8, 10, 11, 50]).tolist() == [[4, 4, 3, 1, 0, 0]]


def test_each_batch_row_has_its_own_distances():
    rows = distance_rows(ShawEncoding(left=2, right=2)).of([[5], [100]], [[4, 7], [100, 98]])
    assert rows.tolist() == [[[1, 4]], [[2, 0]]]


def test_rows_are_those_of_wav2vec2_bert_and_of_speecht5():
    """Their own tables, with the row's number in every row."""
    import torch
    from transformers import SpeechT5Config, Wav2Vec2BertConfig
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5Encoder
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as bert

    config = Wav2Vec2BertConfig(hidden_size=12, num_attention_heads=3, left_max_position_embeddings=7)
    layer = bert.Wav2Vec2BertSelfAttention(config)
    layer.distance_embedding.weight.data = torch.arange(16.0)[:, None].expand(16, 4).clone()
    query = torch.zeros(1, 3, 30, 4)
    query[..., 0] = 1 / layer.scaling
    _, theirs = bert._apply_relative_key_position_encoding(layer, query, query)
    places = np.arange(30)
    ours = distance_rows(ShawEncoding(left=7, right=8)).of(places, places)
    np.testing.assert_array_equal(ours, theirs[0, 0].detach().numpy().round())

    config = SpeechT5Config(
        hidden_size=12, encoder_attention_heads=3, encoder_layers=1, encoder_max_relative_position=9
    )
    table = SpeechT5Encoder(config).embed_positions
    table.pe_k.weight.data = torch.arange(18.0)[:, None].expand(18, 4).clone()
    theirs = table(torch.zeros(1, 30, 12))[..., 0].detach().numpy()
    ours = distance_rows(ShawEncoding(left=8, right=9, descending=True)).of(places, places)
    np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 9),
    st.integers(0, 9),
    st.booleans(),
    st.lists(st.integers(0, 10**7), min_size=1, max_size=4),
    st.integers(0, 10**9),
)
def test_a_shift_of_all_positions_changes_nothing(left, right, descending, places, shift):
    rows = distance_rows(ShawEncoding(left=left, right=right, descending=descending))
    here = rows.of(places, places)
    assert np.array_equal(here, rows.of(np.array(places) + shift, np.array(places) + shift))
    assert ((here >= 0) & (here < left + right + 1)).all()


def test_tabulate_lists_buckets_and_no_bias():
    """What is added follows from the queries, so there is no table of it."""
    spec = AttentionSpec(**SIZES, bias=(ShawEncoding(left=3, right=1),))
    found = portpe.tabulate(spec, [0, 1, 9])
    assert set(found) == {"buckets"}
    assert found["buckets"].tolist() == [[3, 4, 4], [2, 3, 4], [0, 0, 3]]


def test_weights_by_name():
    spec = AttentionSpec(**SIZES, bias=(ShawEncoding(left=3, right=1, values=True),))
    shapes = weight_shapes(spec)
    assert shapes["relative_key.weight"] == (5, 8)
    assert shapes["relative_value.weight"] == (5, 5)
    assert "relative_value.weight" not in weight_shapes(AttentionSpec(**SIZES, bias=(ShawEncoding(left=3, right=1),)))


@pytest.mark.parametrize("field", ["left", "right"])
def test_a_limit_is_no_less_than_zero(field):
    with pytest.raises(SpecError, match=rf"{field} must be greater than or equal to 0, got -1"):
        ShawEncoding(**{"left": 2, "right": 2, field: -1})


def test_float_positions_are_refused():
    with pytest.raises(SpecError, match="positions must be integers, got float64"):
        distance_rows(ShawEncoding(left=2, right=2)).of([0.5], [0, 1])
