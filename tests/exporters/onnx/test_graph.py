"""The builder: sizes by name, and constants that are shared."""

import numpy as np
import onnx_ir as ir
import pytest

from portpe.exporters.onnx.graph import FLOAT, INT64, GraphBuilder, broadcast, shape_of


def test_broadcasting_keeps_names():
    assert broadcast(("b", 1, "s"), ("t", 1)) == ("b", "t", "s")
    assert broadcast((), (3, "s")) == (3, "s")
    assert broadcast((1, 4), (1, 1)) == (1, 4)


@pytest.mark.parametrize(("left", "right"), [(("b", 2), ("b", 3)), (("s",), ("t",)), (("s",), (4,))])
def test_sizes_that_may_differ_do_not_broadcast(left, right):
    with pytest.raises(ValueError, match="shapes do not broadcast"):
        broadcast(left, right)


def test_products_need_equal_inner_sizes():
    graph = GraphBuilder("float32")
    x, y = graph.input("x", FLOAT, ("b", 2, 5)), graph.input("y", FLOAT, (4, 3))
    with pytest.raises(ValueError, match=r"shapes do not multiply: \('b', 2, 5\) and \(4, 3\)"):
        graph.matmul(x, y)


def test_equal_constants_are_one_initializer():
    graph = GraphBuilder("float16")
    assert graph.ints(0, -1) is graph.ints(0, -1)
    assert graph.scalar(0.5, FLOAT) is graph.scalar(0.5, FLOAT)
    assert graph.scalar(0, INT64) is not graph.scalar(0.0, FLOAT)
    assert graph.scalar(0.5, FLOAT) is not graph.scalar(0.5, graph.dtype)
    assert shape_of(graph.scalar(0, INT64)) == ()


def test_nodes_are_named_by_stage_and_count():
    graph = GraphBuilder("float32")
    x = graph.input("x", FLOAT, ("b",))
    with graph.stage("outer"):
        first = graph.unary("Neg", x)
        with graph.stage("inner"):
            inner = graph.unary("Neg", x)
        second = graph.unary("Neg", x)
    assert [value.name for value in (first, inner, second)] == ["outer/Neg", "inner/Neg", "outer/Neg_1"]


def test_a_cast_to_the_same_type_is_nothing():
    graph = GraphBuilder("bfloat16")
    x = graph.input("x", graph.dtype, ("b",))
    assert graph.cast(x, graph.dtype) is x
    assert graph.cast(x, FLOAT).dtype == FLOAT


def test_inline_tables_keep_their_values_and_order():
    graph = GraphBuilder("float32")
    array = np.arange(6, dtype=np.float64).reshape(2, 3).T
    tensor = graph.inline("table", array, FLOAT).const_value
    assert tensor is not None
    assert tensor.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(tensor.numpy(), array.astype(np.float32))
