"""Bias site: a trained number for each way from one cell of a grid to another, as vision models have."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from portpe.encodings.parts import BiasPart, NonNegativeInt, PositiveInt, Shapes, Sizes
from portpe.errors import SpecError


class GridPart(BiasPart):
    """Base of biases over a grid of ``height`` rows and ``width`` columns; a position is (row, column).

    ``whole_sequence``: all cells come in one call, so a layer has no cache.
    """

    whole_sequence: ClassVar[bool] = True

    height: PositiveInt
    width: PositiveInt

    @property
    def position_axes(self) -> int:
        return 2

    def check_layer(self, layer: Sizes) -> None:
        if layer.causal:
            raise SpecError("bias over a grid needs causal false, got true")

    @property
    def position_ends(self) -> tuple[int, int]:
        return self.height, self.width


class GridTableEncoding(GridPart):
    """A table of offsets between cells, one number a head (Liu 2021, Swin, section 3.2).

    With dy and dx the query's row and column less the key's, ``signed`` offsets read row
    (dy + height - 1) * (2 * width - 1) + dx + width - 1; ``absolute`` ones, as in LeViT, |dy| * width + |dx|.
    ``prefix_tokens`` 1: the first token is no cell (BEiT's cls) and its position is 0; three rows at the table's end
    stand for it as a query, as a key, and as both.
    """

    kind: Literal["grid_table"] = "grid_table"
    offsets: Literal["signed", "absolute"] = "signed"
    prefix_tokens: NonNegativeInt = Field(default=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.prefix_tokens > 1 or (self.prefix_tokens and self.offsets == "absolute"):
            raise SpecError(
                f"prefix_tokens must be 0, or 1 with signed offsets, got {self.prefix_tokens} with {self.offsets}"
            )
        return self

    @property
    def cells(self) -> int:
        """How many rows of the table stand for offsets."""
        if self.offsets == "absolute":
            return self.height * self.width
        return (2 * self.height - 1) * (2 * self.width - 1)

    @property
    def rows(self) -> int:
        """How many the table has."""
        return self.cells + 3 * self.prefix_tokens

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {"relative_position_bias_table": (self.rows, layer.num_heads)}


class GridNetworkEncoding(GridPart):
    """A small network of the offset between cells (Liu 2022, Swin v2, section 3.3: log-spaced continuous bias).

    16 sigmoid(W2 relu(W1 x + b1)), x = (sign(y) log8(1 + |y|)) of both y = 8 dy / (``extent`` - 1): dy and dx are the
    query's row and column less the key's, and the extent that of the windows the network was trained on, by default
    the grid's own. ``units`` numbers between.
    """

    kind: Literal["grid_network"] = "grid_network"
    extent: tuple[PositiveInt, PositiveInt] | None = None
    units: PositiveInt = 512

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {
            "grid_in.weight": (self.units, 2),
            "grid_in.bias": (self.units,),
            "grid_out.weight": (layer.num_heads, self.units),
        }

    @property
    def offsets(self) -> GridTableEncoding:
        """Which row of a table of all offsets serves a pair of cells."""
        return GridTableEncoding(height=self.height, width=self.width)


class GridVectorsEncoding(GridPart):
    """A trained vector for each offset of rows and of columns, which meets the query (MViT v2, Li 2022, section 4.1).

    The score of query i and key j gets q_i . Kh[dy + height - 1] + q_i . Kw[dx + width - 1]: dy and dx are the query's
    row and column less the key's, and the products are not scaled. The heads share ``relative_height.weight``
    (2 height - 1, head_dim) and ``relative_width.weight`` (2 width - 1, head_dim). ``trained_on``: (rows, columns) of
    the grid that the tables belong to, by default the grid's own; others are resampled as torch's interpolate does,
    ``linear``, as ViTDet and SAM do for a picture of another size.
    """

    kind: Literal["grid_vectors"] = "grid_vectors"
    trained_on: tuple[PositiveInt, PositiveInt] | None = None

    @property
    def reads_queries(self) -> bool:
        return True

    @property
    def table_rows(self) -> tuple[int, int]:
        """How many rows the two tables have."""
        rows, columns = self.trained_on or self.position_ends
        return 2 * rows - 1, 2 * columns - 1

    def weight_shapes(self, layer: Sizes) -> Shapes:
        names = ("relative_height.weight", "relative_width.weight")
        return {name: (rows, layer.head_dim) for name, rows in zip(names, self.table_rows, strict=True)}
