"""The two truths of a bundle held against each other: golden values, which the reference made at export in float64,
and the stages computed anew in numpy.

They share no code of an encoding. Where they part, the golden values belong to another spec or other weights, and a
runtime that is judged by them is not judged by this bundle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.golden import GoldenCase
from portpe.parity.bounds import Estimate, Exact
from portpe.parity.call import Expected
from portpe.parity.stages import Block
from portpe.parity.walk import Seen, Walk

Ids = NDArray[np.int64]

ROUNDING = 2.0**-6  # of a stage's bound in its type: float64 takes some 1e-9 of it, far angles and long sums more
FLOOR = 1e-9  # of a stage's largest value, for those that no rounding touches


def check(block: Block, golden: GoldenCase, expected: Expected) -> None:
    """Refuse golden values of a case that are not the truth of the block. Raises SpecError."""
    found = _Computed(block, golden).stages_at_pairs()
    whole = {"output": expected.output, "present_key": expected.present_key, "present_value": expected.present_value}
    stored = {**golden.stages, **{name: getattr(golden, name) for name in whole}, **golden.present_states}
    for name, computed in {**found, **whole, **expected.present_states}.items():
        if name not in stored:
            continue
        value, truth = stored[name], computed.value
        if value.shape != truth.shape:
            _refuse(golden, name, f"has shape {list(value.shape)}, its truth {list(truth.shape)}")
        if name == "scores":  # masked places hold no meaning
            truth = np.where(golden.stages["probs"] != 0, truth, 0.0)
        off = np.abs(value - truth)
        if not (off <= ROUNDING * computed.error + FLOOR * np.abs(truth).max(initial=0.0)).all():
            _refuse(golden, name, f"is off by {off.max():.3g}")


def _refuse(golden: GoldenCase, name: str, how: str) -> None:
    raise SpecError(
        f"golden values must be the truth of the bundle's spec and weights, and {name} of {golden.name} in "
        f"{golden.dtype} {how}; export the bundle again"
    )


class _Computed(Walk):
    """A walk along no runtime's stages, that keeps what it computes at the sampled places."""

    def __init__(self, block: Block, golden: GoldenCase) -> None:
        super().__init__(block, golden, {}, full=False)
        self.at_pairs: dict[str, Estimate] = {}
        self._rows_of: dict[str, list[tuple[Exact, Exact]]] = {}

    def stages_at_pairs(self) -> dict[str, Estimate]:
        """Every stage as golden values hold it: (P, width), or (P, heads, channels or keys)."""
        self.run()
        for name, parts in self._rows_of.items():
            count = len(parts) // len(self.pairs)  # one part for each key/value head
            rows = [parts[first : first + count] for first in range(0, len(parts), count)]
            value, error = (
                np.stack([np.concatenate([part[which] for part in row]) for row in rows]) for which in (0, 1)
            )
            self.at_pairs[name] = Estimate(value, error)
        return self.at_pairs

    def _rows(self, name: str, value: Estimate, heads: Ids | None = None) -> Estimate:
        batch, row = self.pairs.T
        if heads is None:
            self.at_pairs[name] = value[batch, row]
        else:
            first = self.inputs.past if name in self._of_all_keys else 0
            chosen = np.arange(len(heads))
            self.at_pairs[name] = value[batch[:, None], chosen, first + row[:, None]]
        return value

    def _take(self, seen: Seen, place: tuple[int, int], name: str, heads: Ids, value: Estimate) -> Estimate:
        del seen, place, heads
        self._rows_of.setdefault(name, []).append((value.value, value.error))
        return value
