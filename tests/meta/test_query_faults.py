"""Faults of MLA and of query temperatures, planted in artefacts: each is seen, and where it arises."""

import numpy as np
import pytest

from portpe import parity
from portpe.parity.faults import Fault


def one_step_late(_spec, tables):
    """Positions counted from 0 where the temperature counts from 1, for the last position of each step."""
    return {**tables, "query_scale": np.concatenate([tables["query_scale"][:1], tables["query_scale"][:-1]])}


def never_grows(_spec, tables):
    return {**tables, "query_scale": np.ones_like(tables["query_scale"])}


def unscaled(spec):
    """The softmax multiplier left out: what a port does that knows YaRN's factor of cos and sin alone."""
    return spec.model_copy(update={"scale": spec.scale / 1.87})


def neighbours_stay(spec):
    """Keys cached in the layout of DeepSeek-V2 where V3's is promised: no score shows it."""
    return spec.model_copy(update={"rotary": spec.rotary.model_copy(update={"pairing_out": None})})


CASES = [
    ("stepped", Fault("one_step_late", "", tables=one_step_late), "q_rotated"),
    ("mla_stepped", Fault("never_grows", "", tables=never_grows), "q_rotated"),
    ("mla", Fault("unscaled", "", settings=unscaled), "scores"),
    ("mla", Fault("neighbours_stay", "", settings=neighbours_stay), "q_rotated"),
]


@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
@pytest.mark.parametrize(("kind", "fault", "stage"), CASES, ids=[f"{kind}-{fault.name}" for kind, fault, _ in CASES])
def test_a_planted_fault_is_caught_where_it_arises(copy_of, planted, kind, fault, stage, runtime):
    folder = copy_of(kind)
    with planted(folder, fault, runtime) as faulty:
        report = parity.check(faulty, [runtime])
    assert report.status == 1
    seen = [check for check in report.failures if check.max_abs is not None]
    assert min(seen, key=lambda check: parity.outcome.ORDER.index(check.stage)).stage == stage
    assert parity.check(type(faulty).open(folder), [runtime]).passed


def test_a_layout_that_no_score_shows_is_seen_in_the_cache(copy_of, planted):
    folder = copy_of("mla")
    with planted(folder, CASES[-1][1], "onnxruntime") as faulty:
        report = parity.check(faulty, ["onnxruntime"])
    wrong = {check.stage for check in report.failures}
    assert "present_key" in wrong
    assert not {"scores", "probs", "context"} & wrong
