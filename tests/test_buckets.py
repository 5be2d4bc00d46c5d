"""T5's buckets: which one a distance falls into, decided exactly, and the bias of a trained table."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portpe
from portpe.biases import buckets
from portpe.encodings import AxisBucketsEncoding, BucketsEncoding, DistanceBuckets
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 3, "head_dim": 4, "v_head_dim": 5, "scale": 1.0}
# (num_buckets, max_distance): T5's, WavLM's, LayoutLMv3's 2-D, and others with odd and small counts.
SETTINGS = [(32, 128), (320, 800), (64, 256), (33, 100), (6, 20), (160, 20000)]


def rows(encoding, queries, keys):
    return buckets.distance_rows(encoding).of(queries, keys)


def test_causal_distances_fall_into_the_buckets_of_the_released_code():
    """B01. Without the clamp 128 and 200 would be 32 and 35, past the table's 32 rows."""
    distances = [0, 1, 7, 8, 9, 11, 12, 15, 16, 63, 64, 127, 128, 200]
    encoding = BucketsEncoding(bidirectional=False)
    found = rows(encoding, [1000], 1000 - np.array(distances))[0]
    assert found.tolist() == [0, 1, 7, 8, 9, 11, 12, 15, 16, 26, 26, 31, 31, 31]
    unclamped = [16 + int(math.log(d / 16) / math.log(128 / 16) * 16) for d in (128, 200)]
    assert unclamped == [32, 35]


def test_keys_after_the_query_have_buckets_of_their_own():
    """B02. Key minus query: positive is after."""
    relative = [0, 1, 7, 8, 12, 16, 64, 128, -1, -7, -8, -12, -16, -64, -128]
    found = rows(BucketsEncoding(), [500], 500 + np.array(relative))[0]
    assert found.tolist() == [0, 17, 23, 24, 25, 26, 30, 31, 1, 7, 8, 9, 10, 14, 15]


def test_causal_keys_after_the_query_share_the_bucket_of_distance_0():
    found = rows(BucketsEncoding(bidirectional=False), [40], [40, 41, 300])
    assert found.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), SETTINGS)
def test_buckets_are_those_of_transformers(num_buckets, max_distance, bidirectional):
    """Its float32 logarithm falls on the same side of every boundary, up to a distance of 20000 either way."""
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-20000, 20001)
    encoding = BucketsEncoding(num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional)
    theirs = T5Attention._relative_position_bucket(torch.from_numpy(distance), bidirectional, num_buckets, max_distance)
    ours = rows(encoding, [20000], 20000 + distance)[0]
    assert np.array_equal(ours, theirs.numpy())
    assert ours.max() == encoding.per_direction * (1 + bidirectional) - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 70), st.integers(1, 3000), st.integers(0, 10**6))
def test_a_bucket_begins_where_the_logarithm_reaches_it(num_buckets, beyond, distance):
    """Against the formula at 50 digits, where a value within 1e-40 of a whole number is that number."""
    exact = num_buckets // 2
    encoding = BucketsEncoding(num_buckets=num_buckets, max_distance=exact + beyond, bidirectional=False)
    found = int(rows(encoding, [distance], [0])[0, 0])
    if distance < exact:
        assert found == distance
        return
    with mpmath.workdps(50):
        ratio = mpmath.log(mpmath.mpf(distance) / exact) / mpmath.log(mpmath.mpf(exact + beyond) / exact)
        steps = int(mpmath.floor(ratio * (num_buckets - exact) + mpmath.mpf(10) ** -40))
    assert found == min(exact + steps, num_buckets - 1)


def test_a_boundary_that_is_a_whole_number_belongs_to_the_bucket_above():
    """(16 / 8)^8 = (128 / 8)^2, so of 16 buckets a direction 16 opens the second of the wide ones."""
    assert buckets.thresholds(16, 128)[[8, 9]].tolist() == [12, 16]
    assert buckets.thresholds(16, 128)[:8].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_shift_of_all_positions_changes_nothing(query, key, shift):
    encoding = BucketsEncoding(num_buckets=12, max_distance=40)
    here = rows(encoding, [query], [key])
    assert np.array_equal(here, rows(encoding, [query + shift], [key + shift]))


def test_tabulate_lists_the_bias_and_the_buckets():
    encoding = BucketsEncoding(
        num_buckets=7, max_distance=9, bidirectional=False
    )  # 3 exact; 3, 4, 6 and 7 begin wide ones
    table = np.arange(42, dtype=np.float32).reshape(7, 6)
    spec = AttentionSpec(**SIZES, bias=(encoding,))
    found = portpe.tabulate(spec, [3, 9, 4], weights={"relative_attention_bias.weight": table})
    # (d/3)^4 >= 3^j for j = 1, 2, 3: from 3.95, 5.2 and 6.84 on
    assert found["buckets"].tolist() == [[0, 0, 0], [5, 0, 4], [1, 0, 0]]
    for head in (0, 5):
        assert found["bias"][head].tolist() == [
            [head, head, head],
            [30 + head, head, 24 + head],
            [6 + head, head, head],
        ]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, r"weights must hold relative_attention_bias.weight \(32, 6\), got \[\]"),
        (
            {"relative_attention_bias.weight": np.zeros((6, 32))},
            r"weights.relative_attention_bias.weight must have shape \(32, 6\), got \(6, 32\)",
        ),
    ],
)
def test_tabulate_names_the_tensor_that_it_lacks(weights, message):
    with pytest.raises(SpecError, match=message):
        portpe.tabulate(AttentionSpec(**SIZES, bias=(BucketsEncoding(),)), [0, 1], weights=weights)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_buckets": 3}, "num_buckets must be >= 4 for bidirectional buckets, got 3"),
        ({"num_buckets": 1, "bidirectional": False}, "num_buckets must be >= 2 for buckets, got 1"),
        ({"max_distance": 8}, "max_distance must be > 8, the distances with a bucket of their own, got 8"),
        ({"max_distance": 16, "bidirectional": False}, "max_distance must be > 16"),
        ({"max_distance": 0}, "max_distance must be greater than 0, got 0"),
    ],
)
def test_settings_that_make_no_buckets_are_refused(fields, message):
    with pytest.raises(SpecError, match=message):
        BucketsEncoding(**fields)


def test_axes_have_a_table_each_and_their_sum_is_scaled():
    """By hand: 2 buckets a direction hold distance 0 and 1, the second all beyond; keys after the query add 2."""
    axes = (
        DistanceBuckets(num_buckets=4, max_distance=3),
        DistanceBuckets(num_buckets=3, max_distance=2, bidirectional=False),
    )
    encoding = AxisBucketsEncoding(axes=axes, scale=0.5)
    first, second = np.arange(24.0).reshape(4, 6), 100 * np.arange(18.0).reshape(3, 6)
    spec = AttentionSpec(**SIZES, bias=(encoding,))
    weights = {"axis_bias_0.weight": first, "axis_bias_1.weight": second}
    found = portpe.tabulate(spec, [[5, 9, 4], [7, 0, 6]], weights=weights)
    # places 5, 9, 4: one bucket a sign, and distance 0; heights 7, 0, 6: the causal buckets 0, 1 and 2 (from 2 on)
    assert found["buckets"].tolist() == [
        [[0, 3, 1], [1, 0, 1], [3, 3, 0]],
        [[0, 2, 1], [0, 0, 0], [0, 2, 0]],
    ]
    for head in (0, 5):
        assert found["bias"][head].tolist() == [
            [0.5 * (first[a, head] + second[b, head]) for a, b in zip(*rows, strict=True)]
            for rows in zip(*found["buckets"].astype(int).tolist(), strict=True)
        ]


def test_axes_are_two_at_least():
    with pytest.raises(SpecError, match="axes must have a length >= 2, got "):
        AxisBucketsEncoding(axes=(DistanceBuckets(),))
    with pytest.raises(SpecError, match="max_distance must be > 8"):
        AxisBucketsEncoding(axes=(DistanceBuckets(), {"max_distance": 8}))
