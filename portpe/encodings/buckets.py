"""Bias site: a trained number for each bucket of distances, along the text or along several axes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.parts import BiasPart, Flag, Part, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.errors import SpecError


class DistanceBuckets(Part):
    """Which bucket a distance falls into (T5, Raffel 2019, section 2.1 and its released code).

    Of n buckets for one direction the first n // 2 hold one distance each; the others grow as a logarithm up to
    ``max_distance``, and the last holds all distances from there on. ``bidirectional``: keys after the query have
    buckets of their own, the second half of ``num_buckets``; else they share that of distance 0.
    """

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


class BucketsEncoding(DistanceBuckets, BiasPart):
    """A trained number for each bucket of distances and head (T5). ``scale`` multiplies it."""

    kind: Literal["buckets"] = "buckets"
    scale: PositiveReal = 1.0

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {"relative_attention_bias.weight": (self.num_buckets, layer.num_heads)}


class GatedBucketsEncoding(DistanceBuckets, BiasPart):
    """Buckets whose number a gate of the query's own hidden state multiplies (Chi 2021, XLM-E; WavLM, Chen 2022).

    Head h of what q_proj sees, hidden / heads channels, gives eight numbers through one matrix that all heads share; a
    and b are the sigmoids of the sums of the first and of the last four, and the trained number is multiplied by
    a (b c_h - 1) + 2. The matrix is ``relative_gate.weight`` (8, hidden / heads) with ``relative_gate.bias`` (8,), c is
    ``relative_gate_scale`` (heads,).
    """

    kind: Literal["gated_buckets"] = "gated_buckets"

    def check_layer(self, layer: Sizes) -> None:
        if layer.hidden_size % layer.num_heads:
            raise SpecError(
                f"hidden_size must be a multiple of num_heads = {layer.num_heads} for gated buckets, "
                f"got {layer.hidden_size}"
            )

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {
            "relative_attention_bias.weight": (self.num_buckets, layer.num_heads),
            "relative_gate.weight": (8, layer.hidden_size // layer.num_heads),
            "relative_gate.bias": (8,),
            "relative_gate_scale": (layer.num_heads,),
        }


class AxisBucketsEncoding(BiasPart):
    """Buckets of distances along every axis of a position, one table an axis (LayoutLMv2, Xu 2021, section 2.2).

    The bias is the sum over the axes of the trained number for the bucket of key minus query, times ``scale``. Axis n
    has the table ``axis_bias_n.weight`` (its num_buckets, heads).
    """

    kind: Literal["axis_buckets"] = "axis_buckets"
    axes: Annotated[tuple[DistanceBuckets, ...], Field(min_length=2)]
    scale: PositiveReal = 1.0

    @property
    def position_axes(self) -> int:
        return len(self.axes)

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {
            f"axis_bias_{axis}.weight": (buckets.num_buckets, layer.num_heads) for axis, buckets in enumerate(self.axes)
        }
