"""How far a runtime may be from the truth: the one place where tolerances are made.

A value is carried with the error that a correct runtime of a type may have there: ``Estimate``. Each step of the
block adds the error of its own rounding to what it was given. Given a runtime's own numbers (error 0), the result is
the bound of one stage judged alone; given the case's inputs, it is the bound of the whole block.

The model of rounding, per element:

* storing in the type: ``C * u * |value|``, u half a unit in the last place of the type at 1;
* a sum of n terms, accumulated in float32 at least: ``LAMBDA * sqrt(n) * u32 * max(|sum|, rss(terms))``, rss the
  root of the sum of squares. Rounding errors of a sum are u32 times its partial sums; these grow to the sum
  itself or, where signs cancel, to the rss. The factor LAMBDA sqrt(n) is that of the probabilistic analysis of
  Higham and Mary (2019, "A new approach to probabilistic rounding error analysis", theorem 2.4), with the usual size
  of the partial sums in place of their worst case, sum |terms|. So a bound of a sum is never above
  ``u * (C + LAMBDA * sqrt(n)) * sum |terms|`` with the type's own u; a softmax's denominator has a wider one;
* terms that were themselves rounded to the type on the way: ``LAMBDA / sqrt(3) * u * rss(terms)``, for the 16-bit types
  (in float32 the sum's own error covers it);
* errors from earlier steps are independent and add as squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Exact = NDArray[np.float64]

C = 4.0  # roundings of one stored value: the value, its factors, an intermediate
LAMBDA = 6.0  # standard deviations
ACTIVATION_BLOCK = 32  # inputs that share a scale where an operator rounds activations to 8 bits: MatMulNBits
TANH = 6.0  # float32 units that tanh itself may be off by: ONNX Runtime's is by 4.4 where it saturates
ACTIVATION = 4.0  # float32 units that a sigmoid, or a softplus below 1, may be off by: ONNX Runtime's sigmoid is by 2.8
CENTRED = 4 * 2 * math.pi * 2.0**-24  # of a cos or sin whose angle, at most 2 pi, is formed in float32
TABLE = 2e-7  # error of a cos or sin from two float32 levels, times max(1, attention factor)
SCALED_TABLE = 2.4e-7  # the same where each level has scales of a decay, in units of a pair's own scale
ANGLE = 2.0**-48  # relative error of an angle formed in float64 from a length: a power, a product, 32 half units in all


@dataclass(frozen=True)
class Rounding:
    """A type's arithmetic: ``unit`` of storing, ``sum_unit`` of accumulating, ``tiny`` the step near zero."""

    dtype: str
    unit: float
    sum_unit: float
    tiny: float

    @property
    def term_unit(self) -> float:
        """Of terms that pass through the type before they are summed: 0 where the sum's own error covers it."""
        return 0.0 if self.unit <= self.sum_unit else LAMBDA / math.sqrt(3) * self.unit


_U32 = 2.0**-24
ROUNDINGS = {
    "float32": Rounding("float32", _U32, _U32, 2.0**-126),
    "float16": Rounding("float16", 2.0**-11, _U32, 2.0**-24),
    "bfloat16": Rounding("bfloat16", 2.0**-8, _U32, 2.0**-126),
}


@dataclass(frozen=True)
class Estimate:
    """A value and the error that a correct runtime may have in it, elementwise and both float64."""

    value: Exact
    error: Exact

    def __getitem__(self, index: Any) -> Estimate:
        return Estimate(self.value[index], self.error[index])

    def reshape(self, *shape: int) -> Estimate:
        return Estimate(self.value.reshape(shape), self.error.reshape(shape))

    def swapaxes(self, first: int, second: int) -> Estimate:
        return Estimate(self.value.swapaxes(first, second), self.error.swapaxes(first, second))


def given(array: NDArray[np.generic]) -> Estimate:
    """Numbers that need no tolerance: inputs, weights as the type holds them, or what a runtime itself computed."""
    value = array.astype(np.float64)
    return Estimate(value, np.zeros_like(value))


def joined(first: Estimate, second: Estimate, axis: int) -> Estimate:
    """Two estimates one after the other along an axis."""
    return Estimate(
        np.concatenate([first.value, second.value], axis), np.concatenate([first.error, second.error], axis)
    )


def stacked(parts: Sequence[Estimate]) -> Estimate:
    """Estimates of one shape, along a new first axis."""
    return Estimate(np.stack([part.value for part in parts]), np.stack([part.error for part in parts]))


def quadrature(*errors: Exact) -> Exact:
    """Independent errors together: the root of the sum of their squares."""
    total = np.square(errors[0])
    for error in errors[1:]:
        total = total + np.square(error)
    return np.asarray(np.sqrt(total))


def stored(magnitude: Exact, rounding: Rounding) -> Exact:
    """The error of storing something of this magnitude."""
    return C * rounding.unit * np.abs(magnitude) + rounding.tiny


def summed(total: Exact, rss: Exact, terms: int, rounding: Rounding) -> Exact:
    """The error of a stored sum of ``terms`` terms whose root sum of squares is ``rss``."""
    own = LAMBDA * math.sqrt(terms) * rounding.sum_unit * np.maximum(np.abs(total), rss)
    return own + rounding.term_unit * rss + stored(total, rounding)


def product(x: Estimate, weight: Exact, squares: NDArray[Any], rounding: Rounding) -> Estimate:
    """The product x @ weight.T for exact weights (out, in); ``squares`` are the weights' squares, in any type."""
    total = x.value @ weight.T
    rss = np.sqrt(_product_of_squares(x.value, squares))
    error = summed(total, rss, weight.shape[1], rounding)
    if x.error.any():
        error = quadrature(error, np.sqrt(_product_of_squares(x.error, squares)))
    return Estimate(total, error)


def matmul(x: Estimate, y: Estimate, rounding: Rounding, scale: float = 1.0) -> Estimate:
    """The product x @ y * scale of two estimates, stored; ``scale`` may go to a factor or to the product."""
    total = x.value @ y.value * scale
    squares = np.square(y.value)
    rss = np.sqrt(np.square(x.value) @ squares) * scale
    error = summed(total, rss, x.value.shape[-1], rounding)
    if x.error.any() or y.error.any():
        carried = np.square(x.error) @ squares + np.square(x.value) @ np.square(y.error)
        error = quadrature(error, np.sqrt(carried) * scale)
    return Estimate(total, error)


def rounded_activations(x: Exact, squares: NDArray[Any]) -> Exact:
    """The error of x @ weight.T where an operator rounds x to 8 bits, each ``ACTIVATION_BLOCK`` inputs of a row alike.

    A step is the block's largest |x| / 127, and an error is uniform in it: variance step**2 / 12.
    """
    padded = np.pad(np.abs(x), ((0, 0), (0, -x.shape[1] % ACTIVATION_BLOCK)))
    steps = padded.reshape(len(x), -1, ACTIVATION_BLOCK).max(axis=-1) / 127
    each = np.repeat(steps / math.sqrt(12), ACTIVATION_BLOCK, axis=1)[:, : x.shape[1]]
    return np.asarray(LAMBDA * np.sqrt(_product_of_squares(each, squares)))


def _product_of_squares(x: Exact, squares: NDArray[Any]) -> Exact:
    """x**2 @ squares.T in the squares' own type: a bound needs three digits, not sixteen.

    Scaled, so that squares of small errors do not leave float32's range.
    """
    largest = float(np.abs(x).max(initial=0.0)) or 1.0
    scaled = np.square(x / largest).astype(squares.dtype)
    return np.asarray((scaled @ squares.T).astype(np.float64) * largest**2)


def softcap_error(total: Exact, error: Exact, cap: float, rounding: Rounding) -> Exact:
    """The error of cap * tanh(total / cap).

    That of ``total`` goes through tanh itself, not through its slope: it may reach from where tanh is flat to where
    it is steep.
    """
    bent = np.tanh(total / cap)
    reach = quadrature(error, stored(total, rounding))
    through = np.maximum(*(np.abs(np.tanh((total + side * reach) / cap) - bent) for side in (-1, 1)))
    own = TANH * _U32 * np.abs(bent) * cap
    return quadrature(cap * through, own, stored(cap * bent, rounding))


def activated(x: Exact, activation: Literal["sigmoid", "softplus"]) -> Exact:
    """What an output gate multiplies with."""
    return np.asarray((1 + np.tanh(x / 2)) / 2 if activation == "sigmoid" else np.logaddexp(0.0, x))


def gated(x: Estimate, gate: Estimate, activation: Literal["sigmoid", "softplus"], rounding: Rounding) -> Estimate:
    """The product x * activation(gate), stored. Both activations rise: an error of ``gate`` shows most at its ends."""
    factor = activated(gate.value, activation)
    through = np.maximum(*(np.abs(activated(gate.value + side * gate.error, activation) - factor) for side in (-1, 1)))
    own = ACTIVATION * _U32 * np.maximum(1.0, factor)
    value = x.value * factor
    return Estimate(value, quadrature(x.error * factor, x.value * quadrature(through, own), stored(value, rounding)))


def softmax_sum(keys: int) -> float:
    """The relative error of a softmax's denominator. All probabilities of a row share it: it does not cancel.

    A running sum of many small positive terms also loses what is below half of its last place, always downwards
    (mlx on the CPU adds 8194 of them one by one, and is off by 500 units); hence a share of n itself.
    """
    return (LAMBDA * math.sqrt(keys) + keys / 8) * _U32


def blocked_sum(terms: int, block: int) -> float:
    """The relative error of a sum of terms of one sign, added up in blocks and then over blocks; it drifts in each of
    the two as that of a softmax does.
    """
    within, over = min(terms, block), -(-terms // block)
    return math.hypot(softmax_sum(within), softmax_sum(over))


def softmax_error(probs: Exact, scores: Estimate, reach: Exact, keys: int, rounding: Rounding) -> Exact:
    """The error of softmax probabilities over the last axis.

    exp's argument s - max is rounded in float32, and exp takes multiples of ln 2 from it, so the relative error of a
    probability is twice u32 * (|s| + |max|), and that of the sum; ``reach`` is |s| + |max|. An error e of a score
    changes its own probability p by (1 - p) (exp(e) - 1) and, through the sum, that of the others by p (exp(e) - 1).
    """
    relative = _U32 * (C + 2 * reach) + softmax_sum(keys)
    own: Exact = probs * relative + stored(probs, rounding)
    if not scores.error.any():
        return own
    change = np.expm1(np.minimum(scores.error, 50.0))
    through_sum = np.square(probs * change)
    others = through_sum.sum(axis=-1, keepdims=True) - through_sum
    return quadrature(own, probs * np.sqrt(np.square((1 - probs) * change) + np.maximum(others, 0.0)))


def elu_plus_one(x: Exact) -> Exact:
    """The features of linear attention."""
    return np.asarray(np.exp(np.minimum(x, 0.0)) + np.maximum(x, 0.0))


def feature_error(x: Estimate) -> Exact:
    """The error of elu(x) + 1, formed in float32 as exp(min(x, 0)) + max(x, 0).

    exp is off by its argument's rounding as in ``softmax_error``. An error of ``x`` goes through the function itself,
    both ways: it is convex up to 0, and a slope would hide what a wide error does there.
    """
    value, low = elu_plus_one(x.value), np.minimum(x.value, 0.0)
    own: Exact = _U32 * (C + 2 * np.abs(low)) * np.exp(low) + stored(value, ROUNDINGS["float32"])
    if not x.error.any():
        return own
    through = np.maximum(*(np.abs(elu_plus_one(x.value + side * x.error) - value) for side in (-1, 1)))
    return quadrature(own, through)


def positive_sum_error(total: Exact, *terms: int) -> Exact:
    """The error of nested float32 sums of positive products, so many terms each, whichever stands inside.

    Nothing cancels, so each sum adds its relative error to the whole: that of a softmax's denominator.
    """
    relative = sum(softmax_sum(count) for count in terms) + C * _U32
    return total * relative + ROUNDINGS["float32"].tiny


def quotient_error(value: Exact, error: Exact, denominator: Estimate, rounding: Rounding) -> tuple[Exact, Exact]:
    """The error of ``value``, a quotient stored in the type, and the part of it that follows from the denominator.

    ``error`` is the numerator's, which may have any sign, so it counts as it is; the ``denominator`` is positive, and
    |n'/d' - n/d| <= (|n' - n| + |n/d| |d' - d|) / (d - |d' - d|). The second result is relative, |d' - d| over that:
    all quotients of a row share it, so in a sum of them it does not average out.
    """
    # Where its error reaches the denominator nothing is known: a bound that nothing exceeds, and whose square exists.
    least = np.maximum(denominator.value - denominator.error, denominator.value * 2.0**-200)
    shared = denominator.error / least
    return quadrature(error / least, value * shared, stored(value, rounding)), shared
