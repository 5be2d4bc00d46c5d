"""Comparison: each element against its own bound, and what cannot be compared is a failure."""

import numpy as np
import pytest

from portpe.parity.compare import broken, compared, problem_of

POSITIONS = np.array([7, 3, 5])
TRUTH = np.array([[1.0, 2.0], [4.0, 8.0], [0.0, 1.0]])


def _compared(actual, error, dtype="float32"):
    return compared("q", np.asarray(actual, np.float64), TRUTH, np.broadcast_to(error, TRUTH.shape), POSITIONS, dtype)


def test_equal_arrays():
    found = _compared(TRUTH, 1e-6)
    assert (found.passed, found.max_abs, found.max_ulp, found.first_position) == (True, 0.0, 0.0, None)
    assert found.bound == 1e-6


def test_error_and_bound_are_shown_so_that_they_compare():
    """Errors 0.02 of 0.1 and 0.3 of 0.5: the worst uses 60 % of its bound, and so do the two numbers."""
    actual, error = TRUTH.copy(), np.full_like(TRUTH, 0.1)
    actual[0, 0] += 0.02
    actual[1, 1] -= 0.3
    error[1, 1] = 0.5
    found = _compared(actual, error)
    assert found.passed
    np.testing.assert_allclose([found.max_abs, found.bound], [0.3, 0.5], rtol=1e-12)


def test_an_element_over_its_own_bound_fails_although_another_bound_is_wider():
    actual, error = TRUTH.copy(), np.full_like(TRUTH, 10.0)
    actual[2, 0] += 0.5
    error[2, 0] = 0.1
    found = _compared(actual, error)
    assert not found.passed
    assert found.first_position == 5
    assert found.max_abs > found.bound
    np.testing.assert_allclose([found.max_abs, found.bound], [0.5, 0.1], rtol=1e-12)


def test_the_lowest_position_is_named_not_the_first_row():
    found = _compared(TRUTH + 1, 0.1)
    assert found.first_position == 3


def test_no_bound_is_equality():
    assert _compared(TRUTH, 0.0).passed
    found = _compared(TRUTH + 1e-9, 0.0)
    assert not found.passed
    assert found.bound == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails(bad):
    actual = TRUTH.copy()
    actual[0, 1] = bad
    found = _compared(actual, 1e9)
    assert not found.passed
    assert (found.problem, found.first_position) == ("it has NaN or infinity", 7)


@pytest.mark.parametrize("where", ["truth", "bound"])
def test_a_truth_or_bound_that_is_no_number_passes_nothing(where):
    truth, error = TRUTH.copy(), np.full_like(TRUTH, 1e9)
    (truth if where == "truth" else error)[0, 1] = np.nan
    found = compared("q", TRUTH + 1, truth, error, POSITIONS, "float32")
    assert not found.passed
    assert found.first_position == 7


@pytest.mark.parametrize(("dtype", "step"), [("float32", 2.0**-23), ("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_ulps_are_of_the_tensors_own_type(dtype, step):
    """Three steps at 4 (a step there is four times that at 1)."""
    actual = TRUTH.copy()
    actual[1, 0] += 3 * 4 * step
    np.testing.assert_allclose(_compared(actual, 100.0, dtype).max_ulp, 3.0, rtol=1e-9)


def test_ulps_have_a_floor_at_a_thousandth_of_the_largest():
    """At a truth of 0, a step counts as at 8 / 1024."""
    actual = TRUTH.copy()
    actual[2, 0] = 2.0**-7 * 2.0**-23
    np.testing.assert_allclose(_compared(actual, 100.0).max_ulp, 1.0, rtol=1e-9)


def test_shape_and_type_are_compared_first():
    array = np.zeros((2, 3), np.float32)
    assert problem_of(array, (2, 3), ("float32",)) is None
    assert problem_of(array, (2, 3), ("bfloat16", "float32")) is None
    assert problem_of(array, (3, 2), ("float32",)) == "shape must be (3, 2), got (2, 3)"
    assert problem_of(array, (2, 3), ("float16",)) == "type must be float16, got float32"
    assert problem_of(None, (2, 3), ("float16",)) == "it is missing"
    assert not broken("q", "it is missing").passed
