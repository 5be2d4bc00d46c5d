"""Layer: tests. Who computes the layer is told from who computes another, and from float32 angles."""

import dataclasses

import numpy as np
import pytest
import torch

from portpe.bench.case import Case, inputs
from portpe.bench.subject import Subject
from portpe.bench.truth import Truth
from portpe.interface import BlockInputs
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.reference.arrays import to_numpy, to_torch
from portpe.tables import table_set


def subject_of(spec, tmp_path, dtype="float32"):
    return Subject(spec, dtype, 0, random_weights(spec, 1), table_set(spec), {}, tmp_path)


def output_of(spec, weights, given, dtype="float32", tables=None):
    block = Attention(spec, dtype=getattr(torch, dtype), tables=tables).load(weights)
    arrays = [name for name in BlockInputs.__dataclass_fields__ if name != "past_states"]  # none of these kinds has
    found = block(**{name: to_torch(getattr(given, name)) for name in arrays})
    return to_numpy(found.output)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", [Case("prefill", 23), Case("decode", 37)], ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["rotary_yarn", "alibi", "sinusoidal_sin_cos", "none", "norm_after"])
def test_the_reference_is_exact(spec_of, tmp_path, name, case, dtype):
    spec = spec_of(name)
    subject, given = subject_of(spec, tmp_path, dtype), inputs(spec, case, dtype)
    judged = Truth(subject, case, given).judge(output_of(spec, subject.weights, given, dtype))
    assert judged.verdict == "exact", judged
    assert 0 < judged.share <= 1


@pytest.mark.parametrize("case", [Case("prefill", 23), Case("decode", 37)], ids=lambda case: case.name)
@pytest.mark.parametrize(
    "change",
    [{"rotary": None}, {"window": 15}, {"scale": 0.36}],
    ids=["no rotation", "a window", "another scale"],
)
def test_another_layer_is_wrong(spec_of, tmp_path, case, change):
    spec = spec_of("rotary_default")
    subject, given = subject_of(spec, tmp_path), inputs(spec, case, "float32")
    other = spec.model_copy(update=change)
    judged = Truth(subject, case, given).judge(output_of(other, subject.weights, given))
    assert judged.verdict == "wrong", judged
    assert judged.share > 10


def test_one_wrong_row_is_seen_at_either_end(spec_of, tmp_path):
    spec, case = spec_of("rotary_default"), Case("prefill", 23)
    subject, given = subject_of(spec, tmp_path), inputs(spec, case, "float32")
    truth, output = Truth(subject, case, given), output_of(spec, subject.weights, given)
    for row in (0, 22):
        changed = output.copy()
        changed[0, row, 5] += 0.01
        assert truth.judge(changed).verdict == "wrong"


def test_float32_angles_far_out_are_told_apart(spec_of, tmp_path):
    """At position 900001 a float32 angle of 0.1 a step is off by up to 90000 / 2**24 = 0.005: no rounding is."""
    spec, case = spec_of("rotary_default"), Case("decode", 40)
    subject, given = subject_of(spec, tmp_path), inputs(spec, case, "float32")
    given = dataclasses.replace(given, position_ids=np.array([[900001]]))
    hf = spec.with_precision("hf")
    found = output_of(hf, subject.weights, given, tables=table_set(hf, 900002))
    truth = Truth(subject, case, given)
    assert truth.judge(found).verdict == "float32 angles"
    assert truth.judge(output_of(spec, subject.weights, given)).verdict == "exact"
    turned = spec.model_copy(update={"rotary": spec.rotary.model_copy(update={"sign": -1})})
    assert truth.judge(output_of(turned, subject.weights, given)).verdict == "wrong"


@pytest.mark.parametrize("broken", [np.full((1, 1, 44), np.nan, np.float32), np.zeros((1, 2, 44), np.float32)])
def test_nan_and_other_shapes_are_wrong(spec_of, tmp_path, broken):
    spec, case = spec_of("rotary_default"), Case("decode", 5)
    given = inputs(spec, case, "float32")
    assert Truth(subject_of(spec, tmp_path), case, given).judge(broken).verdict == "wrong"
