"""From which distance between query and key on two biases differ.

Biases without trained numbers are computed and compared. Of those with some, both layers are taken to hold the same
tensors, and the first distance is told that reads other rows of them, or puts other numbers into them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.biases import NUMBERS, buckets, by_distance, transformer_xl
from portpe.biases.by_distance import DistanceRows
from portpe.biases.functions import sandwich
from portpe.diff.search import ROUNDOFF, Floats, Found, everywhere, first_over
from portpe.encodings import (
    AlibiEncoding,
    AxisBucketsEncoding,
    BiasEncoding,
    BucketsEncoding,
    CopeEncoding,
    DebertaEncoding,
    DistanceBankEncoding,
    FireEncoding,
    ForgetEncoding,
    GatedBucketsEncoding,
    GridNetworkEncoding,
    GridPart,
    GridTableEncoding,
    GridVectorsEncoding,
    KerpleEncoding,
    SandwichEncoding,
    ShawEncoding,
    TransformerXlEncoding,
)
from portpe.spec import AttentionSpec
from portpe.tables import relative_sinusoid

Ids = NDArray[np.int64]
Specs = tuple[AttentionSpec, AttentionSpec]

_UNTRAINED = (AlibiEncoding, SandwichEncoding)
_NOTHING_AT_0 = (AlibiEncoding, ForgetEncoding, KerpleEncoding, type(None))  # what they add at distance 0 is 0


def first_distance(left: AttentionSpec, right: AttentionSpec, horizon: int) -> Found:
    """The first distance whose biases differ, that of keys ahead of the query too unless both layers are causal."""
    specs = left, right
    pairs = [pair for pair in zip_longest(left.bias, right.bias) if pair[0] != pair[1]]
    if left.num_heads == right.num_heads and all(isinstance(each, _UNTRAINED) for each in (*left.bias, *right.bias)):
        return Found("distance", _of_sums(specs, horizon))
    found = [_of_pair(one, other, specs, horizon) for one, other in pairs]
    seen = {
        dtype: min(firsts)
        for dtype in ROUNDOFF
        if (firsts := [each.seen[dtype] for each in found if dtype in each.seen])
    }
    known = {each.tensors for each in found}
    return Found("distance", seen, "other" if "other" in known else "same" if "same" in known else "none")


def _of_pair(one: BiasEncoding | None, other: BiasEncoding | None, specs: Specs, horizon: int) -> Found:
    """Of two biases that stand at the same place; None: there is none."""
    if type(one) is not type(other) or specs[0].num_heads != specs[1].num_heads:
        plain = all(isinstance(each, (*_UNTRAINED, type(None))) for each in (one, other))
        still = all(isinstance(each, _NOTHING_AT_0) for each in (one, other))
        return Found("distance", everywhere(1 if still else 0), "none" if plain else "other")
    if isinstance(one, _UNTRAINED):
        alone = [spec.model_copy(update={"bias": (each,)}) for spec, each in zip(specs, (one, other), strict=True)]
        return Found("distance", _of_sums((alone[0], alone[1]), horizon))
    law = _LAWS.get(type(one))
    return Found("distance", everywhere(0), "other") if law is None else law(one, other, specs, horizon)


# --- without trained numbers ---------------------------------------------------------------------


def _of_sums(specs: Specs, horizon: int) -> dict[str, int]:
    """Of the sums of biases that are computed; a layer without any adds 0."""
    signs = (-1,) if _both_causal(specs) else (-1, 1)
    slopes = {sign: np.abs(np.subtract(*(_slopes(spec, sign) for spec in specs))) for sign in signs}
    waves = [each for spec in specs for each in spec.bias if isinstance(each, SandwichEncoding)]
    if not waves:
        steepest = float(max(each.max() for each in slopes.values()))
        reached = {dtype: roundoff for dtype, roundoff in ROUNDOFF.items() if steepest * horizon > roundoff}
        return {dtype: int(roundoff / steepest) + 1 for dtype, roundoff in reached.items()}
    largest = max(1.0, *(4.0 * wave.width for wave in waves))  # a sandwich's at distance 0

    def errors(distances: Ids) -> Floats:
        apart = [np.abs(np.subtract(*(_added(spec, distances, sign) for spec in specs))).max(axis=0) for sign in signs]
        return np.asarray(np.max(apart, axis=0) / largest)

    return first_over(errors, horizon)


def _slopes(spec: AttentionSpec, sign: int) -> Floats:
    """The sum (heads,) of what ALiBi adds a step behind the query (sign -1) or ahead of it (1)."""
    total = np.zeros(spec.num_heads)
    for each in spec.bias:
        if isinstance(each, AlibiEncoding):
            slopes = NUMBERS[each.kind](each, spec, np.zeros(1, np.int64), {})["slopes"]
            total = total + (-slopes if each.symmetric else sign * slopes)
    return total


def _added(spec: AttentionSpec, distances: Ids, sign: int) -> Floats:
    """All that is added (heads, n) at these distances, on one side of the query."""
    total = _slopes(spec, sign)[:, None] * distances
    for each in spec.bias:
        if isinstance(each, SandwichEncoding):
            total = total + sandwich(each, spec.num_heads, distances)
    return total


def _both_causal(specs: Specs) -> bool:
    return all(spec.causal for spec in specs)


# --- with trained numbers ------------------------------------------------------------------------


def _rows_apart(one: DistanceRows, other: DistanceRows, *, causal: bool) -> dict[str, int]:
    """The first distance that reads another row."""
    distances = np.arange(1 + max(-one.first, one.last, -other.first, other.last))
    apart = np.zeros(len(distances), dtype=bool)
    for keys in (-distances,) if causal else (-distances, distances):
        rows = [each.of(distances[-1:], distances[-1] + keys)[0] for each in (one, other)]
        apart |= rows[0] != rows[1]
    return everywhere(int(np.flatnonzero(apart)[0])) if apart.any() else {}


def _buckets(one: BucketsEncoding, other: BucketsEncoding, specs: Specs, _horizon: int) -> Found:
    if one.scale != other.scale:
        return Found("distance", everywhere(0), "same")
    rows = [buckets.distance_rows(each) for each in (one, other)]
    return Found("distance", _rows_apart(rows[0], rows[1], causal=_both_causal(specs)), "same")


def _gated_buckets(one: GatedBucketsEncoding, other: GatedBucketsEncoding, specs: Specs, _horizon: int) -> Found:
    rows = [buckets.distance_rows(each) for each in (one, other)]
    return Found("distance", _rows_apart(rows[0], rows[1], causal=_both_causal(specs)), "same")


def _axis_buckets(one: AxisBucketsEncoding, other: AxisBucketsEncoding, _specs: Specs, _horizon: int) -> Found:
    """Along any axis, and on both sides: what comes later in a text may stand before it on the page."""
    if one.scale != other.scale or len(one.axes) != len(other.axes):
        return Found("distance", everywhere(0), "same" if len(one.axes) == len(other.axes) else "other")
    pairs = [(buckets.distance_rows(a), buckets.distance_rows(b)) for a, b in zip(one.axes, other.axes, strict=True)]
    seen = [found for a, b in pairs if (found := _rows_apart(a, b, causal=False))]
    return Found("distance", min(seen, key=lambda each: each["float32"]) if seen else {}, "same")


def _shaw(one: ShawEncoding, other: ShawEncoding, specs: Specs, _horizon: int) -> Found:
    """A vector stands for a distance, wherever its row is, unless the order of rows is another one."""
    if one.values != other.values:
        return Found("distance", everywhere(0), "other")
    if one.descending == other.descending:
        rows = [DistanceRows(-each.left, each.right, np.arange(-each.left, each.right + 1)) for each in (one, other)]
    else:
        rows = [by_distance.distance_rows(each) for each in (one, other)]
    return Found("distance", _rows_apart(rows[0], rows[1], causal=_both_causal(specs)), "same")


def _deberta(one: DebertaEncoding, other: DebertaEncoding, specs: Specs, _horizon: int) -> Found:
    """Rows are counted from the middle of the table, which stands for distance 0."""
    rest = ("span", "max_distance")
    if one.model_dump(exclude={*rest}) != other.model_dump(exclude={*rest}):
        shapes = [set(each.weight_shapes(spec)) for each, spec in zip((one, other), specs, strict=True)]
        return Found("distance", everywhere(0), "same" if shapes[0] == shapes[1] else "other")
    rows = [by_distance.distance_rows(each) for each in (one, other)]
    middle = [DistanceRows(found.first, found.last, found.rows - found.rows[-found.first]) for found in rows]
    return Found("distance", _rows_apart(middle[0], middle[1], causal=_both_causal(specs)), "same")


def _transformer_xl(one: TransformerXlEncoding, other: TransformerXlEncoding, specs: Specs, horizon: int) -> Found:
    """The first distance whose sinusoid differs by more than the type's roundoff."""
    if specs[0].hidden_size != specs[1].hidden_size:
        return Found("distance", everywhere(0), "other")
    if _but_for_clamp(one) == _but_for_clamp(other):
        clamps = [each.clamp for each in (one, other) if each.clamp is not None]
        return Found("distance", everywhere(min(clamps) + 1) if one.clamp != other.clamp else {}, "same")

    def errors(distances: Ids) -> Floats:
        rows = [
            relative_sinusoid(each, spec, transformer_xl.clamped(each, distances))
            for each, spec in zip((one, other), specs, strict=True)
        ]
        return np.asarray(np.abs(rows[0] - rows[1]).max(axis=-1))

    return Found("distance", first_over(errors, horizon), "same")


def _but_for_clamp(encoding: TransformerXlEncoding) -> TransformerXlEncoding:
    """The encoding without its clamp, and without a contract that exact numbers do not follow."""
    contract = encoding.contract if encoding.precision == "hf" else "paper"
    return encoding.model_copy(update={"clamp": None, "contract": contract})


def _cope(one: CopeEncoding, other: CopeEncoding, _specs: Specs, _horizon: int) -> Found:
    """A gate is less than 1, so the key at distance d has a position below d + 1: rows beyond are not read."""
    first = min(one.rows, other.rows) - 1 if one.scaled_gates == other.scaled_gates else 0
    return Found("distance", everywhere(first), "same")


def _distance_bank(one: DistanceBankEncoding, other: DistanceBankEncoding, _specs: Specs, _horizon: int) -> Found:
    if one.width != other.width or (one.clip is None) != (other.clip is None):
        return Found("distance", everywhere(0), "other")
    alike = (one.clip, one.tempered) == (other.clip, other.tempered)
    return Found("distance", everywhere(min(one.extent, other.extent) if alike else 0), "same")


def _kerple(_one: KerpleEncoding, _other: KerpleEncoding, _specs: Specs, _horizon: int) -> Found:
    return Found("distance", everywhere(1), "same")  # either form is 0 at distance 0


def _fire(one: FireEncoding, other: FireEncoding, _specs: Specs, _horizon: int) -> Found:
    same = one.width == other.width
    return Found("distance", everywhere(1 if same else 0), "same" if same else "other")  # at 0 the network sees 0


def _forget(_one: ForgetEncoding, _other: ForgetEncoding, _specs: Specs, _horizon: int) -> Found:
    return Found("distance", {}, "same")  # it has no settings


def _grid_table(one: GridTableEncoding, other: GridTableEncoding, _specs: Specs, _horizon: int) -> Found:
    """Offsets that both grids have read the same rows; the smaller one ends before the first that only one has."""
    if (one.offsets, one.prefix_tokens) != (other.offsets, other.prefix_tokens):
        return Found("distance", everywhere(0), "other")
    return Found("distance", everywhere(_first_offset(one, other)), "same")


def _grid_network(one: GridNetworkEncoding, other: GridNetworkEncoding, _specs: Specs, _horizon: int) -> Found:
    if one.units != other.units:
        return Found("distance", everywhere(0), "other")
    extents = [each.extent or each.position_ends for each in (one, other)]
    if extents[0] != extents[1]:
        return Found("distance", everywhere(1), "same")  # the offset 0 is 0 in any extent
    sides = one.position_ends != other.position_ends
    return Found("distance", everywhere(_first_offset(one, other)) if sides else {}, "same")


def _grid_vectors(one: GridVectorsEncoding, other: GridVectorsEncoding, _specs: Specs, _horizon: int) -> Found:
    """A resampled table keeps its middle row, that of the offset 0."""
    trained = [each.trained_on or each.position_ends for each in (one, other)]
    if one.position_ends == other.position_ends:
        return Found("distance", everywhere(0), "other") if trained[0] != trained[1] else Found("distance", {}, "same")
    if trained[0] == trained[1]:
        return Found("distance", everywhere(1), "same")
    if trained == [one.position_ends, other.position_ends]:
        return Found("distance", everywhere(_first_offset(one, other)), "same")
    return Found("distance", everywhere(0), "other")


def _first_offset(one: GridPart, other: GridPart) -> int:
    """The first row or column that one of two grids lacks."""
    return min(min(sides) for sides in zip(one.position_ends, other.position_ends, strict=True) if len({*sides}) > 1)


_LAWS: dict[type[Any], Callable[[Any, Any, Specs, int], Found]] = {
    AxisBucketsEncoding: _axis_buckets,
    BucketsEncoding: _buckets,
    CopeEncoding: _cope,
    DebertaEncoding: _deberta,
    DistanceBankEncoding: _distance_bank,
    FireEncoding: _fire,
    ForgetEncoding: _forget,
    GatedBucketsEncoding: _gated_buckets,
    GridNetworkEncoding: _grid_network,
    GridTableEncoding: _grid_table,
    GridVectorsEncoding: _grid_vectors,
    KerpleEncoding: _kerple,
    ShawEncoding: _shaw,
    TransformerXlEncoding: _transformer_xl,
}
