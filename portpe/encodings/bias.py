"""Bias site: encodings that are added to the scores, and to what the probabilities weigh."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.functions import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.encodings.gated import ForgetEncoding
from portpe.encodings.grid import GridNetworkEncoding, GridTableEncoding
from portpe.encodings.parts import BiasPart, Flag, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.encodings.relative import CopeEncoding, DebertaEncoding, ShawEncoding, TransformerXlEncoding
from portpe.errors import SpecError


class AlibiEncoding(BiasPart):
    """Slope times distance, added to the scores (Press 2021).

    ``symmetric`` False: -m (i - j), the causal form, equal to m * j up to a constant of the
    row; True: -m |i - j|. ``bias_max`` is MPT's alibi_bias_max (Press: 8): the slopes of n
    heads, n a power of two, are 2 ** (-bias_max * h / n). ``scale`` multiplies the product
    (Falcon: 1 / sqrt(head_dim)). ``contract`` names whose code ``precision`` ``hf`` follows.
    """

    kind: Literal["alibi"] = "alibi"
    bias_max: PositiveReal = 8.0
    symmetric: Flag = False
    scale: PositiveReal = 1.0
    precision: Literal["exact", "hf"] = "exact"
    contract: Literal["paper", "bloom", "mpt", "falcon"] = "paper"


class BucketsEncoding(BiasPart):
    """A trained number for each bucket of distances and head (T5, Raffel 2019, section 2.1 and its released code).

    Of n buckets for one direction the first n // 2 hold one distance each; the others grow as a logarithm up to
    ``max_distance``, and the last holds all distances from there on. ``bidirectional``: keys after the query have
    buckets of their own, the second half of ``num_buckets``; else they share that of distance 0.
    """

    kind: Literal["buckets"] = "buckets"
    num_buckets: PositiveInt = 32
    max_distance: PositiveInt = 128
    bidirectional: Flag = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least = 4 if self.bidirectional else 2
        if self.num_buckets < least:
            direction = "bidirectional buckets" if self.bidirectional else "buckets"
            raise SpecError(f"num_buckets must be >= {least} for {direction}, got {self.num_buckets}")
        if self.max_distance <= self.exact:
            rule = f"> {self.exact}, the distances with a bucket of their own"
            raise SpecError(f"max_distance must be {rule}, got {self.max_distance}")
        return self

    @property
    def per_direction(self) -> int:
        """How many buckets a direction has."""
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    @property
    def exact(self) -> int:
        """How many buckets hold one distance each."""
        return self.per_direction // 2

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {"relative_attention_bias.weight": (self.num_buckets, layer.num_heads)}


BiasEncoding = Annotated[
    AlibiEncoding
    | BucketsEncoding
    | CopeEncoding
    | DebertaEncoding
    | FireEncoding
    | ForgetEncoding
    | GridNetworkEncoding
    | GridTableEncoding
    | KerpleEncoding
    | SandwichEncoding
    | ShawEncoding
    | TransformerXlEncoding,
    Field(discriminator="kind"),
]
