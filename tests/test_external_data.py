"""Locations of external data against onnx's own reading of the same bytes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from portpe.errors import SpecError
from portpe.external_data import locations


def _external(name, location):
    tensor = numpy_helper.from_array(np.ones(300, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "1200")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _model(*initializers):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [300])
    node = helper.make_node("Identity", ["x"], ["y"], name="location")
    graph = helper.make_graph([node], "g", [value], [], initializer=list(initializers))
    return helper.make_model(graph, producer_name="location")


def test_finds_what_onnx_finds(bundle_of):
    for dtype in ("float32", "float16", "bfloat16"):
        path = bundle_of("rotary_yarn").graph("portable", dtype)
        model = onnx.load(path, load_external_data=False)
        expected = {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        assert locations(path.read_bytes()) == expected == {f"weights_{dtype}.data"}


def test_every_tensor_is_looked_at():
    inline = numpy_helper.from_array(np.ones(5, np.float32), "inline")
    model = _model(_external("a", "one.data"), inline, _external("b", "../two.data"))
    assert locations(model.SerializeToString()) == {"one.data", "../two.data"}
    assert locations(_model(inline).SerializeToString()) == set()


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_truncated_bytes_are_refused(cut):
    whole = _model(_external("a", "one.data")).SerializeToString()
    with pytest.raises(SpecError, match="graph must be a"):
        locations(whole[:-cut])


def test_no_protobuf_is_refused():
    with pytest.raises(SpecError, match="graph must be a"):
        locations(b"\x0f no graph")
