"""The portable graph: the names of its inputs and outputs, groups as rows, casts that hold its types together."""

import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from tests.exporters.onnx.blocks import SPECS, random_weights
from tests.exporters.onnx.files import write
from tests.exporters.onnx.opened import described, graph_of


def test_the_names_of_a_cached_graph(tmp_path):
    model = graph_of("all-together", tmp_path, "float16")
    half, whole = TensorProto.FLOAT16, TensorProto.INT64
    batch, sequence, past, total = (
        "batch_size",
        "sequence_length",
        "past_sequence_length",
        "total_sequence_length",
    )
    assert list(described(model.graph.input).items()) == [
        ("hidden_states", (half, [batch, sequence, 20])),
        ("position_ids", (whole, [batch, sequence])),
        ("attention_mask", (whole, [batch, total])),
        ("key_position_ids", (whole, [batch, total])),
        ("past_key_values.3.key", (half, [batch, 2, past, 8])),
        ("past_key_values.3.value", (half, [batch, 2, past, 5])),
    ]
    assert list(described(model.graph.output).items()) == [
        ("attention_output", (half, [batch, sequence, 20])),
        ("present.3.key", (half, [batch, 2, total, 8])),
        ("present.3.value", (half, [batch, 2, total, 5])),
    ]


def test_onnxruntime_sees_inputs_that_nothing_uses(tmp_path):
    files = write(tmp_path, SPECS["none"], random_weights(SPECS["none"], "float32"), "float32")
    session = onnxruntime.InferenceSession(str(files.path), providers=["CPUExecutionProvider"])
    assert "position_ids" in [value.name for value in session.get_inputs()]


@pytest.mark.parametrize("name", ["rotary-half", "none-multi-query", "all-together"])
def test_keys_and_values_are_not_repeated(name, tmp_path):
    """Groups of query heads become rows: no product has as many key heads as query heads."""
    spec, graph = SPECS[name], graph_of(name, tmp_path).graph
    shapes = described([*graph.input, *graph.value_info, *graph.output])
    products = [node for node in graph.node if node.op_type == "MatMul" and len(shapes[node.output[0]][1]) == 4]
    assert len(products) == 2
    for node in products:
        assert {shapes[name][1][1] for name in (*node.input, *node.output)} == {spec.num_kv_heads}
    expanded = [node.output[0] for node in graph.node if node.op_type in ("Expand", "Tile")]
    assert all(sizes[-1] == 1 for sizes in (shapes[name][1] for name in expanded))  # sinks: one column


def test_range_takes_scalars(tmp_path):
    graph = graph_of("window", tmp_path).graph
    shapes = described(graph.value_info) | {t.name: (t.data_type, list(t.dims)) for t in graph.initializer}
    ranges = [node for node in graph.node if node.op_type == "Range"]
    assert len(ranges) == 2
    assert all(shapes[name][1] == [] for node in ranges for name in node.input)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_graph_without_its_casts_is_refused(dtype, tmp_path):
    """Float32 cosines times queries of another type: a type error, which the casts of the graph prevent."""
    model = graph_of("rotary-half", tmp_path, dtype)
    casts = [node for node in model.graph.node if node.op_type == "Cast" and node.name.startswith("rotation/")]
    assert len(casts) == 2
    for cast in casts:
        for node in model.graph.node:
            node.input[:] = [cast.input[0] if name == cast.output[0] else name for name in node.input]
        model.graph.node.remove(cast)
    with pytest.raises(Exception, match=r"(?i)type"):
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    path = tmp_path / "uncast.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match="Type Error"):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", SPECS)
def test_products_of_heads_have_factors_of_four_dimensions(name, tmp_path):
    """Or of two at most: ONNX Runtime 1.32 crashes at its highest level where it fuses the Transpose of a float16
    factor of four into a product with one of three.
    """
    graph = graph_of(name, tmp_path, "float16").graph
    ranks = {
        value: len(shape) for value, (_, shape) in described([*graph.input, *graph.value_info, *graph.output]).items()
    }
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul":
            first, second = sorted(ranks[factor] for factor in node.input)
            assert first <= 2 or first == second == 4, node.name
