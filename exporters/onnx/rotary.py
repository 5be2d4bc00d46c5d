"""Layer: exporters/onnx. Rotation of queries and keys: cos and sin by position, and the turn by a pairing.

``rotation`` and ``turn`` are primitives; ``rows`` and ``embed`` feed the standard's RotaryEmbedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from portpe.axes import deal
from portpe.encodings import RotaryEncoding
from portpe.exporters.onnx import length_rows, lookup
from portpe.exporters.onnx.graph import BOOL, FLOAT, INT64, GraphBuilder, shape_of
from portpe.schedules import inv_freq
from portpe.tables import KEY


@dataclass(frozen=True)
class Rotation:
    """cos and sin of one call, shaped for the pairing that comes out, in the type of what they turn.

    half: (batch, 1, sequence, width). interleaved: (batch, 1, sequence, pairs, 1 | 2).
    ``sin`` has its minus sign for the first member of each pair in it.
    """

    cos: ir.Value
    sin: ir.Value
    encoding: RotaryEncoding


def rotation(
    graph: GraphBuilder,
    encoding: RotaryEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,
    lengths: ir.Value | None = None,
    dtype: ir.DataType | None = None,
    *,
    keys: bool = False,
) -> Rotation:
    """The rotation of every position, in ``dtype`` or the graph's type; angles stay float32 at least until cos and sin
    are done.
    """
    if lengths is not None:
        made = rows(graph, encoding, position_ids, tables, lengths, dtype)
        cos, sin = (graph.unsqueeze(part, 1) for part in made)
        return _shaped(graph, encoding, cos, sin)
    over_heads = graph.unsqueeze(position_ids, len(shape_of(position_ids)) - 1)
    return _shaped(graph, encoding, *rows(graph, encoding, over_heads, tables, dtype=dtype, keys=keys))


def _shaped(graph: GraphBuilder, encoding: RotaryEncoding, cos: ir.Value, sin: ir.Value) -> Rotation:
    """From (batch, 1, sequence, pairs), or both members' one after the other."""
    width, pairs = encoding.width, encoding.width // 2
    both = shape_of(cos)[3] == width
    (cos_a, cos_b), (sin_a, sin_b) = (
        graph.split(part, [pairs, pairs], axis=3) if both else (part, part) for part in (cos, sin)
    )
    minus = graph.unary("Neg", sin_a)
    if encoding.written == "half":
        whole = cos if both else graph.concat([cos, cos], axis=3, size=width)
        return Rotation(whole, graph.concat([minus, sin_b], axis=3, size=width), encoding)
    cos_a, minus, sin_b = (graph.unsqueeze(part, 4) for part in (cos_a, minus, sin_b))
    inner = graph.concat([cos_a, graph.unsqueeze(cos_b, 4)], axis=4, size=2) if both else cos_a
    return Rotation(inner, graph.concat([minus, sin_b], axis=4, size=2), encoding)


def turn(graph: GraphBuilder, value: ir.Value, by: Rotation) -> ir.Value:
    """(batch, heads, sequence, head_dim): pair (a, b) becomes (a cos - b sin, b cos + a sin); other channels pass."""
    encoding = by.encoding
    head_dim = shape_of(value)[3]
    assert isinstance(head_dim, int)
    rest = head_dim - encoding.width
    if rest == 0:
        return _turn_all(graph, value, by)
    if encoding.channels == "first":
        turned, kept = graph.split(value, [encoding.width, rest], axis=3)
        return graph.concat([_turn_all(graph, turned, by), kept], axis=3, size=head_dim)
    kept, turned = graph.split(value, [rest, encoding.width], axis=3)
    return graph.concat([kept, _turn_all(graph, turned, by)], axis=3, size=head_dim)


def _turn_all(graph: GraphBuilder, value: ir.Value, by: Rotation) -> ir.Value:
    pairs = by.encoding.width // 2
    shape = shape_of(value)
    if by.encoding.blocks > 1:
        return _turn_blocks(graph, value, by)
    value = _as_written(graph, value, by.encoding)
    if by.encoding.written == "half":
        return _turn_pairs(graph, value, by, axis=3, member=pairs)
    split = graph.reshape(value, [0, 0, 0, pairs, 2], (*shape[:3], pairs, 2))
    turned = _turn_pairs(graph, split, by, axis=4, member=1)
    return graph.reshape(turned, [0, 0, 0, by.encoding.width], shape)


def _turn_blocks(graph: GraphBuilder, value: ir.Value, by: Rotation) -> ir.Value:
    """Halves within each block: the first ones of all blocks are laid side by side, turned, and laid back."""
    shape, blocks, width = shape_of(value), by.encoding.blocks, by.encoding.width
    each = width // 2 // blocks
    split = graph.reshape(value, [0, 0, 0, blocks, 2, each], (*shape[:3], blocks, 2, each))
    whole = graph.reshape(graph.transpose(split, 0, 1, 2, 4, 3, 5), [0, 0, 0, width], shape)
    turned = _turn_pairs(graph, whole, by, axis=3, member=width // 2)
    split = graph.reshape(turned, [0, 0, 0, 2, blocks, each], (*shape[:3], 2, blocks, each))
    return graph.reshape(graph.transpose(split, 0, 1, 2, 4, 3, 5), [0, 0, 0, width], shape)


def _as_written(graph: GraphBuilder, value: ir.Value, encoding: RotaryEncoding) -> ir.Value:
    """(..., width) in the order of channels that comes out: where it is another one, pairs change places first."""
    if encoding.written == encoding.pairing:
        return value
    shape = shape_of(value)
    rows, pairs = [0] * (len(shape) - 1), encoding.width // 2
    split = [pairs, 2] if encoding.pairing == "interleaved" else [2, pairs]
    value = graph.reshape(value, [*rows, *split], (*shape[:-1], *split))
    value = graph.transpose(value, *range(len(rows)), len(rows) + 1, len(rows))
    return graph.reshape(value, [*rows, encoding.width], shape)


def _turn_pairs(graph: GraphBuilder, value: ir.Value, by: Rotation, *, axis: int, member: int) -> ir.Value:
    first, second = graph.split(value, [member, member], axis=axis)
    swapped = graph.concat([second, first], axis=axis, size=2 * member)
    return graph.binary("Add", graph.binary("Mul", value, by.cos), graph.binary("Mul", swapped, by.sin))


def rows(
    graph: GraphBuilder,
    encoding: RotaryEncoding,
    position_ids: ir.Value,
    tables: lookup.Tables,
    lengths: ir.Value | None = None,
    dtype: ir.DataType | None = None,
    *,
    keys: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """Cos and sin (..., sequence, pairs) of positions (..., sequence), as RotaryEmbedding takes them without
    position_ids; cast last.

    Of several coordinates each column takes its own: a product with ones and zeros, summed, is exact. ``lengths``
    (batch,) are those of the batch rows, where the schedule follows them. ``keys``: those of keys, where they have
    tables of their own.
    """
    if lengths is not None:
        cos, sin = length_rows.cos_sin(graph, encoding, position_ids, lengths, tables)
    elif encoding.coordinates == "centred":
        cos, sin = _of_centres(graph, encoding, position_ids)
    else:
        prefix = KEY if keys and encoding.own_key_tables else ""
        cos, sin = lookup.cos_sin(graph, tables, position_ids, prefix=prefix)
        if encoding.axes is not None:
            one_hot = _over_tokens(deal(encoding).one_hot, position_ids)
            cos, sin = (_own_axis(graph, part, graph.inline("axis_of_column", one_hot, FLOAT)) for part in (cos, sin))
    if encoding.unturned_tokens:
        stays = _unturned(graph, encoding, position_ids)
        cos = graph.where(stays, graph.scalar(1.0, FLOAT), cos)
        sin = graph.where(stays, graph.scalar(0.0, FLOAT), sin)
    return graph.cast(cos, dtype or graph.dtype), graph.cast(sin, dtype or graph.dtype)


def _own_axis(graph: GraphBuilder, values: ir.Value, chosen: ir.Value) -> ir.Value:
    """The sum over the axes of values (axes, ..., columns) times what ``chosen`` has for a column's own, else 0."""
    product = graph.binary("Mul", values, chosen)
    return graph.op("ReduceSum", product, graph.ints(0), shape=shape_of(product)[1:], keepdims=0)


def _over_tokens(columns: NDArray[Any], position_ids: ir.Value) -> NDArray[Any]:
    """(axes, columns), to be multiplied with (axes, ..., sequence, columns)."""
    return columns.reshape(len(columns), *[1] * (len(shape_of(position_ids)) - 1), -1)


def _of_centres(graph: GraphBuilder, encoding: RotaryEncoding, position_ids: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cos and sin of 2 pi f (2p + 1 - n) / n in float32: the angle is at most 2 pi f, and needs no table."""
    last = len(shape_of(position_ids)) - 1
    cells = graph.op("ReduceMax", position_ids, graph.ints(last), shape=(*shape_of(position_ids)[:-1], 1), keepdims=1)
    cells = graph.binary("Add", cells, graph.scalar(1, INT64))
    odd = graph.binary("Add", graph.binary("Add", position_ids, position_ids), graph.scalar(1, INT64))
    over = graph.cast(graph.binary("Sub", odd, cells), FLOAT)
    centres = graph.unsqueeze(graph.binary("Div", over, graph.cast(cells, FLOAT)), last + 1)
    turns = (2 * np.pi * inv_freq(encoding)).astype(np.float32)
    if encoding.axes is None:
        angles = graph.binary("Mul", centres, graph.inline("turns_of_column", turns, FLOAT))
    else:
        own = _over_tokens(deal(encoding).one_hot * turns, position_ids)
        angles = _own_axis(graph, centres, graph.inline("turns_of_column", own, FLOAT))
    cos, sin = graph.unary("Cos", angles), graph.unary("Sin", angles)
    if encoding.magnitude != 1:
        cos = graph.binary("Mul", cos, graph.scalar(encoding.magnitude, FLOAT))
    if encoding.magnitude * encoding.sign != 1:
        sin = graph.binary("Mul", sin, graph.scalar(encoding.magnitude * encoding.sign, FLOAT))
    return cos, sin


def _unturned(graph: GraphBuilder, encoding: RotaryEncoding, position_ids: ir.Value) -> ir.Value:
    """Bool (sequence, 1): the first and the last tokens, which are not turned."""
    sequence = shape_of(position_ids)[-1]
    count = graph.size(position_ids, len(shape_of(position_ids)) - 1)
    row = graph.op("Range", graph.scalar(0, INT64), count, graph.scalar(1, INT64), shape=(sequence,))
    first = graph.binary("Less", row, graph.scalar(encoding.prefix_tokens, INT64), dtype=BOOL)
    end = graph.binary("Sub", count, graph.scalar(encoding.suffix_tokens, INT64))
    last = graph.binary("GreaterOrEqual", row, end, dtype=BOOL)
    return graph.unsqueeze(graph.binary("Or", first, last), 1)


def embed(
    graph: GraphBuilder,
    value: ir.Value,
    encoding: RotaryEncoding,
    cos_sin: tuple[ir.Value, ir.Value],
    *,
    heads: int,
    head_dim: int,
) -> ir.Value:
    """RotaryEmbedding on tokens, (batch, sequence, heads * head_dim).

    The operator turns the first channels of a head and leaves pairs where they are. Where the last channels are turned,
    or pairs change places, the turned channels are taken out and put back.
    It has one angle a pair, and halves of the whole width: where the members of a pair have angles of their own, or
    halves are those of blocks, primitives turn them.
    """
    if encoding.angles_of_pairs == 2 or encoding.blocks > 1:
        return _embed_by_head(graph, value, encoding, cos_sin, heads=heads, head_dim=head_dim)
    width, rest = encoding.width, head_dim - encoding.width
    attributes: dict[str, Any] = {"num_heads": heads, "interleaved": int(encoding.written == "interleaved")}
    first = encoding.channels == "first"
    if encoding.written == encoding.pairing and (rest == 0 or first):
        partial: dict[str, Any] = {"rotary_embedding_dim": width} if rest else {}
        return graph.op("RotaryEmbedding", value, *cos_sin, shape=shape_of(value), **attributes, **partial)
    batch, sequence, _ = shape_of(value)
    parts = [graph.reshape(value, [0, 0, heads, head_dim], (batch, sequence, heads, head_dim))]
    if rest:
        parts = [*graph.split(parts[0], [width, rest] if first else [rest, width], axis=3)]
    place = 0 if first or not rest else 1
    turned = _as_written(graph, parts[place], encoding)
    turned = graph.reshape(turned, [0, 0, heads * width], (batch, sequence, heads * width))
    turned = graph.op("RotaryEmbedding", turned, *cos_sin, shape=shape_of(turned), **attributes)
    parts[place] = graph.reshape(turned, [0, 0, heads, width], (batch, sequence, heads, width))
    joined = graph.concat(parts, axis=3, size=head_dim) if rest else parts[0]
    return graph.reshape(joined, [0, 0, heads * head_dim], shape_of(value))


def turn_keys(
    graph: GraphBuilder, value: ir.Value, encoding: RotaryEncoding, cos_sin: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """The same on heads, (batch, heads, sequence, head_dim); in primitives where the operator would need a detour."""
    _, heads, _, head_dim = shape_of(value)
    assert isinstance(heads, int)
    rest = head_dim != encoding.width
    if rest and encoding.channels == "last":
        cos, sin = (graph.unsqueeze(part, 1) for part in cos_sin)
        return turn(graph, value, _shaped(graph, encoding, cos, sin))
    partial: dict[str, Any] = {"num_heads": heads, "rotary_embedding_dim": encoding.width} if rest else {}
    interleaved = int(encoding.pairing == "interleaved")
    return graph.op("RotaryEmbedding", value, *cos_sin, shape=shape_of(value), interleaved=interleaved, **partial)


def _embed_by_head(
    graph: GraphBuilder,
    value: ir.Value,
    encoding: RotaryEncoding,
    cos_sin: tuple[ir.Value, ir.Value],
    *,
    heads: int,
    head_dim: int,
) -> ir.Value:
    """The same in primitives, on heads apart."""
    batch, sequence, _ = shape_of(value)
    cos, sin = (graph.unsqueeze(part, 1) for part in cos_sin)
    split = graph.reshape(value, [0, 0, heads, head_dim], (batch, sequence, heads, head_dim))
    by_head = turn(graph, graph.transpose(split, 0, 2, 1, 3), _shaped(graph, encoding, cos, sin))
    return graph.reshape(graph.transpose(by_head, 0, 2, 1, 3), [0, 0, heads * head_dim], shape_of(value))
