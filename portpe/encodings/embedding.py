"""Embedding site: encodings that are added to the hidden states."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.parts import Encoding, NonNegativeInt, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.errors import SpecError


class SinusoidalEncoding(Encoding):
    """Sines and cosines added to the embeddings (Vaswani 2017, section 3.5).

    Frequencies base ** (-i / n), i = 0..d/2-1, with n = d/2 (``half``) or d/2 - 1
    (``half_minus_one``, tensor2tensor and fairseq). ``order``: ``interleaved`` sin, cos,
    sin, cos ...; ``sin_cos`` and ``cos_sin`` in halves. ``scale`` multiplies them. ``offset`` is
    added to the position. ``rows`` is the length of the table where the model has one, else None.

    An odd width with ``half`` ends with one more sine than cosines (XLM, Marian); with
    ``half_minus_one`` its last channel is 0 (fairseq). ``contract`` ``ctrl``: with ``precision``
    ``hf``, angles are formed in float32 as CTRL does where others of its kind take float64.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    width: PositiveInt
    order: Literal["interleaved", "sin_cos", "cos_sin"] = "interleaved"
    denominator: Literal["half", "half_minus_one"] = "half"
    base: PositiveReal = 10000.0
    scale: PositiveReal = 1.0
    offset: NonNegativeInt = 0
    rows: PositiveInt | None = None
    precision: Literal["exact", "hf"] = "exact"
    contract: Literal["paper", "ctrl"] = "paper"

    @property
    def frequencies(self) -> int:
        """How many there are."""
        return (self.width + (self.denominator == "half")) // 2

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        odd = {"half": ("interleaved", "sin_cos"), "half_minus_one": ("sin_cos", "cos_sin")}[self.denominator]
        if self.width % 2 and self.order not in odd:
            raise SpecError(f"width must be even for order {self.order} with {self.denominator}, got {self.width}")
        if self.denominator == "half_minus_one" and self.width < 4:
            raise SpecError(f"width must be >= 4 for denominator half_minus_one, got {self.width}")
        if self.rows is not None and self.rows <= self.offset:
            raise SpecError(f"rows must be > offset = {self.offset}, got {self.rows}")
        return self


class LearnedEncoding(Encoding):
    """A trained table, looked up and added; no row beyond it exists (BERT, GPT-2).

    Token position p reads row p + ``offset``; the last legal position is rows - offset - 1.
    The tensor is ``position_embedding.weight`` (rows, width).
    """

    kind: Literal["learned"] = "learned"
    rows: PositiveInt
    width: PositiveInt
    offset: NonNegativeInt = 0

    def weight_shapes(self, layer: Sizes) -> Shapes:  # noqa: ARG002 - it is as wide as the hidden states
        return {"position_embedding.weight": (self.rows, self.width)}

    @model_validator(mode="after")
    def _has_a_row(self) -> Self:
        if self.rows <= self.offset:
            raise SpecError(f"rows must be > offset = {self.offset}, got {self.rows}")
        return self


EmbeddingEncoding = Annotated[SinusoidalEncoding | LearnedEncoding, Field(discriminator="kind")]
