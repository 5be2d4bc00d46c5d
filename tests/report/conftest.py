"""A parity report made by hand: two runtimes, one failure, one runtime missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass(frozen=True)
class FakeCheck:
    runtime: str = "onnxruntime"
    provider: str = "CPUExecutionProvider"
    optimization: str = "all"
    form: str = "portable"
    dtype: str = "float32"
    case: str = "prefill"
    stage: str = "q"
    max_abs: float | None = 1e-7
    max_ulp: float | None = 1.5
    bound: float | None = 1e-6
    first_position: int | None = None
    passed: bool = True


@dataclass(frozen=True)
class FakeUnavailable:
    runtime: str
    reason: str


@dataclass(frozen=True)
class FakeReport:
    checks: tuple[FakeCheck, ...]
    unavailable: tuple[FakeUnavailable, ...] = ()
    versions: dict[str, str] = field(default_factory=lambda: {"portpe": "0.1.0", "onnxruntime": "1.32.0"})

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


STAGES = ("output", "k_rotated", "scores", "q")  # not in the block's order


@pytest.fixture
def passing() -> FakeReport:
    checks = tuple(FakeCheck(case=case, stage=stage) for case in ("prefill", "decode_131071") for stage in STAGES)
    return FakeReport(checks)


@pytest.fixture
def failing() -> FakeReport:
    good = [
        FakeCheck(runtime="mlx", provider="", optimization="", form="module", case=case, stage=stage)
        for case in ("prefill", "decode_131071")
        for stage in STAGES
    ]
    bad = [
        FakeCheck(case="prefill", stage="q"),
        FakeCheck(case="decode_131071", stage="q"),
        FakeCheck(case="decode_131071", stage="output", max_abs=7e-2, bound=1e-5, passed=False, first_position=3),
        FakeCheck(
            case="decode_131071",
            stage="k_rotated",
            max_abs=3e-2,
            max_ulp=5e5,
            bound=2e-6,
            passed=False,
            first_position=131071,
        ),
        FakeCheck(case="prefill", stage="scores", max_abs=float("nan"), max_ulp=None, passed=False, first_position=0),
    ]
    missing = FakeUnavailable("onnx-reference", "onnx is not installed: pip install portpe[onnx] <& co>")
    return FakeReport((*good, *bad), (missing,))


@pytest.fixture
def manifest() -> dict[str, Any]:
    from portpe.encodings import DefaultSchedule, RotaryEncoding
    from portpe.spec import AttentionSpec

    spec = AttentionSpec(
        hidden_size=48,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        v_head_dim=8,
        scale=0.35,
        rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=500000.0)),
    )
    return {
        "spec": spec.to_dict(),
        "source": {"name": "tiny <model>", "sha256": "0" * 64},
        "layer": 3,
        "weights": "random",
        "seed": 7,
    }
