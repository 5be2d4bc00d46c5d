"""The raw files beside the graphs: arrays one after the other, each where a runtime can map it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from portpe.errors import SpecError
from portpe.interface import Array

ALIGNMENT = 4096  # bytes: a page, so that runtimes can map a tensor where it lies


def write_data(path: Path, tensors: Mapping[str, Array]) -> dict[str, tuple[int, int]]:
    """Raw little-endian arrays one after the other, each at a page's start.

    Returns:
        (offset, length) in bytes of each, by name.
    """
    places: dict[str, tuple[int, int]] = {}
    with path.open("xb") as file:
        for name, array in tensors.items():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            places[name] = (file.tell(), array.nbytes)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return places


def read_data(path: Path, places: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays of ``write_data``'s file; ``places`` are (offset, length, dtype, shape) by name. Raises SpecError."""
    try:
        file = np.memmap(path, np.uint8, mode="r")
        return {name: _array(file, *place) for name, place in places.items()}
    except (OSError, TypeError, ValueError) as error:
        raise SpecError(f"{path.name} cannot be read as portpe.json says: {' '.join(str(error).split())}") from None


def _array(file: Array, offset: int, length: int, dtype: str, shape: Sequence[int]) -> Array:
    array: Array = np.ndarray(tuple(shape), np.dtype(dtype), buffer=file, offset=offset)
    if array.nbytes != length:
        raise ValueError(f"{dtype} {list(shape)} takes {array.nbytes} bytes, not {length}")
    return array
