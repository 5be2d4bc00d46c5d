"""Faults of a graph that everyday positions and masks do not show: each is seen, by the case made for it."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from portpe import parity
from portpe.exporting import export

PAST = "past_key_values.0.key"


def _constant(name, value):
    return numpy_helper.from_array(np.asarray(value, np.int64), name)


def _pads_before_tokens():
    """How many keys are kept, and those the last ones: what a graph does that counts the mask's ones."""
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "faulty_axis"], ["faulty_kept"], keepdims=1),
        helper.make_node("Shape", ["attention_mask"], ["faulty_total"], start=1, end=2),
        helper.make_node("Squeeze", ["faulty_total"], ["faulty_end"]),
        helper.make_node("Range", ["faulty_zero", "faulty_end", "faulty_one"], ["faulty_slots"]),
        helper.make_node("Sub", ["faulty_total", "faulty_kept"], ["faulty_pads"]),
        helper.make_node("GreaterOrEqual", ["faulty_slots", "faulty_pads"], ["faulty_seen"]),
        helper.make_node("Cast", ["faulty_seen"], ["faulty_mask"], to=onnx.TensorProto.INT64),
    ]
    return nodes, [_constant("faulty_axis", [1]), _constant("faulty_zero", 0), _constant("faulty_one", 1)]


def _cached_keys_alone():
    """The mask of cached keys is kept, this call's own keys are all seen."""
    nodes = [
        helper.make_node("Shape", [PAST], ["faulty_past"], start=2, end=3),
        helper.make_node("Shape", ["attention_mask"], ["faulty_total"], start=1, end=2),
        helper.make_node("Squeeze", ["faulty_total"], ["faulty_end"]),
        helper.make_node("Range", ["faulty_zero", "faulty_end", "faulty_one"], ["faulty_slots"]),
        helper.make_node("GreaterOrEqual", ["faulty_slots", "faulty_past"], ["faulty_new"]),
        helper.make_node("Cast", ["faulty_new"], ["faulty_ones"], to=onnx.TensorProto.INT64),
        helper.make_node("Max", ["attention_mask", "faulty_ones"], ["faulty_mask"]),
    ]
    return nodes, [_constant("faulty_zero", 0), _constant("faulty_one", 1)]


@pytest.fixture(scope="module")
def folder(spec_of, tmp_path_factory):
    return export(spec_of("rotary_llama3"), tmp_path_factory.mktemp("graph") / "bundle").path


def _judged(folder, model, tmp_path):
    path = tmp_path / "theirs.onnx"
    path.write_bytes(model.SerializeToString())
    for data in (folder / "onnx").glob("*.data"):
        (tmp_path / data.name).write_bytes(data.read_bytes())
    return parity.check(folder, graph=path)


def _graph(folder):
    return onnx.load(folder / "onnx" / "portable_float32.onnx", load_external_data=False)


def test_the_graph_itself_passes(folder, tmp_path):
    assert _judged(folder, _graph(folder), tmp_path).passed


@pytest.mark.parametrize("fault", [_pads_before_tokens, _cached_keys_alone])
def test_a_mask_that_is_read_as_another_one_is_seen(folder, tmp_path, fault):
    model = _graph(folder)
    nodes, constants = fault()
    for node in model.graph.node:
        node.input[:] = ["faulty_mask" if name == "attention_mask" else name for name in node.input]
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    model.graph.initializer.extend(constants)
    report = _judged(folder, model, tmp_path)
    assert report.status == 1
    assert "holes" in {check.case for check in report.failures}


@pytest.mark.parametrize(("first", "last"), [(1, 120), (128, 500), (3, 12)])
@pytest.mark.parametrize("table", ["cos_hi", "sin_hi"])
def test_a_stretch_of_a_table_that_is_wrong_is_seen(folder, tmp_path, table, first, last):
    """Rows of 1024 positions each, from the trained length up to the far positions that are asked for by number."""
    model = _graph(folder)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == table)
    array = numpy_helper.to_array(tensor).copy()
    array[first:last] = 0
    tensor.CopyFrom(numpy_helper.from_array(array, table))
    report = _judged(folder, model, tmp_path)
    assert report.status == 1
    assert "spread_positions" in {check.case for check in report.failures}


@pytest.mark.parametrize("reach", [300, 700])
def test_distances_that_end_before_the_keys_do_are_seen(spec_of, tmp_path, reach):
    """ALiBi trained at 20000, which no case fills a cache to: keys need not stand one behind the other to be far."""
    folder = export(spec_of("alibi", max_position_embeddings=20000), tmp_path / "bundle").path
    model = _graph(folder)
    (product,) = [node for node in model.graph.node if "slopes" in node.input]
    distance = next(name for name in product.input if name != "slopes")
    place = list(model.graph.node).index(product)
    product.input[:] = ["faulty_distance" if name == distance else name for name in product.input]
    model.graph.node.insert(place, helper.make_node("Max", [distance, "faulty_reach"], ["faulty_distance"]))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(-reach, np.float32), "faulty_reach"))
    report = _judged(folder, model, tmp_path)
    assert report.status == 1
    assert "spread_positions" in {check.case for check in report.failures}
