"""Schedules that follow a row's length, in the graph: lengths by hand, float64 where it counts, positions refused."""

import numpy as np
import onnx
import pytest

from portpe import parity
from portpe.exporters.onnx import length_rows
from portpe.exporters.onnx.graph import FLOAT
from portpe.exporting import export
from portpe.runtimes import graph_io
from tests.exporters.onnx.blocks import CALLS, LAYER, SPECS, inputs_of, random_weights
from tests.exporters.onnx.files import write
from tests.exporters.onnx.opened import graph_of, types
from tests.exporters.onnx.test_lookup import by_onnxruntime, by_reference
from tests.kinds import make_spec

BY_LENGTH = [name for name in SPECS if name.startswith("by-length")]


@pytest.mark.parametrize("run", [by_onnxruntime, by_reference])
@pytest.mark.parametrize("ids", ["position_ids", "key_position_ids"])
@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_negative_position_raises(name, ids, run, tmp_path):
    """Also where no table is looked up: an angle would be formed without a word."""
    spec = SPECS[name]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    feeds = graph_io.feeds(spec, LAYER, inputs_of(spec, CALLS["arbitrary"], "float32"))
    run(files.path, feeds)
    places = feeds[ids].copy()
    places[1, 0] = -1
    with pytest.raises(Exception, match="out of"):
        run(files.path, {**feeds, ids: places})


@pytest.mark.parametrize("name", ["by-length-dynamic", "by-length-dynamic-yarn"])
def test_a_law_that_follows_every_token_is_evaluated_in_float64(name, tmp_path):
    """No table, and no cosine: ONNX Runtime has had the sine in float64 for longer."""
    graph = graph_of(name, tmp_path).graph
    assert not [tensor.name for tensor in graph.initializer if "cos" in tensor.name or "sin" in tensor.name]
    found = types(graph)
    waves = [node for node in graph.node if node.op_type in ("Sin", "Cos")]
    assert {node.op_type for node in waves} == {"Sin"}
    assert {found[node.input[0]] for node in waves} == {onnx.TensorProto.DOUBLE}


def test_longrope_has_both_sets_of_tables(tmp_path):
    names = {tensor.name for tensor in graph_of("by-length-longrope", tmp_path).graph.initializer}
    levels = {f"{wave}_{level}" for wave in ("cos", "sin") for level in ("hi", "lo")}
    assert {f"{side}_{level}" for side in ("short", "long") for level in levels} <= names


def test_angles_in_float32_are_found_out(tmp_path, monkeypatch):
    """The same graph with its law in float32: off by thousandths at position 131071, and parity says where."""
    spec, quick = make_spec("rotary_dynamic_by_length", bias=[], window=None), {"matrix": "quick"}
    export(spec, tmp_path / "right")
    assert parity.check(tmp_path / "right", ["onnxruntime"], **quick).passed
    monkeypatch.setattr(length_rows, "DOUBLE", FLOAT)
    export(spec, tmp_path / "wrong")
    report = parity.check(tmp_path / "wrong", ["onnxruntime"], **quick)
    failed = {(check.case, check.stage): check for check in report.failures}
    far = failed["position_131071", "q_rotated"]
    assert 1e-4 < far.max_abs < 1e-1
    assert far.max_abs > 100 * far.bound


def test_lengths_are_those_of_the_kept_keys(tmp_path):
    """Two calls that differ in what stands in a masked slot alone give the same outputs, bit for bit."""
    spec = SPECS["by-length-longrope"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32")
    inputs = inputs_of(spec, CALLS["arbitrary"], "float32")
    mask, keys = inputs.attention_mask.copy(), inputs.key_position_ids.copy()
    mask[:, 0] = 0
    keys[:, 0] = 0
    feeds = graph_io.feeds(spec, LAYER, inputs) | {"attention_mask": mask, "key_position_ids": keys}
    before = by_onnxruntime(files.path, feeds)
    far = keys.copy()
    far[:, 0] = 100_000  # a pad that somebody counted on
    after = by_onnxruntime(files.path, feeds | {"key_position_ids": far})
    np.testing.assert_array_equal(after[0], before[0])
    far_and_kept = by_onnxruntime(files.path, feeds | {"key_position_ids": far, "attention_mask": np.ones_like(mask)})
    assert np.abs(far_and_kept[0] - before[0]).max() > 1e-3
