"""Additive score biases, from integer positions: one module a kind.

By kind, ``NUMBERS`` has what ``portpe.tabulate`` lists: (encoding, layer, positions, weights) gives arrays by name,
``bias`` (heads, P, P) among them where it follows from positions and weights alone, queries along axis 1 and keys along
axis 2. ``TABLES`` has what an artefact carries: (encoding, layer) gives float32 arrays by name; kinds without are
absent.
"""

from collections.abc import Callable
from typing import Any

from portpe.biases import alibi, buckets, by_distance, cope, forget, functions, grid, transformer_xl
from portpe.biases.alibi import alibi_slopes, slopes

__all__ = ["NUMBERS", "TABLES", "alibi_slopes", "slopes"]

NUMBERS: dict[str, Callable[..., dict[str, Any]]] = {
    "alibi": alibi.numbers,
    "axis_buckets": buckets.axis_numbers,
    "buckets": buckets.numbers,
    "cope": cope.numbers,
    "deberta": by_distance.numbers,
    "distance_bank": by_distance.numbers,
    "fire": functions.fire_numbers,
    "forget": forget.numbers,
    "gated_buckets": buckets.gated_numbers,
    "grid_network": grid.network_numbers,
    "grid_table": grid.numbers,
    "grid_vectors": grid.vector_numbers,
    "kerple": functions.kerple_numbers,
    "sandwich": functions.sandwich_numbers,
    "shaw": by_distance.numbers,
    "transformer_xl": transformer_xl.numbers,
}
TABLES: dict[str, Callable[..., dict[str, Any]]] = {"alibi": alibi.tables}
