"""Whether a competitor computes the layer at all: its output against float64, before anything is timed.

Parity's own bound decides. Most peers form their angles in float32, which no exact bound lets pass at long positions:
they are held against transformers' numbers too, and told apart from those who compute something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from portpe.bench.case import Case
from portpe.bench.subject import Subject
from portpe.interface import Array, BlockInputs
from portpe.parity.bounds import Estimate, given
from portpe.parity.call import attend, turned_keys, with_cached
from portpe.parity.stages import Block
from portpe.tables import table_set

ROWS = 4  # query rows of a prefill that are compared
FLOAT32_ANGLES = 4.0  # how much farther than transformers' own float32 angles an output may be from the exact one

Verdict = Literal["exact", "float32 angles", "wrong"]


@dataclass(frozen=True)
class Judgement:
    """``max_abs`` is the largest error, ``share`` the largest error over its own bound; above 1 is outside."""

    verdict: Verdict
    max_abs: float
    share: float


class Truth:
    """The float64 output of one case at a few rows: the first, the last, and some between."""

    def __init__(self, subject: Subject, case: Case, inputs: BlockInputs) -> None:
        self._subject, self._inputs = subject, inputs
        self.rows = np.unique(np.linspace(0, case.rows - 1, ROWS).astype(np.int64))
        self._exact = self._output(subject, subject.tables)
        self._hf: NDArray[np.float64] | None = None

    def judge(self, output: Array) -> Judgement:
        """Where an output (1, rows, hidden) stands."""
        shape = self._inputs.hidden_states.shape[:2]
        if output.shape[:2] != shape or not np.isfinite(output.astype(np.float32)).all():
            return Judgement("wrong", float("inf"), float("inf"))
        error = np.abs(output[0, self.rows].astype(np.float64) - self._exact.value)
        share = float((error / self._exact.error).max())
        largest = float(error.max())
        if share <= 1:
            return Judgement("exact", largest, share)
        if bool((error <= self._exact.error + self._angle_slack()).all()):
            return Judgement("float32 angles", largest, share)
        return Judgement("wrong", largest, share)

    def _angle_slack(self) -> float:
        """How far float32 angles as transformers forms them lead from the exact output, at the rows compared."""
        spec = self._subject.spec
        if spec.rotary is None or spec.precision == "hf":
            return 0.0
        if self._hf is None:
            hf = spec.with_precision("hf")
            tables = table_set(hf, int(self._inputs.position_ids.max()) + 1)
            self._hf = self._output(self._subject, tables, hf=True).value
        return FLOAT32_ANGLES * float(np.abs(self._hf - self._exact.value).max())

    def _output(self, subject: Subject, tables: Any, *, hf: bool = False) -> Estimate:
        """(rows, hidden) with the error that a correct runtime may have there; q is formed for these rows alone."""
        spec = subject.spec.with_precision("hf") if hf else subject.spec
        block, inputs = Block(spec, subject.weights, tables, subject.dtype), self._inputs
        heads, kv_heads, ids = np.arange(spec.num_heads), np.arange(spec.num_kv_heads), inputs.position_ids
        hidden = given(inputs.hidden_states)
        x = block.normed(block.embedded(hidden, ids))
        k = with_cached(block, inputs, block.heads("k", x, kv_heads), kv_heads)
        k = turned_keys(block, inputs, k, kv_heads)
        v = block.heads("v", block.seen("v", x, hidden), kv_heads)
        at = ids[:, self.rows]
        q = block.rotated("q", block.heads("q", x[:, self.rows], heads), at, heads, inputs.lengths)
        contexts = []
        for index, row in enumerate(self.rows):
            contexts.append(attend(block, inputs, x, _at_row(q, index, int(row)), k, v, (0, int(row)), heads))
        value, error = (np.stack([getattr(c, part).reshape(-1) for c in contexts]) for part in ("value", "error"))
        return block.output(Estimate(value, error))


def _at_row(q: Estimate, index: int, row: int) -> Estimate:
    """Queries that show row ``index`` under the number ``row``, without an array for all the rows between."""
    shape = (*q.value.shape[:2], row + 1, q.value.shape[3])
    return Estimate(*(np.broadcast_to(part[:, :, index : index + 1], shape) for part in (q.value, q.error)))
