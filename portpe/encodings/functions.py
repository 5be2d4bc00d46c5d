"""Bias site: functions of the distance, with trained numbers or with none."""

from __future__ import annotations

from typing import Literal

from portpe.encodings.embedding import SinusoidalEncoding
from portpe.encodings.parts import BiasPart, NonNegativeReal, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.errors import SpecError


class KerpleEncoding(BiasPart):
    """A conditionally positive definite kernel of the distance d = |i - j| (Chi 2022a, section 4).

    ``logarithmic``: -r1 log(1 + r2 d); ``power``: -r1 d^r2. The trained tensors ``kerple_r1`` and ``kerple_r2``
    (heads,) hold r1 and r2 as they enter the formula: positive, r2 of the power at most 2.
    """

    kind: Literal["kerple"] = "kerple"
    form: Literal["logarithmic", "power"] = "logarithmic"

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {"kerple_r1": (layer.num_heads,), "kerple_r2": (layer.num_heads,)}


class FireEncoding(BiasPart):
    """A small network of the distance over the query's own position (Li 2023, section 3.3 and its released code).

    x = log(c |i - j| + 1) / (log(c max(i, L) + 1) + ``epsilon``), with i the query's position, counted from 0; the bias
    of all heads is W2 relu(W1 x + b1) + b2, ``width`` numbers between. The trained tensors ``fire_c`` and
    ``fire_threshold`` (1,) hold c and L (the released code's L_multiplier * init_L), of which the size counts. The
    paper has no epsilon.
    """

    kind: Literal["fire"] = "fire"
    width: PositiveInt = 32
    epsilon: NonNegativeReal = 1e-6

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {
            "fire_c": (1,),
            "fire_threshold": (1,),
            "fire_in.weight": (self.width, 1),
            "fire_in.bias": (self.width,),
            "fire_out.weight": (layer.num_heads, self.width),
            "fire_out.bias": (layer.num_heads,),
        }


class SandwichEncoding(BiasPart):
    """The product of the two tokens' sinusoids, wider from head to head (Chi 2022b, section 4).

    8 h / H times the sum over k = 0 .. width / 2 - 1 of cos((i - j) / ``base``^(2k / width)), for head h = 1 .. H: the
    sinusoids are Vaswani's, which have k from 0. Nothing is trained.
    """

    kind: Literal["sandwich"] = "sandwich"
    width: PositiveInt = 128
    base: PositiveReal = 10000.0

    def check_layer(self, layer: Sizes) -> None:  # noqa: ARG002
        if self.width % 2:
            raise SpecError(f"width must be even for a sandwich bias, got {self.width}")

    @property
    def wave(self) -> SinusoidalEncoding:
        """The sinusoid of a position."""
        return SinusoidalEncoding(width=self.width, order="sin_cos", base=self.base)

    def sinusoid(self, layer: Sizes) -> SinusoidalEncoding:  # noqa: ARG002
        return self.wave
