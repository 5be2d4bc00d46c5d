"""Biases over a grid in every graph form and in mlx, and positions outside the grid refused."""

import numpy as np
import onnxruntime
import pytest

from portpe.bundle import graph_name
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, refusal
from portpe.exporting import export
from portpe.parity import check

KINDS = ("grid_table", "grid_table_prefix", "grid_table_absolute", "grid_network", "grid_vectors")


@pytest.mark.parametrize("name", KINDS)
def test_every_form_that_carries_the_block_agrees_with_the_truth(name, spec_of, tmp_path):
    spec = spec_of(name, v_head_dim=8)
    forms = tuple(form for form in FORMS if refusal(spec, form) is None)
    assert set(forms) == {"portable", "standard", "ort"}
    bundle = export(spec, tmp_path / "bundle", forms=forms)
    report = check(bundle, ["onnxruntime"], matrix="quick")
    assert {(one.form, one.case) for one in report.checks} >= {(form, "prefill") for form in forms}
    assert report.passed, report.failures[:3]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("axis", "place"), [(0, -1), (1, -1), (0, "end"), (1, "end")])
@pytest.mark.parametrize("which", ["position_ids", "key_position_ids"])
def test_a_position_outside_the_grid_raises_in_the_graph(name, axis, place, which, spec_of, tmp_path):
    """Its offset would be that of other cells: a column past the end is the next row's first."""
    spec = spec_of(name)
    bundle = export(spec, tmp_path / "bundle", golden=False)
    session = onnxruntime.InferenceSession(bundle.path / graph_name("portable", "float32"))
    ids = np.zeros((2, 1, 4), np.int64)
    ids[:, :, 1:] = 1
    inputs = {
        "hidden_states": np.ones((1, 4, spec.hidden_size), np.float32),
        "attention_mask": np.ones((1, 4), np.int64),
        "position_ids": ids,
        "key_position_ids": ids,
    }
    assert np.isfinite(session.run(None, inputs)[0]).all()
    outside = ids.copy()
    outside[axis, 0, 2] = spec.position_ends[axis] if place == "end" else place
    with pytest.raises(Exception, match=r"out of data bounds|invalid index found"):
        session.run(None, inputs | {which: outside})


def test_runtimes_refuse_a_position_outside_the_grid(spec_of):
    import torch

    from portpe.random_weights import random_weights
    from portpe.reference import Attention
    from portpe.runtimes.mlx import Attention as MlxAttention
    from portpe.runtimes.mlx.weights import to_mlx

    spec = spec_of("grid_table")  # 4 rows of 5 cells
    weights = random_weights(spec, 3)
    reference, mlx = Attention(spec).load(weights), MlxAttention(spec)
    mlx.load(weights)
    x = np.random.default_rng(2).standard_normal((1, 3, spec.hidden_size), np.float32)
    good, bad = np.array([[[0, 3, 2]], [[4, 0, 1]]]), np.array([[[0, 3, 2]], [[4, 5, 1]]])
    assert reference(torch.from_numpy(x), torch.from_numpy(good)).output.isfinite().all()
    for call in (
        lambda: reference(torch.from_numpy(x), torch.from_numpy(bad)),
        lambda: mlx(to_mlx(x), position_ids=bad),
    ):
        with pytest.raises(SpecError, match=r"position_ids\[1\] must be < 5, the end of the grid, got 5"):
            call()
