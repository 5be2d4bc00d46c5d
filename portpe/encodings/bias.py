"""Bias site: encodings that are added to the scores, and to what the probabilities weigh."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from portpe.encodings.buckets import AxisBucketsEncoding, BucketsEncoding, GatedBucketsEncoding
from portpe.encodings.functions import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.encodings.gated import ForgetEncoding
from portpe.encodings.grid import GridNetworkEncoding, GridTableEncoding, GridVectorsEncoding
from portpe.encodings.parts import BiasPart, Flag, PositiveReal
from portpe.encodings.relative import (
    CopeEncoding,
    DebertaEncoding,
    DistanceBankEncoding,
    ShawEncoding,
    TransformerXlEncoding,
)


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


BiasEncoding = Annotated[
    AlibiEncoding
    | AxisBucketsEncoding
    | BucketsEncoding
    | CopeEncoding
    | DebertaEncoding
    | DistanceBankEncoding
    | FireEncoding
    | ForgetEncoding
    | GatedBucketsEncoding
    | GridNetworkEncoding
    | GridTableEncoding
    | GridVectorsEncoding
    | KerpleEncoding
    | SandwichEncoding
    | ShawEncoding
    | TransformerXlEncoding,
    Field(discriminator="kind"),
]
