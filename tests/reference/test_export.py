"""Layer: tests. The block through torch's exporters: one trace, every other size; no table of the trace's length.

Both of torch's paths: a torch.export program, and an ONNX file of the tracing exporter that ONNX Runtime runs. They
share nothing with portpe's own exporter, so it can be compared with them.
"""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.export import Dim

from portpe.encodings import DynamicSchedule, DynamicYarnSchedule, LongropeSchedule, PerSequenceRegime, RotaryEncoding
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.tables import table_set

TRACED = (2, 7, 4)  # batch, sequence, past
BAKED = {7, 11}  # a constant of the traced sequence or total would have one of these sizes; no weight has
OTHERS = [(3, 1, 9), (1, 16, 0), (1, 4, 5), (5, 9, 2), (2, 8, 0)]
NAMES = ("hidden_states", "position_ids", "attention_mask", "past_key", "past_value", "key_position_ids")
AXES = {name: (0, 2) if name.startswith("past") else (0, 1) for name in NAMES}
EXPORTED = ["half", "interleaved", "partial_last_negative", "decay", "sinusoidal", "learned", "alibi"]
EXPORTED += ["softcap_sinks_clip", "linear"]


def arguments(spec, batch, seq, past, end=3000):
    rng = np.random.default_rng(batch * 100 + seq * 10 + past)
    mask = torch.ones(batch, past + seq).long()
    mask[0, : past // 2] = 0
    end = end if spec.embedding is None or spec.embedding.rows is None else spec.embedding.rows - spec.embedding.offset
    floats = {
        "hidden_states": (batch, seq, spec.hidden_size),
        "past_key": (batch, spec.num_kv_heads, past, spec.head_dim),
        "past_value": (batch, spec.num_kv_heads, past, spec.v_head_dim),
    }
    given = {name: torch.from_numpy(rng.standard_normal(shape, np.float32)) for name, shape in floats.items()}
    for name, length in (("position_ids", seq), ("key_position_ids", past + seq)):
        given[name] = torch.from_numpy(rng.integers(0, end, (batch, length)))
    return {name: (given | {"attention_mask": mask})[name] for name in NAMES}


FOLLOWING = {
    "dynamic": DynamicSchedule(rope_theta=50.0, factor=2.5, max_position_embeddings=500),
    "dynamic_yarn": DynamicYarnSchedule(rope_theta=50.0, original_max_position_embeddings=500),
    "longrope": LongropeSchedule(
        rope_theta=50.0,
        short_factor=(1.0, 1.1, 1.3, 1.7),
        long_factor=(1.2, 2.5, 4.0, 9.0),
        original_max_position_embeddings=500,
        factor=4.0,
    ),
}


def by_length(spec_of, kind):
    rotary = RotaryEncoding(width=8, schedule=FOLLOWING[kind], regime=PerSequenceRegime())
    return spec_of("half").model_copy(update={"rotary": rotary})


@pytest.fixture(params=[*EXPORTED, *FOLLOWING])
def traceable(request, spec_of, weights_of):
    """A block in float32 that holds its tables."""
    spec = spec_of(request.param) if request.param in EXPORTED else by_length(spec_of, request.param)
    return Attention(spec, tables=table_set(spec, 4096)).load(weights_of(spec))


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max())
        np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), rtol=0, atol=1e-5 * scale)


def to_program(block):
    shapes = {name: dict.fromkeys(axes, Dim.DYNAMIC) for name, axes in AXES.items()}
    return torch.export.export(block, (), arguments(block.spec, *TRACED), dynamic_shapes=shapes)


def test_one_torch_program_serves_every_size(traceable):
    program = to_program(traceable)
    stored = program.state_dict | program.constants
    assert {name: tensor.shape for name, tensor in stored.items() if BAKED & set(tensor.shape)} == {}  # O01
    module = program.module()
    for sizes in [TRACED, *OTHERS]:
        given = arguments(traceable.spec, *sizes)
        close(module(**given), traceable(**given))


@pytest.mark.parametrize("end", [400, 3000])
@pytest.mark.parametrize("kind", FOLLOWING)
def test_what_can_be_traced_equals_what_is_exact(spec_of, weights_of, kind, end):
    """Angles that are formed or looked up in torch against 50 digits; on both sides of the trained length."""
    spec = by_length(spec_of, kind)
    traced, exact = (
        Attention(spec, dtype=torch.float64, tables=given).load(weights_of(spec)) for given in (table_set(spec), None)
    )
    given = {k: v.double() if v.is_floating_point() else v for k, v in arguments(spec, 3, 5, 6, end).items()}
    found, expected = traced.stages(**given), exact.stages(**given)
    for stage in ("q_rotated", "k_rotated"):
        size = float(expected[stage].abs().max())
        tolerance = 3e-7 if kind == "longrope" else 1e-11  # two float32 levels, or float64 throughout
        np.testing.assert_allclose(found[stage], expected[stage], rtol=0, atol=tolerance * size)


class Positional(torch.nn.Module):
    """The tracing exporter passes no keywords."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden_states, position_ids, attention_mask, past_key, past_value, key_position_ids):
        cache = {"past_key": past_key, "past_value": past_value, "key_position_ids": key_position_ids}
        return tuple(self.block(hidden_states, position_ids, attention_mask, **cache))


def to_onnx(block, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about checks of values, which a graph cannot have
        torch.onnx.export(
            Positional(block),
            tuple(arguments(block.spec, *TRACED).values()),
            str(path),
            dynamo=False,
            opset_version=18,
            input_names=list(NAMES),
            output_names=["output", "present_key", "present_value"],
            dynamic_axes={name: {axis: f"{name}_{axis}" for axis in axes} for name, axes in AXES.items()},
        )


def test_one_onnx_file_serves_every_size(traceable, tmp_path):
    """O09: the interleaved layout with a dynamic sequence, among the others; opset 18."""
    path = tmp_path / "block.onnx"
    to_onnx(traceable, path)
    graph = onnx.load(path).graph
    stored = [*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.name == "value")]
    assert [tensor.name for tensor in stored if BAKED & set(tensor.dims)] == []  # O01
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {node.name for node in session.get_inputs()}
    for sizes in [TRACED, *OTHERS]:
        given = arguments(traceable.spec, *sizes)
        found = session.run(None, {name: tensor.numpy() for name, tensor in given.items() if name in taken})
        close(found, traceable(**given))


@pytest.mark.parametrize("name", ["half", "sinusoidal"])
def test_an_export_without_tables_is_refused(spec_of, weights_of, tmp_path, name):
    """O01: positions that leave torch would come back as a constant of the traced length."""
    spec = spec_of(name)
    block = Attention(spec).load(weights_of(spec))
    with pytest.raises(SpecError, match="tables are required to export a block"):
        to_program(block)
    with pytest.raises(SpecError, match="tables are required to export a block"):
        to_onnx(block, tmp_path / "block.onnx")


def test_an_exported_look_up_refuses_what_lies_outside_its_table(spec_of, weights_of):
    """A trace has no checks of values left, but no index wraps: negative and too large ones raise."""
    spec = spec_of("half")
    block = Attention(spec, tables=table_set(spec, 4096)).load(weights_of(spec))
    module = to_program(block).module()
    given = arguments(spec, *TRACED)
    for position in (-1, 4096):
        with pytest.raises(IndexError, match="out of range"):
            module(**given | {"position_ids": torch.full((2, 7), position)})
