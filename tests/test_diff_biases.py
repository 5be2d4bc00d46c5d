"""Comparing biases: the first distance by hand, and that scores of two layers with the same tensors part there."""

import numpy as np
import pytest
import torch

from portpe.diff import ROUNDOFF, compare
from portpe.encodings import (
    AlibiEncoding,
    AxisBucketsEncoding,
    BucketsEncoding,
    CopeEncoding,
    DebertaEncoding,
    DistanceBankEncoding,
    DistanceBuckets,
    FireEncoding,
    ForgetEncoding,
    GridNetworkEncoding,
    GridTableEncoding,
    GridVectorsEncoding,
    KerpleEncoding,
    SandwichEncoding,
    ShawEncoding,
    TransformerXlEncoding,
)
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 24, "num_heads": 3, "num_kv_heads": 3, "head_dim": 8, "v_head_dim": 8, "scale": 0.5}


def spec(*biases, **fields):
    return AttentionSpec(**{**SIZES, **fields, "bias": biases})


def middle(name, rows):
    """The ``rows`` rows in the middle of a wider table."""

    def cut(weights):
        spare = (len(weights[name]) - rows) // 2
        return weights | {name: weights[name][spare : spare + rows]}

    return cut


def behind(name, rows):
    """The last ``rows`` rows of a table that goes from the farthest key behind on."""
    return lambda weights: weights | {name: weights[name][-rows:]}


def first_of(name, rows):
    return lambda weights: weights | {name: weights[name][:rows]}


V2, BOTH = {"span": 8, "norm_eps": 1e-7}, {"causal": False}
# Two encodings of a kind, the layer's fields, the first distance by hand, and how the first layer's tensors follow from
# the second one's where its tables are shorter.
SAME_TENSORS = {
    "shaw, behind": (
        ShawEncoding(left=3, right=0),
        ShawEncoding(left=5, right=0),
        {},
        4,
        behind("relative_key.weight", 4),
    ),
    "shaw, ahead": (
        ShawEncoding(left=6, right=2),
        ShawEncoding(left=6, right=4),
        BOTH,
        3,
        first_of("relative_key.weight", 9),
    ),
    # row 4 of 9 stands for distance 0 in either order
    "shaw, order": (ShawEncoding(left=4, right=4), ShawEncoding(left=4, right=4, descending=True), {}, 1, None),
    # clipped from i - j = span - 1 on
    "deberta, span": (DebertaEncoding(span=5), DebertaEncoding(span=8), {}, 5, middle("relative_embedding.weight", 10)),
    # ln(6/4) / ln(13/4) * 3 = 1.03 takes bucket 4 + 2, / ln(39/4) * 3 = 0.53 bucket 4 + 1; at 5 both take 4 + 1
    "deberta, longest": (DebertaEncoding(max_distance=14, **V2), DebertaEncoding(max_distance=40, **V2), {}, 6, None),
    "deberta, norm": (DebertaEncoding(span=4, norm_eps=1e-7), DebertaEncoding(span=4, norm_eps=1e-2), {}, 0, None),
    "kerple": (KerpleEncoding(), KerpleEncoding(form="power"), BOTH, 1, None),
    "fire": (FireEncoding(width=5), FireEncoding(width=5, epsilon=0.25), {}, 1, None),
    "clamp": (TransformerXlEncoding(clamp=6), TransformerXlEncoding(clamp=9), {}, 7, None),
    "clamp and none": (TransformerXlEncoding(clamp=3), TransformerXlEncoding(), BOTH, 4, None),
    "waves": (TransformerXlEncoding(), TransformerXlEncoding(base=500.0), {}, 1, None),
    # of distance 0 sines are 0 and cosines 1, in another order
    "order of waves": (TransformerXlEncoding(), TransformerXlEncoding(order="interleaved"), {}, 0, None),
    "cope": (CopeEncoding(rows=5), CopeEncoding(rows=9), {}, 4, first_of("contextual_position.weight", 5)),
    "cope's gates": (CopeEncoding(rows=5), CopeEncoding(rows=5, scaled_gates=False), {}, 0, None),
    "bank": (
        DistanceBankEncoding(extent=4, width=3),
        DistanceBankEncoding(extent=7, width=3),
        {},
        4,
        lambda weights: weights | {"distance_bank": weights["distance_bank"][:, :4]},
    ),
    "bank, clipped": (
        DistanceBankEncoding(extent=4, width=3, clip=0.5),
        DistanceBankEncoding(extent=4, width=3, clip=0.25),
        {},
        0,
        None,
    ),
    # 8 distances of their own a direction, then 8 (64 / 8)^(1/8) = 10.4 or 8 (128 / 8)^(1/8) = 11.3 begins the next one
    "buckets": (BucketsEncoding(max_distance=64), BucketsEncoding(), BOTH, 11, None),
    "buckets, scaled": (BucketsEncoding(), BucketsEncoding(scale=2.0), {}, 0, None),
}


def scores(layer, weights, size):
    """(heads, S, S) in float64, of queries and keys that are alike: large ones open CoPE's gates wide."""
    hidden = np.ones((1, 17, 1)) * np.random.default_rng(3).standard_normal(24) * size
    weights = weights | {"k_proj.weight": weights["q_proj.weight"]}
    block = Attention(layer, dtype=torch.float64).load(weights)
    return block.stages(torch.from_numpy(hidden))["scores"][0].numpy()


@pytest.mark.parametrize("name", SAME_TENSORS)
def test_the_first_distance_by_hand_is_where_scores_part(name):
    one, other, fields, first, shorter = SAME_TENSORS[name]
    layers = [spec(each, **fields) for each in (one, other)]
    for pair in (layers, layers[::-1]):
        differences = compare(*pair).differences
        assert {(each.unit, each.first_position, each.tensors) for each in differences} == {("distance", first, "same")}
    wide = {key: value.astype(np.float64) for key, value in random_weights(layers[1], 4).items()}
    narrow, size = wide if shorter is None else shorter(wide), 0.5 if name == "cope's gates" else 4.0
    apart = np.abs(scores(layers[0], narrow, size) - scores(layers[1], wide, size))
    distance = np.abs(np.subtract.outer(np.arange(17), np.arange(17)))
    seen = np.tril(np.ones((17, 17), bool)) if layers[0].causal else np.ones((17, 17), bool)
    assert apart[:, seen & (distance < first)].max(initial=0.0) < 1e-12
    assert apart[:, seen & (distance == first)].max() > 1e-5


AXES = tuple(DistanceBuckets(max_distance=distance) for distance in (128, 64))
ANSWERS = {
    "along one axis": (
        (AxisBucketsEncoding(axes=AXES),),
        (AxisBucketsEncoding(axes=AXES[:1] * 2),),
        BOTH,
        (11, "same"),
    ),
    "another scale": (
        (AxisBucketsEncoding(axes=AXES),),
        (AxisBucketsEncoding(axes=AXES, scale=0.5),),
        BOTH,
        (0, "same"),
    ),
    # the smaller grid ends before the offset that only the larger one has
    "a larger grid": (
        (GridTableEncoding(height=4, width=5),),
        (GridTableEncoding(height=6, width=5),),
        BOTH,
        (4, "same"),
    ),
    "a cell before it": (
        (GridTableEncoding(height=4, width=5),),
        (GridTableEncoding(height=4, width=5, prefix_tokens=1),),
        BOTH,
        (0, "other"),
    ),
    "offsets without sign": (
        (GridTableEncoding(height=4, width=5),),
        (GridTableEncoding(height=4, width=5, offsets="absolute"),),
        BOTH,
        (0, "other"),
    ),
    "trained on other windows": (
        (GridNetworkEncoding(height=4, width=5, units=7),),
        (GridNetworkEncoding(height=4, width=5, units=7, extent=(4, 4)),),
        BOTH,
        (1, "same"),
    ),
    "a larger grid of one network": (
        (GridNetworkEncoding(height=4, width=6, units=7, extent=(3, 3)),),
        (GridNetworkEncoding(height=5, width=8, units=7, extent=(3, 3)),),
        BOTH,
        (4, "same"),
    ),
    "its extent spelled out": (
        (GridNetworkEncoding(height=4, width=6, units=7),),
        (GridNetworkEncoding(height=4, width=6, units=7, extent=(4, 6)),),
        BOTH,
        (None, "same"),
    ),
    "another network": (
        (GridNetworkEncoding(height=4, width=5, units=7),),
        (GridNetworkEncoding(height=4, width=5, units=8),),
        BOTH,
        (0, "other"),
    ),
    "vectors of a larger grid": (
        (GridVectorsEncoding(height=4, width=5),),
        (GridVectorsEncoding(height=4, width=7),),
        BOTH,
        (5, "same"),
    ),
    # the middle of three rows stands for the offset 0, however many they are made to be
    "one table resampled twice": (
        (GridVectorsEncoding(height=4, width=5, trained_on=(2, 2)),),
        (GridVectorsEncoding(height=6, width=5, trained_on=(2, 2)),),
        BOTH,
        (1, "same"),
    ),
    "tables of other grids": (
        (GridVectorsEncoding(height=4, width=5, trained_on=(2, 2)),),
        (GridVectorsEncoding(height=4, width=5),),
        BOTH,
        (0, "other"),
    ),
    "a larger grid of vectors": (
        (GridVectorsEncoding(height=4, width=5),),
        (GridVectorsEncoding(height=4, width=7, trained_on=(4, 7)),),
        BOTH,
        (5, "same"),
    ),
    "vectors of another grid": (
        (GridVectorsEncoding(height=4, width=5),),
        (GridVectorsEncoding(height=4, width=5, trained_on=(3, 5)),),
        BOTH,
        (0, "other"),
    ),
    "another small network": ((FireEncoding(width=5),), (FireEncoding(width=6),), {}, (0, "other")),
    "vectors of values": (
        (ShawEncoding(left=3, right=0),),
        (ShawEncoding(left=3, right=0, values=True),),
        {},
        (0, "other"),
    ),
    "profiles of another width": (
        (DistanceBankEncoding(extent=4, width=3),),
        (DistanceBankEncoding(extent=4, width=5),),
        {},
        (0, "other"),
    ),
    "another half of a disentangled one": (
        (DebertaEncoding(span=4),),
        (DebertaEncoding(span=4, position_to_content=False),),
        {},
        (0, "other"),
    ),
    "a contract that exact numbers do not follow": (
        (TransformerXlEncoding(),),
        (TransformerXlEncoding(contract="conformer"),),
        {},
        (None, "same"),
    ),
    "none and what is 0 at distance 0": ((), (KerpleEncoding(),), {}, (1, "other")),
    "none and gates behind a key": ((), (ForgetEncoding(),), {}, (1, "other")),
    "none and a trained one": ((), (ShawEncoding(left=2, right=0),), {}, (0, "other")),
    "another kind": ((KerpleEncoding(),), (BucketsEncoding(),), {}, (0, "other")),
    "none and a sandwich": ((), (SandwichEncoding(width=4),), {}, (0, "none")),
    # the slopes of 3 heads are 1/16, 1/256 and 1/4
    "one more that is computed": (
        (AlibiEncoding(),),
        (AlibiEncoding(), AlibiEncoding(scale=2.0**-23)),
        {},
        (3, "none"),
    ),
    "the same in another order": (
        (AlibiEncoding(), SandwichEncoding(width=4)),
        (SandwichEncoding(width=4), AlibiEncoding()),
        {},
        (None, "none"),
    ),
    "one of two": (
        (AlibiEncoding(), BucketsEncoding(max_distance=64)),
        (AlibiEncoding(), BucketsEncoding()),
        BOTH,
        (11, "same"),
    ),
    "both of two, a computed one first": (
        (AlibiEncoding(), BucketsEncoding(max_distance=64)),
        (AlibiEncoding(scale=1 + 2.0**-20), BucketsEncoding()),
        BOTH,
        (1, "same"),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_says_what_it_takes_for_granted(name):
    left, right, fields, expected = ANSWERS[name]
    layers = spec(*left, **fields), spec(*right, **fields)
    for pair in (layers, layers[::-1]):
        assert {(each.first_position, each.tensors) for each in compare(*pair).differences} == {expected}


def test_sums_that_are_computed_are_compared_as_they_are():
    """ALiBi and a sandwich in each layer, in float64 by hand: what counts is the sum, of the largest at distance 0."""

    def added(base, scale, distances):
        waves = np.cos(np.multiply.outer(distances, base ** (-np.arange(2) / 2))).sum(-1)
        slopes = np.array([2.0**-4, 2.0**-8, 2.0**-2]) * scale
        return np.arange(1, 4)[:, None] * (8 / 3) * waves - slopes[:, None] * distances

    layers = [
        spec(SandwichEncoding(width=4, base=base), AlibiEncoding(scale=scale))
        for base, scale in ((100.0, 1.0), (100.0 * (1 + 2.0**-15), 1 + 2.0**-16))
    ]
    seen = {each.field: dict(each.seen) for each in compare(*layers).differences}
    distances = np.arange(60_000)
    error = np.abs(added(100.0, 1.0, distances) - added(100.0 * (1 + 2.0**-15), 1 + 2.0**-16, distances)).max(0) / 16
    expected = {dtype: int(np.flatnonzero(error > roundoff)[0]) for dtype, roundoff in ROUNDOFF.items()}
    assert seen == {"bias.0.base": expected, "bias.1.scale": expected}
    assert 1 <= expected["float32"] < expected["float16"] < expected["bfloat16"]


def test_transformers_slopes_part_from_exact_ones_far_out():
    """2^-0.5 and its kin are no float32 numbers: d times what they are off by has to exceed 2^-24."""
    exact, theirs = (spec(AlibiEncoding(precision=each, contract="bloom"), num_heads=12) for each in ("exact", "hf"))
    (difference,) = compare(exact, theirs).differences
    off = max(abs(float(np.float32(2.0**-power)) - 2.0**-power) for power in (0.5, 1.5, 2.5, 3.5))
    assert difference.first_position == pytest.approx(2.0**-24 / off, rel=0.5)
    assert difference.tensors == "none"


def test_other_heads_have_other_biases():
    alibi = compare(spec(AlibiEncoding()), spec(AlibiEncoding(scale=2.0), num_heads=6))
    assert {each.field: (each.first_position, each.tensors) for each in alibi.differences} == {
        "num_heads": (0, "none"),
        "bias.0.scale": (1, "none"),
    }
