"""What the search for a first difference shares: the types, how far it goes, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Tensors = Literal["none", "same", "other"]

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
HORIZON = 2**20
BLOCK = 4096  # positions evaluated at once


@dataclass(frozen=True)
class Found:
    """Where a difference shows: ``seen`` by type the first one of ``unit``, without the types where none does.

    ``tensors``: what it takes for granted of trained numbers. ``same``: both layers hold the same ones, as far as their
    tables go, and this is the first place that reads others of them. ``other``: nothing can be said of them.
    """

    unit: str
    seen: Mapping[str, int] = field(default_factory=dict)
    tensors: Tensors = "none"


def everywhere(first: int) -> dict[str, int]:
    """The same first place in every type."""
    return dict.fromkeys(ROUNDOFF, first)


def first_over(errors: Callable[[NDArray[np.int64]], Floats], stop: int) -> dict[str, int]:
    """By type the first number below ``stop`` whose error exceeds the roundoff; ``errors`` (n,) of n of them."""
    seen: dict[str, int] = {}
    for start in range(0, stop, BLOCK):
        places = np.arange(start, min(start + BLOCK, stop))
        found = errors(places)
        for dtype, roundoff in ROUNDOFF.items():
            over = np.flatnonzero(found > roundoff)
            if dtype not in seen and over.size:
                seen[dtype] = int(places[over[0]])
        if len(seen) == len(ROUNDOFF):
            break
    return seen
