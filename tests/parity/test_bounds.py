"""Bounds: as wide as rounding, no wider, whatever order a sum is formed in."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as having
from hypothesis import settings
from hypothesis import strategies as st

from portpe.parity import bounds
from portpe.parity.bounds import Estimate, given

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", TYPES)
def test_unit_is_half_a_step_at_one(dtype):
    rounding, kind = bounds.ROUNDINGS[dtype], TYPES[dtype]
    one = kind(1)
    assert kind(1 + 2.01 * rounding.unit) > one
    assert kind(1 + 0.99 * rounding.unit) == one
    assert rounding.sum_unit == 2.0**-24


def test_a_sum_by_hand():
    """Four terms of 1 in float32: 6 * 2 * u * 4 for the sum, and 4 roundings of the stored 4."""
    u = 2.0**-24
    expected = 6 * math.sqrt(4) * u * 4 + 4 * u * 4
    found = bounds.summed(np.array([4.0]), np.array([2.0]), 4, bounds.ROUNDINGS["float32"])
    np.testing.assert_allclose(found, [expected], rtol=1e-12)
    cancelled = bounds.summed(np.array([0.0]), np.array([2.0]), 4, bounds.ROUNDINGS["float32"])
    np.testing.assert_allclose(cancelled, [6 * 2 * u * 2], rtol=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=200, deadline=None)
@having(st.lists(st.floats(-100, 100, allow_nan=False), min_size=1, max_size=60))
def test_never_above_the_bound_for_any_data(dtype, terms):
    """u * (C + LAMBDA * sqrt(n)) * sum |terms|, the documented ceiling."""
    values = np.array(terms)
    rounding = bounds.ROUNDINGS[dtype]
    found = bounds.summed(np.array([values.sum()]), np.array([np.sqrt(np.square(values).sum())]), len(terms), rounding)
    ceiling = rounding.unit * (bounds.C + bounds.LAMBDA * math.sqrt(len(terms))) * np.abs(values).sum()
    assert found[0] <= (ceiling + rounding.tiny) * (1 + 1e-12)


def _orders(terms):
    """Ways in which a runtime may add: forward, backward, sorted, in lanes, in pairs."""
    yield terms
    yield terms[::-1]
    yield np.sort(terms)
    yield np.sort(terms)[::-1]
    yield terms[np.argsort(-np.abs(terms))]


def _sequential(terms):
    total = np.float32(0)
    for term in terms.astype(np.float32):
        total = np.float32(total + term)
    return float(total)


@pytest.mark.parametrize("kind", ["signs", "positive", "outlier", "alternating"])
@pytest.mark.parametrize("n", [7, 200, 3000])
def test_float32_sums_stay_within_whatever_the_order(kind, n):
    random = np.random.default_rng(n)
    for _ in range(5):
        terms = random.standard_normal(n).astype(np.float32).astype(np.float64)
        if kind == "positive":
            terms = np.abs(terms)
        if kind == "outlier":
            terms[random.integers(n)] = 1000.0
        if kind == "alternating":
            terms[::2], terms[1::2] = np.abs(terms[::2]), -np.abs(terms[1::2])
        exact, rss = math.fsum(terms), math.sqrt(math.fsum(np.square(terms)))
        bound = bounds.summed(np.array([exact]), np.array([rss]), n, bounds.ROUNDINGS["float32"])[0]
        for ordered in list(_orders(terms))[: 2 if kind != "positive" else 5]:
            assert abs(_sequential(ordered) - exact) <= bound


def test_the_bound_is_not_wide_where_signs_cancel():
    """4096 terms: 60 times below the ceiling for any data, so that one wrong weight is seen."""
    values = np.random.default_rng(0).standard_normal(4096)
    rounding = bounds.ROUNDINGS["float32"]
    found = bounds.summed(np.array([values.sum()]), np.array([np.sqrt(np.square(values).sum())]), 4096, rounding)[0]
    ceiling = rounding.unit * (bounds.C + bounds.LAMBDA * 64) * np.abs(values).sum()
    assert found < ceiling / 30


@pytest.mark.parametrize("dtype", TYPES)
def test_a_product_in_the_type_stays_within(dtype):
    """x and w in the type, summed in float32, stored in the type."""
    random, kind = np.random.default_rng(2), TYPES[dtype]
    x, w = random.standard_normal((40, 300)).astype(kind), random.standard_normal((50, 300)).astype(kind)
    wide = w.astype(np.float64)
    found = bounds.product(given(x), wide, np.square(wide.astype(np.float32)), bounds.ROUNDINGS[dtype])
    actual = (x.astype(np.float32) @ w.astype(np.float32).T).astype(kind).astype(np.float64)
    assert (np.abs(actual - found.value) <= found.error).all()
    assert (np.abs(actual - found.value) / found.error).max() > 0.005  # and not by orders of magnitude


def test_errors_of_the_input_are_carried():
    """An input error of e in one element reaches the sum as e * w; two of them as squares."""
    value, error = np.array([[1.0, 2.0, 3.0]]), np.array([[0.0, 0.3, 0.4]])
    weight = np.array([[5.0, 1.0, 1.0]])
    found = bounds.product(Estimate(value, error), weight, np.square(weight), bounds.ROUNDINGS["float32"])
    np.testing.assert_allclose(found.error, [[0.5]], rtol=1e-5)
    assert found.value[0, 0] == 10.0


def test_tiny_input_errors_do_not_vanish_in_float32():
    """Squares of 1e-30 leave float32's range unless they are scaled."""
    weight = np.array([[1.0, 1.0]])
    small = Estimate(np.zeros((1, 2)), np.full((1, 2), 1e-30))
    found = bounds.product(small, weight, np.square(weight).astype(np.float32), bounds.ROUNDINGS["float32"])
    assert found.error[0, 0] >= 1.4e-30


def test_carried_softmax_errors_cover_what_score_errors_do():
    """Against softmax itself: scores moved by up to e, 2000 times, at six standard deviations' margin."""
    random = np.random.default_rng(3)
    scores = random.standard_normal((1, 9)) * 3
    exponentials = np.exp(scores - scores.max())
    probs = exponentials / exponentials.sum()
    moved = Estimate(scores, np.full_like(scores, 0.05))
    bound = bounds.softmax_error(probs, moved, np.abs(scores) + np.abs(scores).max(), 9, bounds.ROUNDINGS["float32"])
    worst = np.zeros_like(probs)
    for _ in range(2000):
        shifted = np.exp(scores + random.standard_normal(scores.shape) * 0.05 / 6)
        worst = np.maximum(worst, np.abs(shifted / shifted.sum() - probs))
    assert (worst <= bound).all()
    assert (worst >= bound / 20).all()


def test_softmax_in_float32_stays_within():
    random = np.random.default_rng(4)
    for width in (1.0, 10.0, 100.0):
        scores = (random.standard_normal((200, 50)) * width).astype(np.float32)
        wide = scores.astype(np.float64)
        exact = np.exp(wide - wide.max(-1, keepdims=True))
        exact /= exact.sum(-1, keepdims=True)
        single = np.exp(scores - scores.max(-1, keepdims=True))
        single /= single.sum(-1, keepdims=True)
        reach = np.abs(wide) + np.abs(wide.max(-1, keepdims=True))
        bound = bounds.softmax_error(exact, given(scores), reach, 50, bounds.ROUNDINGS["float32"])
        assert (np.abs(single - exact) <= bound).all()


def test_joined_and_shaped_together():
    first, second = Estimate(np.ones((2, 3)), np.zeros((2, 3))), Estimate(np.zeros((1, 3)), np.ones((1, 3)))
    both = bounds.joined(first, second, axis=0)
    np.testing.assert_array_equal(both.value[:, 0], [1, 1, 0])
    np.testing.assert_array_equal(both.swapaxes(0, 1).reshape(9).error[:3], [0, 0, 1])
    np.testing.assert_array_equal(both[2].error, [1, 1, 1])


@pytest.mark.parametrize("keys", [100, 8194])
def test_a_softmax_whose_terms_are_added_one_by_one_stays_within(keys):
    """The coarsest order there is: small terms fall below the running sum's last place, all in one direction."""
    scores = (np.random.default_rng(5).standard_normal(keys) * 4).astype(np.float32)
    exponentials = np.exp(scores - scores.max())
    wide = np.exp(scores.astype(np.float64) - scores.max())
    off = abs(_sequential(exponentials) / wide.sum() - 1)
    assert off <= bounds.softmax_sum(keys)
    assert off >= bounds.softmax_sum(keys) / 100  # and the allowance is not for nothing


def test_softcap_covers_the_tanh_of_onnx_runtime():
    """Its float32 tanh is off by 4.4 units where it saturates: more than the rounding of one stored value."""
    import onnxruntime
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "tanh", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    x = np.linspace(-9, 9, 100_001, dtype=np.float32)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    exact, rounding = x.astype(np.float64), bounds.ROUNDINGS["float32"]
    error = np.abs(y - np.tanh(exact))
    assert (error <= bounds.softcap_error(exact, np.zeros_like(exact), 1.0, rounding)).all()
    assert error.max() > bounds.stored(np.array(1.0), rounding)  # why tanh has an allowance of its own


@pytest.mark.parametrize("cap", [0.01, 1.0, 50.0])
def test_softcap_follows_an_error_from_flat_to_steep(cap):
    total, error = np.array([5.0 * cap, 0.0, -3.0 * cap]), np.full(3, 4.0 * cap)
    found = bounds.softcap_error(total, error, cap, bounds.ROUNDINGS["bfloat16"])
    for side in (-1, 1):
        assert (np.abs(cap * np.tanh((total + side * error) / cap) - cap * np.tanh(total / cap)) <= found).all()
    assert (found <= 2 * cap * 1.02).all()


def _features(x):
    return np.exp(np.minimum(x, 0)) + np.maximum(x, 0)


def test_features_in_float32_stay_within_and_elu_plus_one_does_not():
    """By numpy, torch, ONNX Runtime and MLX; subtracting 1 and adding it again is seen from features of 1e-2 down."""
    import mlx.core as mx
    import onnxruntime
    import torch
    from onnx import TensorProto, helper

    x = np.concatenate([np.linspace(-90, 30, 100_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    nodes = [
        helper.make_node(*node)
        for node in (
            ("Min", ["x", "zero"], ["low"]),
            ("Exp", ["low"], ["exp"]),
            ("Relu", ["x"], ["high"]),
            ("Add", ["exp", "high"], ["y"]),
        )
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    graph = helper.make_graph(nodes, "features", ends[:1], ends[1:], [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (by_onnx,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = {
        "numpy": _features(x),
        "torch": (torch.exp(torch.tensor(x).clamp(max=0)) + torch.tensor(x).clamp(min=0)).numpy(),
        "onnxruntime": by_onnx,
        "mlx": np.array(mx.exp(mx.minimum(mx.array(x), 0.0)) + mx.maximum(mx.array(x), 0.0)),
    }
    exact = _features(x.astype(np.float64))
    np.testing.assert_array_equal(bounds.elu_plus_one(x.astype(np.float64)), exact)
    bound = bounds.feature_error(given(x))
    for name, values in found.items():
        assert (np.abs(values - exact) <= bound).all(), name
    assert (bound <= 2e-5 * exact)[x > -70].all()
    naive = np.where(x > 0, x, np.exp(x) - np.float32(1)) + np.float32(1)
    assert (np.abs(naive - exact) > bound)[x < -9].mean() > 0.9


def test_an_error_of_x_goes_through_the_features_both_ways():
    """elu + 1 bends: from -4, 2 up is a step of 0.117, and 2 down of 0.016; from -0.5, 2 up reaches the line."""
    moved = Estimate(np.array([-4.0, -0.5, 3.0]), np.full(3, 2.0))
    by_hand = [math.exp(-2) - math.exp(-4), 2.5 - math.exp(-0.5), 2.0 + 0.0]
    down_from_3 = 4.0 - 2.0
    np.testing.assert_allclose(bounds.feature_error(moved), [*by_hand[:2], down_from_3], rtol=1e-5)


@pytest.mark.parametrize(("keys", "width"), [(40, 8), (3000, 4)])
def test_positive_sums_stay_within_in_either_order(keys, width):
    """Channels inside and keys outside, or keys inside and channels outside, one term after the other."""
    random = np.random.default_rng(keys)
    q, k = np.exp(random.standard_normal(width)), np.exp(random.standard_normal((keys, width)) * 2)
    q, k = q.astype(np.float32), k.astype(np.float32)
    exact = np.array([math.fsum((q.astype(np.float64) * k.astype(np.float64)).ravel())])
    by_key = _sequential(np.array([_sequential(q * row) for row in k]))
    by_channel = _sequential(q * np.array([_sequential(column) for column in k.T], np.float32))
    bound = bounds.positive_sum_error(exact, keys, width)
    for found in (by_key, by_channel):
        assert abs(found - exact) <= bound
    assert bound <= exact * (keys / 8 + 6 * math.sqrt(keys) + 40) * 2.0**-24


def test_a_quotient_by_hand():
    """3 +- 0.3 over 2 +- 0.5, at worst 3.3 / 1.5: 0.7 more than 1.5, of which the denominator's part is 0.5."""
    error, shared = bounds.quotient_error(
        np.array([1.5]), np.array([0.3]), Estimate(np.array([2.0]), np.array([0.5])), bounds.ROUNDINGS["float32"]
    )
    np.testing.assert_allclose(shared, [1 / 3], rtol=1e-12)
    np.testing.assert_allclose(error, [math.hypot(0.3 / 1.5, 1.5 / 3)], rtol=1e-6)
    np.testing.assert_allclose(0.3 / 1.5 + 1.5 * shared, [3.3 / 1.5 - 1.5], rtol=1e-12)


def test_a_quotient_follows_its_parts_whatever_the_sign():
    random = np.random.default_rng(6)
    above, below = np.array([-4.0, 0.01, 2.0]), 3.0
    denominator = Estimate(np.array([below]), np.array([0.6]))
    error, _ = bounds.quotient_error(above / below, np.full(3, 0.2), denominator, bounds.ROUNDINGS["float32"])
    worst = np.zeros(3)
    for _ in range(2000):
        moved = (above + random.standard_normal(3) * 0.2 / 6) / (below + random.standard_normal() * 0.6 / 6)
        worst = np.maximum(worst, np.abs(moved - above / below))
    assert (worst <= error).all()
    assert (worst >= error / 5).all()


def test_a_denominator_that_its_error_reaches_bounds_nothing():
    """Rather than a narrow bound, or a NaN behind it."""
    denominator = Estimate(np.array([1.0]), np.array([1.0]))
    error, shared = bounds.quotient_error(np.array([2.0]), np.array([0.1]), denominator, bounds.ROUNDINGS["float16"])
    assert error[0] > 1e30
    assert shared[0] > 1e30
    assert np.isfinite([error, shared]).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_whole_row_of_linear_attention_stays_within(dtype):
    """q and k off by what storing them may cost, then exact: what reaches the context is within the carried bound, and
    a normaliser that is off by a thousandth is not.
    """
    from portpe.parity import linear_attention

    random, rounding = np.random.default_rng(8), bounds.ROUNDINGS[dtype]
    q, k, v = random.standard_normal((3, 6)), random.standard_normal((25, 6)), random.standard_normal((25, 4))
    off_q, off_k = (bounds.stored(part, rounding) for part in (q, k))
    visible = random.random(25) < 0.8
    features = [linear_attention.features(Estimate(*part)) for part in ((q, off_q), (k, off_k))]
    scores = bounds.matmul(features[0], features[1].swapaxes(0, 1), bounds.ROUNDINGS["float32"])
    below = linear_attention.normaliser(*features, visible)
    weights, shared = linear_attention.weights(scores, below, visible, rounding)
    carried = bounds.matmul(weights, given(v), rounding)
    error = bounds.quadrature(carried.error, shared * np.abs(carried.value))

    def context(q, k, excess=1.0):
        products = _features(q) @ _features(k).T * visible
        return products @ v / (products.sum(-1, keepdims=True) * excess)

    np.testing.assert_allclose(carried.value, context(q, k), rtol=1e-12)
    for _ in range(300):
        moves = (random.uniform(-1, 1, part.shape) * off for part, off in ((q, off_q), (k, off_k)))
        assert (
            np.abs(context(*(part + move for part, move in zip((q, k), moves, strict=True))) - carried.value) <= error
        ).all()
    if dtype == "float32":
        assert (np.abs(context(q, k, 1.001) - carried.value) > error).any()
