"""What is asked of a bench."""

from __future__ import annotations

from dataclasses import dataclass

from portpe.bench.case import LENGTHS, PHASES, QUICK_LENGTHS, Case, Phase
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

BUDGET = 180.0  # seconds a case
OVERHEAD_SHARE = 0.35  # of that, once more for the overhead of the fastest forms
MIN_ROUNDS = 3
MAX_ROUNDS = 40
QUICK_ROUNDS = 7


@dataclass(frozen=True)
class Settings:
    """``rounds`` None: as many as fit into ``budget`` seconds a case, within MIN_ROUNDS and MAX_ROUNDS."""

    lengths: tuple[int, ...] = LENGTHS
    phases: tuple[Phase, ...] = PHASES
    threads: int = 1
    rounds: int | None = None
    budget: float = BUDGET
    seed: int = 0
    runtimes: tuple[str, ...] = ()
    peers: bool = True
    only: tuple[str, ...] = ()
    processes: bool = True
    small: bool = False

    def check(self) -> None:
        """Refuse what no bench could do. Raises SpecError."""
        if not self.lengths or min(self.lengths) < 1:
            raise SpecError(f"lengths must be >= 1, got {list(self.lengths)}")
        for phase in self.phases:
            if phase not in PHASES:
                raise SpecError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        for name in ("threads", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} must be >= 1, got {value}")
        if self.budget <= 0:
            raise SpecError(f"budget must be > 0 seconds, got {self.budget}")

    @property
    def clock(self) -> str:
        """By which time competitors are compared: one thread's CPU time does not see who else uses the machine."""
        return "cpu" if self.threads == 1 else "wall"

    def cases(self, spec: AttentionSpec) -> list[Case]:
        """Decode and prefill of every length; without causality there is no cache to decode with."""
        phases = [phase for phase in PHASES if phase in self.phases and (phase == "prefill" or spec.causal)]
        return [Case(phase, length) for phase in phases for length in self.lengths]


def quick(threads: int = 1) -> Settings:
    """Two short lengths, few rounds, no child processes: a look, no measurement."""
    return Settings(lengths=QUICK_LENGTHS, threads=threads, rounds=QUICK_ROUNDS, processes=False, small=True)
