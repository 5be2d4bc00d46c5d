"""A parity report made by hand: two runtimes, one failure, one runtime missing."""

from __future__ import annotations

from typing import Any

import pytest

from portpe.parity import Check, Report, Unavailable

VERSIONS = {"portpe": "0.1.0", "onnxruntime": "1.32.0"}


def made_check(**settings: Any) -> Check:
    """A check of ONNX Runtime that passed, but for what is given."""
    usual: dict[str, Any] = {
        "runtime": "onnxruntime",
        "provider": "CPUExecutionProvider",
        "optimization": "all",
        "form": "portable",
        "dtype": "float32",
        "case": "prefill",
        "stage": "q",
        "max_abs": 1e-7,
        "max_ulp": 1.5,
        "bound": 1e-6,
        "first_position": None,
        "passed": True,
    }
    return Check(**usual | settings)


STAGES = ("output", "k_rotated", "scores", "q")  # not in the block's order


@pytest.fixture
def passing() -> Report:
    checks = tuple(made_check(case=case, stage=stage) for case in ("prefill", "decode_131071") for stage in STAGES)
    return Report(checks, (), VERSIONS)


@pytest.fixture
def failing() -> Report:
    good = [
        made_check(runtime="mlx", provider="", optimization="", form="module", case=case, stage=stage)
        for case in ("prefill", "decode_131071")
        for stage in STAGES
    ]
    bad = [
        made_check(case="prefill", stage="q"),
        made_check(case="decode_131071", stage="q"),
        made_check(case="decode_131071", stage="output", max_abs=7e-2, bound=1e-5, passed=False, first_position=3),
        made_check(
            case="decode_131071",
            stage="k_rotated",
            max_abs=3e-2,
            max_ulp=5e5,
            bound=2e-6,
            passed=False,
            first_position=131071,
        ),
        made_check(
            case="prefill",
            stage="scores",
            **dict.fromkeys(("max_abs", "max_ulp", "bound")),
            passed=False,
            first_position=0,
            problem="it has NaN or infinity",
        ),
    ]
    missing = Unavailable("onnx-reference", "onnx is not installed: pip install portpe[onnx] <& co>")
    return Report((*good, *bad), (missing,), VERSIONS)


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
