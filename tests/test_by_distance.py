"""Rows of tables by distance: where they are clipped, in which order they stand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portpe
from portpe.biases.by_distance import distance_rows
from portpe.encodings import DebertaEncoding, ShawEncoding
from portpe.errors import SpecError
from portpe.layer_parts import MlaProjection
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 5, "scale": 0.3}


def test_rows_of_shaw_by_hand():
    rows = distance_rows(ShawEncoding(left=3, right=1))
    # the query at 10; keys 9 behind, 3 behind, 2 behind, at it, 1 ahead, 40 ahead
    assert rows.of([10], [1, 7, 8, 10, 11, 50]).tolist() == [[0, 0, 1, 3, 4, 4]]
    descending = distance_rows(ShawEncoding(left=3, right=1, descending=True))
    assert descending.of([10], [1, 7, 8, 10, 11, 50]).tolist() == [[4, 4, 3, 1, 0, 0]]


def test_keys_beyond_the_rows_of_vits_get_nothing_by_hand():
    rows = distance_rows(ShawEncoding(left=3, right=1, beyond="nothing"))
    assert rows.of([10], [1, 6, 7, 8, 10, 11, 12, 50]).tolist() == [[5, 5, 0, 1, 3, 4, 5, 5]]
    descending = distance_rows(ShawEncoding(left=3, right=1, descending=True, beyond="nothing"))
    assert descending.of([10], [1, 7, 10, 11, 12]).tolist() == [[5, 4, 1, 0, 5]]


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


def test_log_buckets_by_hand():
    """span 8, max_distance 9: mid 4, three more buckets up to 8, the ends at 4 * 2 ** (n / 3): 5.04, 6.35, 8."""
    rows = distance_rows(DebertaEncoding(span=8, max_distance=9))
    behind = rows.of([100], [100 - d for d in (0, 1, 4, 5, 6, 7, 8, 9, 50)])[0]
    assert behind.tolist() == [8, 9, 12, 13, 14, 15, 15, 15, 15]
    ahead = rows.of([100], [100 + d for d in (1, 4, 5, 6, 7, 8, 9, 50)])[0]
    assert ahead.tolist() == [7, 4, 3, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("span", "max_distance"), [(256, 512), (128, 512), (32, 128), (16, 1000), (10, 60), (4, 20), (5, 9), (7, 512)]
)
def test_log_buckets_are_transformers(span, max_distance):
    """Every distance, far beyond the last bucket's first; theirs in float32 logarithms."""
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    behind = torch.arange(-3 * max_distance - 50, 3 * max_distance + 51)
    theirs = make_log_bucket_position(behind, span, max_distance).long() + span
    ours = distance_rows(DebertaEncoding(span=span, max_distance=max_distance))
    found = ours.of(behind.numpy() + 10_000, [10_000])[:, 0]
    assert np.array_equal(found, theirs.clamp(0, 2 * span - 1).numpy())


def test_raw_distances_are_clipped_to_the_table():
    rows = distance_rows(DebertaEncoding(span=3)).of([10], [1, 7, 8, 9, 10, 11, 13, 14, 90])
    assert rows.tolist() == [[5, 5, 5, 4, 3, 2, 0, 0, 0]]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"span": 3, "max_distance": 9}, "span must be >= 4 with max_distance, got 3"),
        ({"span": 8, "max_distance": 5}, r"max_distance must be > span // 2 \+ 1 = 5, got 5"),
        ({"content_to_position": False, "position_to_content": False}, "must be true, got neither"),
        (
            {"key_bias": True, "share_projections": True},
            "key_bias must be false where no position_key_proj is, got true",
        ),
    ],
)
def test_settings_of_deberta_that_contradict(settings, rule):
    with pytest.raises(SpecError, match=rule):
        DebertaEncoding(**{"span": 8, **settings})


def test_shared_projections_take_no_groups():
    latents = {"projection": "mla", "mla": MlaProjection(kv_lora_rank=7, qk_rope_head_dim=2), "num_kv_heads": 6}
    with pytest.raises(SpecError, match="share_projections needs projection standard, got mla: its keys have"):
        AttentionSpec(**(SIZES | latents), bias=(DebertaEncoding(span=4, share_projections=True),))
    AttentionSpec(**(SIZES | latents), bias=(DebertaEncoding(span=4),))  # projections of its own
    with pytest.raises(SpecError, match="num_kv_heads must equal num_heads with share_projections, got 2"):
        AttentionSpec(**SIZES, bias=(DebertaEncoding(span=4, share_projections=True),))


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
