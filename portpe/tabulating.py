"""An encoding's numbers at given positions, as float64 arrays under fixed names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe import biases, schedules, tables, temperatures
from portpe.encodings import LearnedEncoding, RotaryEncoding
from portpe.errors import SpecError
from portpe.positions import check_range, integer_positions
from portpe.spec import AttentionSpec

LEARNED = "position_embedding.weight"

Numbers = dict[str, NDArray[np.float64]]
Positions = NDArray[np.int64]


def tabulate(
    spec: AttentionSpec,
    positions: ArrayLike,
    seq_len: int | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> Numbers:
    """The numbers of every encoding of a layer, by name.

    * rotary: ``inv_freq`` (R/2,), ``cos`` and ``sin`` (P, R/2) with the attention factor and the sign in
      them, ``attention_factor`` (), ``softmax_scale_multiplier`` ();
    * query temperature: ``query_scale`` (P,);
    * bias: ``bias`` (heads, P, P), queries along axis 1 and keys along axis 2, both at the given
      positions, and ``slopes`` (heads,), the scale in them;
    * embedding: ``embedding`` (P, width).

    A layer with several has the union, one without any an empty dict. With precision ``hf``
    the numbers are transformers' float32 ones, widened.

    Args:
        spec: the layer.
        positions: integers >= 0, (P,); token positions, offsets of tables are added inside.
        seq_len: length of the sequence for schedules that depend on it. None: the length that the
            spec fixes, else the largest position + 1.
        weights: tensors by canonical name; a learned table is ``position_embedding.weight``.

    Raises:
        SpecError: a position is no integer, negative or past an embedding's table, seq_len is no integer >= 1, or
            a tensor is missing or of the wrong shape.
    """
    if seq_len is not None and (isinstance(seq_len, bool) or not isinstance(seq_len, int | np.integer) or seq_len < 1):
        raise SpecError(f"seq_len must be an integer >= 1, got {seq_len!r}")
    places = integer_positions(positions)
    if places.ndim != 1 or places.size == 0:
        raise SpecError(f"positions must be (P,) with P >= 1, got shape {places.shape}")
    check_range(places)
    numbers: Numbers = {}
    if spec.rotary is not None:
        numbers |= _rotary(spec.rotary, places, seq_len)
    if spec.query_scale is not None:
        numbers["query_scale"] = temperatures.multipliers(spec.query_scale, places)
    if spec.embedding is not None:
        check_range(places, tables.end_of(spec, {}))
        if isinstance(spec.embedding, LearnedEncoding):
            numbers["embedding"] = _learned(spec.embedding, places, weights or {})
        else:
            numbers["embedding"] = tables.sinusoid(spec.embedding, places)
    if spec.bias:
        numbers |= _bias(spec, places)
    return numbers


def _rotary(rotary: RotaryEncoding, positions: Positions, seq_len: int | None) -> Numbers:
    length = int(positions.max()) + 1 if seq_len is None else seq_len
    cos, sin = tables.cos_sin(rotary, positions, length)
    return {
        "inv_freq": _inv_freq(rotary, length),
        "cos": cos,
        "sin": sin,
        "attention_factor": np.array(rotary.magnitude),
        "softmax_scale_multiplier": np.array(rotary.softmax_scale_multiplier),
    }


def _inv_freq(rotary: RotaryEncoding, seq_len: int) -> NDArray[np.float64]:
    if rotary.precision == "exact":
        return schedules.inv_freq(rotary, seq_len)
    from portpe import hf_tables  # torch only where transformers' numbers are asked for

    widened: NDArray[np.float64] = hf_tables.inv_freq(rotary, seq_len).double().numpy()
    return widened


def _learned(
    embedding: LearnedEncoding, positions: Positions, weights: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64]:
    if LEARNED not in weights:
        raise SpecError(f"weights must hold the learned table {LEARNED}, got {sorted(weights)}")
    table, shape = np.asarray(weights[LEARNED]), (embedding.rows, embedding.width)
    if table.shape != shape:
        raise SpecError(f"{LEARNED} must have shape {shape}, got {table.shape}")
    rows: NDArray[np.float64] = table[positions + embedding.offset].astype(np.float64)
    return rows


def _bias(spec: AttentionSpec, positions: Positions) -> Numbers:
    total = sum(biases.alibi(encoding, spec.num_heads, positions, positions) for encoding in spec.bias)
    numbers: Numbers = {"bias": np.asarray(total)}
    if len(spec.bias) == 1:
        numbers["slopes"] = biases.slopes(spec.bias[0], spec.num_heads)
    return numbers
