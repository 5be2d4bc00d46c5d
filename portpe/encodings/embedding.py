"""Embedding site: encodings that are added to the hidden states."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.parts import Encoding, Flag, NonNegativeInt, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.errors import SpecError


class EmbeddingPart(Encoding):
    """An encoding of the embedding site.

    ``whole_sequence``: what one token gets depends on the positions of all, so a sequence comes in one call.
    """

    whole_sequence: ClassVar[bool] = False

    @property
    def position_end(self) -> int | None:
        """The first position past the model's own table; None where it has no end."""
        return None

    def check_layer(self, layer: Sizes) -> None:
        if self.whole_sequence and layer.causal:
            raise SpecError("embedding needs causal false where it takes a sequence as a whole, got true")


class SinusoidalEncoding(EmbeddingPart):
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
    def position_end(self) -> int | None:
        return None if self.rows is None else self.rows - self.offset

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


class LearnedEncoding(EmbeddingPart):
    """A trained table, looked up and added; no row beyond it exists (BERT, GPT-2).

    Token position p reads row p + ``offset``; the last legal position is rows - offset - 1.
    The tensor is ``position_embedding.weight`` (rows, width).
    """

    kind: Literal["learned"] = "learned"
    rows: PositiveInt
    width: PositiveInt
    offset: NonNegativeInt = 0

    @property
    def position_end(self) -> int | None:
        return self.rows - self.offset

    @property
    def table_shape(self) -> tuple[int, int]:
        return self.rows, self.width

    def weight_shapes(self, layer: Sizes) -> Shapes:  # noqa: ARG002 - it is as wide as the hidden states
        return {"position_embedding.weight": self.table_shape}

    @model_validator(mode="after")
    def _has_a_row(self) -> Self:
        if self.rows <= self.offset:
            raise SpecError(f"rows must be > offset = {self.offset}, got {self.rows}")
        return self


class LearnedGridEncoding(EmbeddingPart):
    """A trained table over a grid of patches, resized to the grid that an image has (ViT, SigLIP 2, NaViT).

    Positions are (row, column). An image's own grid is (largest row + 1, largest column + 1) of its sequence; where it
    differs from ``grid`` (rows, columns), the table is resampled as torch's interpolate does: ``bicubic`` (a = -0.75,
    with ``antialias`` -0.5), ``bilinear``, or ``nearest``: patch p of n reads row floor(p * rows / n), as NaViT's
    fractional coordinates do. ``align_corners`` lays the outermost centres on each other. ``square``: the image counts
    as a square of its longer side, of which it is the upper left part (RADIO).

    The first ``prefix_tokens`` of a sequence take the table's first rows, one each, whatever their positions;
    ``plain_tokens`` after them get nothing (registers). Both have position (0, 0). The tensor is
    ``position_embedding.weight`` (prefix_tokens + rows * columns, width), the grid row by row.
    """

    whole_sequence: ClassVar[bool] = True

    kind: Literal["learned_grid"] = "learned_grid"
    grid: tuple[PositiveInt, PositiveInt]
    width: PositiveInt
    prefix_tokens: NonNegativeInt = 0
    plain_tokens: NonNegativeInt = 0
    resize: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    antialias: Flag = False
    align_corners: Flag = False
    square: Flag = False

    @property
    def position_axes(self) -> int:
        return 2

    @property
    def table_shape(self) -> tuple[int, int]:
        rows, columns = self.grid
        return self.prefix_tokens + rows * columns, self.width

    def weight_shapes(self, layer: Sizes) -> Shapes:  # noqa: ARG002 - it is as wide as the hidden states
        return {"position_embedding.weight": self.table_shape}

    @model_validator(mode="after")
    def _one_way_to_resample(self) -> Self:
        if self.antialias and self.align_corners:
            raise SpecError("align_corners must be false with antialias, got true")
        for name in ("antialias", "align_corners"):
            if self.resize == "nearest" and getattr(self, name):
                raise SpecError(f"{name} must be false with resize nearest, got true")
        return self


class LearnedAxesEncoding(EmbeddingPart):
    """A trained table for rows and one for columns, whose rows are added up (Pix2Struct, Lee 2022, section 2.2).

    Axis n has the table ``position_embedding.axis_n.weight`` (its rows, width), of which coordinate p reads row p +
    ``offset``; it ends with it.
    """

    kind: Literal["learned_axes"] = "learned_axes"
    rows: Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=2)]
    width: PositiveInt
    offset: NonNegativeInt = 0

    @model_validator(mode="after")
    def _has_a_row(self) -> Self:
        if min(self.rows) <= self.offset:
            raise SpecError(f"rows must be > offset = {self.offset}, got {self.rows}")
        return self

    @property
    def position_axes(self) -> int:
        return len(self.rows)

    @property
    def position_ends(self) -> tuple[int, ...]:
        return tuple(rows - self.offset for rows in self.rows)

    def weight_shapes(self, layer: Sizes) -> Shapes:  # noqa: ARG002 - they are as wide as the hidden states
        return {f"position_embedding.axis_{axis}.weight": (rows, self.width) for axis, rows in enumerate(self.rows)}


class SinusoidalGridEncoding(EmbeddingPart):
    """Sinusoids of both coordinates of a patch, one half of the channels each (DETR, ViT-MAE, AIMv2).

    Each half is the paper's sinusoid of width / 2: base ** (-4i / width), in ``order``; ``first`` says whose half comes
    first. ``normalize``: a coordinate p of an image with n along the axis becomes 2 pi (p + 1) / (n + 1e-6) (DETR), or
    2 pi (p + 1/2) / (n + 1e-6) where ``centred`` (Deformable DETR). The first ``plain_tokens`` of a sequence get
    nothing: class tokens, at position (0, 0).
    """

    whole_sequence: ClassVar[bool] = True

    kind: Literal["sinusoidal_grid"] = "sinusoidal_grid"
    width: PositiveInt
    order: Literal["interleaved", "sin_cos"] = "interleaved"
    first: Literal["row", "column"] = "row"
    base: PositiveReal = 10000.0
    normalize: Flag = False
    centred: Flag = False
    plain_tokens: NonNegativeInt = 0

    @property
    def position_axes(self) -> int:
        return 2

    @property
    def half(self) -> SinusoidalEncoding:
        """The encoding of one coordinate."""
        return SinusoidalEncoding(width=self.width // 2, order=self.order, base=self.base)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % 4:
            raise SpecError(f"width must be a multiple of 4, got {self.width}")
        if self.centred and not self.normalize:
            raise SpecError("centred needs normalize true, got false")
        return self


EmbeddingEncoding = Annotated[
    SinusoidalEncoding | LearnedAxesEncoding | LearnedEncoding | LearnedGridEncoding | SinusoidalGridEncoding,
    Field(discriminator="kind"),
]
