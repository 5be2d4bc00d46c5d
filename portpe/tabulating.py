"""An encoding's numbers at given positions, as float64 arrays under fixed names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from portpe import addends, biases, schedules, tables, temperatures
from portpe.encodings import RotaryEncoding
from portpe.errors import SpecError
from portpe.learned import settle
from portpe.positions import check_range, integer_positions
from portpe.spec import AttentionSpec

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
      them, ``attention_factor`` (), ``softmax_scale_multiplier`` (); under a decay ``cos`` and ``sin`` are those of
      queries, and ``key_cos`` and ``key_sin`` (P, R/2) those of keys;
    * query temperature: ``query_scale`` (P,);
    * bias: ``bias`` (heads, P, P), queries along axis 1 and keys along axis 2, both at the given
      positions, and ``slopes`` (heads,), the scale in them;
    * embedding: ``embedding`` (P, width).

    A layer with several has the union, one without any an empty dict. With precision ``hf``
    the numbers are transformers' float32 ones, widened.

    Args:
        spec: the layer.
        positions: integers >= 0, (P,); token positions, offsets of tables are added inside. (axes, P) where positions
            have several axes; (P,) then stands on every one of them.
        seq_len: length of the sequence for schedules that depend on it. None: the length that the
            spec fixes, else the largest position + 1.
        weights: tensors by canonical name; a learned table is ``position_embedding.weight``, trained scales of
            frequencies are ``rotary_log_scales``.

    Raises:
        SpecError: a position is no integer, negative or past an embedding's table, seq_len is no integer >= 1, or
            a tensor is missing or of the wrong shape.
    """
    if seq_len is not None and (isinstance(seq_len, bool) or not isinstance(seq_len, int | np.integer) or seq_len < 1):
        raise SpecError(f"seq_len must be an integer >= 1, got {seq_len!r}")
    places = integer_positions(positions)
    axes = spec.position_axes
    if places.ndim == 1 and axes > 1:  # text: the same coordinate on every axis
        places = np.stack([places] * axes)
    if places.ndim != (1 if axes == 1 else 2) or places.size == 0 or (axes > 1 and len(places) != axes):
        shape = "(P,)" if axes == 1 else f"(P,) or ({axes}, P)"
        raise SpecError(f"positions must be {shape} with P >= 1, got shape {places.shape}")
    check_range(places)
    spec, _ = settle(spec, weights or {})
    numbers: Numbers = {}
    if spec.rotary is not None:
        numbers |= _rotary(spec.rotary, places, seq_len)
    if spec.query_scale is not None:
        numbers["query_scale"] = temperatures.multipliers(spec.query_scale, places)
    if spec.embedding is not None:
        check_range(places, tables.end_of(spec, {}))
        numbers["embedding"] = addends.addend(spec.embedding, places, weights or {})
    if spec.bias:
        numbers |= _bias(spec, places, weights or {})
    return numbers


def _rotary(rotary: RotaryEncoding, positions: Positions, seq_len: int | None) -> Numbers:
    length = int(positions.max()) + 1 if seq_len is None else seq_len
    cos, sin = tables.cos_sin(rotary, positions, length)
    of_keys = {}
    if rotary.own_key_tables:
        of_keys = dict(zip(("key_cos", "key_sin"), tables.cos_sin(rotary, positions, length, keys=True), strict=True))
    return {
        "inv_freq": _inv_freq(rotary, length),
        "cos": cos,
        "sin": sin,
        **of_keys,
        "attention_factor": np.array(schedules.magnitude(rotary, length)),
        "softmax_scale_multiplier": np.array(rotary.softmax_scale_multiplier),
    }


def _inv_freq(rotary: RotaryEncoding, seq_len: int) -> NDArray[np.float64]:
    if rotary.precision == "exact":
        return schedules.inv_freq(rotary, seq_len)
    from portpe import hf_tables  # torch only where transformers' numbers are asked for

    widened: NDArray[np.float64] = hf_tables.inv_freq(rotary, seq_len).double().numpy()
    return widened


def _bias(spec: AttentionSpec, positions: Positions, weights: Mapping[str, NDArray[Any]]) -> Numbers:
    """The sum of the biases, and what each lists besides it, of which one of a kind is told."""
    numbers: Numbers = {}
    for encoding in spec.bias:
        found = biases.NUMBERS[encoding.kind](encoding, spec, positions, weights)
        if "bias" in numbers and "bias" in found:
            found["bias"] = numbers["bias"] + found["bias"]
        numbers |= found
    if len(spec.bias) > 1:
        numbers.pop("slopes", None)
    return numbers
