"""Faults of linear attention, planted in artefacts: each is seen where it arises, and in every type's output alone.

A layer without a fault passes in ``tests/parity``.
"""

import pytest

from portpe import parity
from portpe.parity.faults import FAULTS

SEEN_FIRST = {  # the stage; how many times its bound the output is off at least, in float32 and in 16-bit types
    "normaliser_rotated": ("normaliser", 1e5, 50),
    "rotated_before_features": ("q_rotated", 1e5, 50),
    "features_without_one": ("q_features", 1e6, 1000),
    "window_off_by_one": ("normaliser", 1e4, 10),
}


def test_every_fault_of_features_is_planted():
    assert {name for name, fault in FAULTS.items() if fault.features is not None} <= set(SEEN_FIRST)


@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
@pytest.mark.parametrize("name", SEEN_FIRST)
def test_a_planted_fault_is_caught(copy_of, planted, margins, name, runtime):
    fault, (stage, *least) = FAULTS[name], SEEN_FIRST[name]
    kind = "linear_none" if fault.features is None else "linear_rotary"
    with planted(copy_of(kind, ("float32", "float16", "bfloat16")), fault, runtime) as faulty:
        assert fault.applies(faulty.spec, faulty.tables())
        report = parity.check(faulty, [runtime])
    assert report.status == 1
    for dtype in sorted({check.dtype for check in report.checks}):
        failed = [check for check in report.failures if check.dtype == dtype]
        first = min(failed, key=lambda check: parity.outcome.ORDER.index(check.stage))
        assert first.stage == stage
        of_output = max(check.max_abs / check.bound for check in failed if check.stage == "output")
        assert of_output > least[dtype != "float32"]
        margins.append(("44", runtime, name, dtype, "output", first.case, f"{of_output:.3g}"))


def test_they_say_nothing_of_other_layers(spec_of):
    for name, fault in FAULTS.items():
        if fault.features is not None:
            assert not fault.applies(spec_of("rotary_default"), {})
            assert fault.applies(spec_of("linear_none"), {}) == (name == "features_without_one")
