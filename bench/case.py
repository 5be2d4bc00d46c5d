"""One call that is timed: a prefill of so many tokens, or one token after so many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from portpe.interface import DTYPES, BlockInputs
from portpe.spec import AttentionSpec

Phase = Literal["prefill", "decode"]

PHASES: tuple[Phase, ...] = ("decode", "prefill")  # the cheap ones first
LENGTHS = (128, 512, 2048, 8192, 32768)
QUICK_LENGTHS = (128, 512)
CAPACITY_STEP = 256  # slots: buffers are grown in steps, as mlx-lm's are


@dataclass(frozen=True)
class Case:
    """A batch of one. ``length`` is the prompt of a prefill, the cached tokens of a decode step."""

    phase: Phase
    length: int

    @property
    def name(self) -> str:
        return f"{self.phase} {self.length}"

    @property
    def rows(self) -> int:
        """Tokens that the call computes."""
        return self.length if self.phase == "prefill" else 1

    @property
    def past(self) -> int:
        """Tokens in the cache before the call."""
        return 0 if self.phase == "prefill" else self.length

    @property
    def total(self) -> int:
        return self.past + self.rows

    @property
    def capacity(self) -> int:
        """Slots of a cache that is written in place."""
        return -(-self.total // CAPACITY_STEP) * CAPACITY_STEP


def inputs(spec: AttentionSpec, case: Case, dtype: str, seed: int = 0) -> BlockInputs:
    """The arrays of one call: N(0, 1) hidden states and cache, positions that follow on, no padding."""
    rng = np.random.default_rng(seed)
    kind, kv = DTYPES[dtype], (1, spec.num_kv_heads, case.past)
    positions = np.arange(case.total, dtype=np.int64)[None]
    return BlockInputs(
        hidden_states=rng.standard_normal((1, case.rows, spec.input_width), np.float32).astype(kind),
        position_ids=positions[:, case.past :].copy(),
        attention_mask=np.ones((1, case.total), np.int64),
        key_position_ids=positions,
        past_key=rng.standard_normal((*kv, spec.head_dim), np.float32).astype(kind),
        past_value=rng.standard_normal((*kv, spec.v_head_dim), np.float32).astype(kind),
    )
