"""Layer: reference. Rotary site: cos and sin by position, and the rotation of queries and keys.

A member is a module that is called with position_ids (B, S), or (axes, B, S), and gives a ``Rotation``.
``ROTATIONS`` finds it by the encoding's kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from portpe import decays, length_laws
from portpe.axes import deal
from portpe.encodings import FixedRegime, Pairing, RotaryEncoding
from portpe.errors import SpecError
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.lookup import Lookup, Tables, on_host, table
from portpe.schedules import settled_scales
from portpe.tables import KEY, LONG, SHORT, TABLE_STEP, cos_sin, cos_sin_by_row, sides


class Rotation(NamedTuple):
    """cos and sin (B, S, width / 2) with magnitude and sign in them, and which channels they turn.

    ``by_members``: the members of a pair have angles of their own, (B, S, width), first members before second ones.
    ``pairing`` says where the members of a pair come from, ``written`` where they go; None: where they came from.
    ``blocks``: half pairing within each of so many equal parts of the width.
    """

    cos: Tensor
    sin: Tensor
    pairing: Pairing
    channels: Literal["first", "last"]
    by_members: bool = False
    written: Pairing | None = None
    blocks: int = 1


def rotate(
    x: Float[Tensor, "batch heads seq head_dim"], rotation: Rotation
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Turn pair (a, b) into (a cos - b sin, a sin + b cos) (Su 2021, equation 34); other channels pass.

    Products and sums are formed in float32 at least and rounded to x's type once: a difference of two products
    that were each rounded to bfloat16 would lose most of its digits wherever the two nearly cancel.
    """
    accumulate = accumulation_dtype(x.dtype)
    cos, sin = (table.unsqueeze(1).to(accumulate) for table in (rotation.cos, rotation.sin))
    width = cos.shape[-1] if rotation.by_members else 2 * cos.shape[-1]
    (cos_a, cos_b), (sin_a, sin_b) = (_members(part, width // 2) for part in (cos, sin))
    start = 0 if rotation.channels == "first" else x.shape[-1] - width
    turned = x[..., start : start + width].to(accumulate)
    if rotation.pairing == "half":
        rows, blocks, each = turned.shape[:-1], rotation.blocks, width // 2 // rotation.blocks
        a, b = (part.flatten(-2) for part in turned.reshape(*rows, blocks, 2, each).unbind(-2))
    else:
        a, b = turned.reshape(*turned.shape[:-1], width // 2, 2).unbind(-1)
    pairs = (a * cos_a - b * sin_a, a * sin_b + b * cos_b)
    written = rotation.written or rotation.pairing
    if written == "half":
        halves = [part.reshape(*part.shape[:-1], rotation.blocks, -1) for part in pairs]
        turned = torch.stack(halves, dim=-2).flatten(-3)
    else:
        turned = torch.stack(pairs, dim=-1).flatten(-2)
    return torch.cat((x[..., :start], turned.to(x.dtype), x[..., start + width :]), dim=-1)


def _members(part: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """What the first and the second members of the pairs take."""
    return (part, part) if part.shape[-1] == pairs else (part[..., :pairs], part[..., pairs:])


class Rotary(nn.Module):
    """Rotary embedding (Su 2021) of any schedule.

    Without tables cos and sin are made from the positions, exact in float64 (or as transformers makes them, for
    precision ``hf``); with tables they are looked up. Either way they are rounded to the block's type once.
    """

    def __init__(self, encoding: RotaryEncoding, tables: Tables | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.encoding = encoding
        self.dtype = dtype
        self.by_length = encoding.schedule.length_dependent and not isinstance(encoding.regime, FixedRegime)
        if self.by_length and not encoding.defers_rotation and tables is not None:
            raise SpecError(
                f"rotary.regime is required for tables of a {encoding.schedule.kind} schedule, whose frequencies "
                "follow the length, got None"
            )
        if encoding.log_scales is not None:
            settled_scales(encoding)
        given = tables is not None and encoding.coordinates == "index"
        self.in_torch = _in_torch(encoding, tables, accumulation_dtype(dtype)) if given and tables is not None else None
        self.keys_in_torch = self.in_torch
        if given and tables is not None and encoding.own_key_tables:
            decays.check(encoding, 0, len(table(tables, "cos_hi")) * TABLE_STEP - 1, str(dtype).rpartition(".")[2])
            self.keys_in_torch = PlainLookup(encoding, tables, accumulation_dtype(dtype), KEY)

    def forward(
        self,
        position_ids: Int[Tensor, "*axes batch seq"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        keys: bool = False,
    ) -> Rotation:
        """``lengths``: those of the batch rows, for a schedule that follows them. None: one for the whole batch, 1 +
        its largest position, as transformers has it. ``keys``: of keys, where they have tables of their own.
        """
        if self.by_length and lengths is None:
            lengths = (position_ids.max() + 1).expand(position_ids.shape[-2])
        looked_up = self.keys_in_torch if keys else self.in_torch
        if looked_up is not None:
            cos, sin = looked_up(position_ids, lengths)
        else:
            cos, sin = self._exact(position_ids, lengths, keys=keys)
        encoding = self.encoding
        if encoding.unturned_tokens:
            cos, sin = self._but_for_the_unturned(cos, 1.0), self._but_for_the_unturned(sin, 0.0)
        return Rotation(
            cos.to(self.dtype),
            sin.to(self.dtype),
            encoding.pairing,
            encoding.channels,
            encoding.angles_of_pairs == 2,
            encoding.written,
            encoding.blocks,
        )

    def _but_for_the_unturned(self, part: Tensor, value: float) -> Tensor:
        """(B, S, columns) with ``value`` in the rows of the first and the last tokens that are not turned."""
        row = torch.arange(part.shape[1], device=part.device)[:, None]
        stays = (row < self.encoding.prefix_tokens) | (row >= part.shape[1] - self.encoding.suffix_tokens)
        return torch.where(stays, value, part)

    def _exact(self, position_ids: Tensor, lengths: Tensor | None, *, keys: bool) -> tuple[Tensor, Tensor]:
        positions = on_host(position_ids)
        if positions.size:
            decays.check(self.encoding, int(positions.min()), int(positions.max()), str(self.dtype).rpartition(".")[2])
        if self.encoding.defers_rotation and lengths is not None:
            cos, sin = cos_sin_by_row(self.encoding, positions, lengths.cpu().numpy())
        else:
            cos, sin = cos_sin(self.encoding, positions, None if lengths is None else int(lengths[0]), keys=keys)
        return torch.from_numpy(cos).to(position_ids.device), torch.from_numpy(sin).to(position_ids.device)


def _in_torch(encoding: RotaryEncoding, tables: Tables, dtype: torch.dtype) -> nn.Module:
    """What gives cos and sin (B, S, pairs) of positions and lengths without leaving torch."""
    if not sides(encoding):
        return FollowingAngles(encoding)
    if encoding.defers_rotation:
        return SwitchedLookup(encoding, tables, dtype)
    return PlainLookup(encoding, tables, dtype)


class PlainLookup(nn.Module):
    """One table set, whatever the length; of several coordinates each column takes its own."""

    def __init__(self, encoding: RotaryEncoding, tables: Tables, dtype: torch.dtype, prefix: str = "") -> None:
        super().__init__()
        self.lookup = Lookup(tables, prefix=prefix.rstrip("_"), dtype=dtype)
        self.one_hot = None if encoding.axes is None else to_torch(deal(encoding).one_hot)[:, None, None]

    def forward(self, position_ids: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        cos, sin = self.lookup.cos_sin(position_ids)
        if self.one_hot is not None:  # one term of each sum is the column's own, the others are 0
            cos, sin = ((part * self.one_hot.to(part)).sum(0) for part in (cos, sin))
        return cos, sin


class SwitchedLookup(nn.Module):
    """The table set of one side or the other, by the length of each batch row."""

    def __init__(self, encoding: RotaryEncoding, tables: Tables, dtype: torch.dtype) -> None:
        super().__init__()
        self.last_short = sides(encoding)[SHORT] or 0
        self.short, self.long = (Lookup(tables, prefix=prefix.rstrip("_"), dtype=dtype) for prefix in (SHORT, LONG))

    def forward(self, position_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        is_long = (lengths > self.last_short)[:, None, None]
        both = zip(self.long.cos_sin(position_ids), self.short.cos_sin(position_ids), strict=True)
        cos, sin = (torch.where(is_long, long, short) for long, short in both)
        return cos, sin


class FollowingAngles(nn.Module):
    """Angles of a law that follows every token, formed in float64 (see ``portpe.length_laws``)."""

    def __init__(self, encoding: RotaryEncoding) -> None:
        super().__init__()
        self.encoding, self.law = encoding, length_laws.of(encoding)
        for name in ("theta", "exponents", "kept", "stretched"):
            if hasattr(self.law, name):
                self.register_buffer(name, to_torch(getattr(self.law, name)), persistent=False)

    def forward(self, position_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        ratio = (lengths.double() / self.law.trained)[:, None]
        magnitude = torch.full_like(ratio, self.encoding.magnitude)
        if isinstance(self.law, length_laws.Rebased):
            stretch = (self.law.factor * ratio - (self.law.factor - 1)).clamp(min=1.0)
            frequencies = self.get_buffer("theta") * torch.exp(self.get_buffer("exponents") * torch.log(stretch))
        else:
            factor = ratio.clamp(min=1.0)
            frequencies = self.get_buffer("kept") + self.get_buffer("stretched") / factor
            magnitude = magnitude * (0.1 * torch.log(factor) + 1.0)
        angles = position_ids[..., None].double() * frequencies[:, None]
        magnitude = magnitude[:, None]
        return torch.cos(angles) * magnitude, torch.sin(angles) * (self.encoding.sign * magnitude)


ROTATIONS: dict[str, Callable[..., nn.Module]] = {"rotary": Rotary}
