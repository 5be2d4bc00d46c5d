"""Faults of FoX's forgetting bias, each planted in an exporter or a module alone: parity sees it where it shows."""

from dataclasses import replace

import mlx.core as mx
import pytest

from portpe import parity
from portpe.exporters.onnx import bias as site
from portpe.exporters.onnx.bias.forget import END, forget, gates
from portpe.exporters.onnx.graph import INT64, shape_of
from portpe.exporting import export
from portpe.runtimes import onnxruntime
from portpe.runtimes.mlx.bias.forget import Forget
from tests.kinds import make_spec


def at_queries(graph, inputs):
    """The gates of this call's own tokens, (batch, heads, sequence)."""
    gate = inputs.states["gate"]
    batch, heads, _ = shape_of(gate)
    start = graph.unary("Neg", graph.sizes(inputs.hidden, 1))
    shape = (batch, heads, shape_of(inputs.hidden)[1])
    return graph.op("Slice", gate, start, graph.ints(END), graph.ints(2), shape=shape)


# --- in graphs: what takes the place of the site's two functions ---


def own_step_left_out(graph, encoding, inputs):
    found = forget(graph, encoding, inputs)
    return graph.binary("Sub", found, graph.unsqueeze(at_queries(graph, inputs), 3))


def key_included(graph, encoding, inputs):
    found = forget(graph, encoding, inputs)
    return graph.binary("Add", found, graph.unsqueeze(inputs.states["gate"], 2))


def past_dropped(graph, encoding, inputs):
    new, total = at_queries(graph, inputs), inputs.states["gate"]
    past = graph.binary("Sub", graph.sizes(total, 2), graph.sizes(new, 2))
    pads = graph.concat([graph.ints(0, 0), past, graph.ints(0, 0, 0)], axis=0, size=6)
    alone = graph.op("Pad", new, pads, shape=shape_of(total))
    return forget(graph, encoding, replace(inputs, states={"gate": alone}))


def no_logarithm(graph, encoding, inputs):
    return {"gate": graph.unary("Exp", gates(graph, encoding, inputs)["gate"])}


def one_for_all_heads(graph, encoding, inputs):
    gate = gates(graph, encoding, inputs)["gate"]
    first = graph.op("Gather", gate, graph.scalar(0, INT64), shape=(shape_of(gate)[0], shape_of(gate)[2]), axis=1)
    return {"gate": graph.op("Expand", graph.unsqueeze(first, 1), graph.sizes(gate, 0, 3), shape=shape_of(gate))}


GRAPHS = {
    "own_step_left_out": ("_BIASES", own_step_left_out),
    "key_included": ("_BIASES", key_included),
    "past_dropped": ("_BIASES", past_dropped),
    "no_logarithm": ("_STATES", no_logarithm),
    "one_for_all_heads": ("_STATES", one_for_all_heads),
}

# --- in the module of MLX ---

added, states = Forget.__call__, Forget.states


def mlx_own_step_left_out(self, inputs):
    return added(self, inputs) - inputs.states["gate"][:, :, -inputs.q.shape[2] :, None]


def mlx_key_included(self, inputs):
    return added(self, inputs) + inputs.states["gate"][:, :, None]


def mlx_past_dropped(self, inputs):
    gate, rows = inputs.states["gate"], inputs.q.shape[2]
    alone = mx.concatenate([mx.zeros_like(gate[:, :, :-rows]), gate[:, :, -rows:]], axis=2)
    return added(self, inputs._replace(states={"gate": alone}))


def mlx_no_logarithm(self, hidden, weights):
    return {"gate": mx.exp(states(self, hidden, weights)["gate"])}


def mlx_one_for_all_heads(self, hidden, weights):
    gate = states(self, hidden, weights)["gate"]
    return {"gate": mx.broadcast_to(gate[:, :1], gate.shape)}


MODULES = {
    "own_step_left_out": ("__call__", mlx_own_step_left_out),
    "key_included": ("__call__", mlx_key_included),
    "past_dropped": ("__call__", mlx_past_dropped),
    "no_logarithm": ("states", mlx_no_logarithm),
    "one_for_all_heads": ("states", mlx_one_for_all_heads),
}


@pytest.fixture
def report_of(tmp_path, monkeypatch, bundle_of):
    """Of a kind in float32, with a fault in one runtime's artefact; the truth is the reference's, which has none."""

    def get(kind, fault, runtime):
        monkeypatch.setattr(onnxruntime, "LEVELS", {"all": "ORT_ENABLE_ALL"})
        if runtime == "mlx":
            if fault:
                monkeypatch.setattr(Forget, *MODULES[fault])
            return parity.check(bundle_of(kind, ("float32",)), ["mlx"])
        if fault:
            table, planted = GRAPHS[fault]
            monkeypatch.setitem(getattr(site, table), "forget", planted)
        return parity.check(export(make_spec(kind), tmp_path / kind, dtypes=("float32",)), ["onnxruntime"])

    return get


@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
@pytest.mark.parametrize("fault", GRAPHS)
def test_a_planted_fault_is_caught(report_of, fault, runtime):
    report = report_of("forget", fault, runtime)
    assert report.status == 1
    wrong = {check.stage for check in report.failures}
    assert "scores" in wrong
    made = {"no_logarithm", "one_for_all_heads"}
    assert ("present_gate" in wrong) == (fault in made)
    if fault == "past_dropped":
        cases = {check.case for check in report.failures}
        assert {"decode", "chunked_prefill", "left_padded_decode"} <= cases
        assert not {"prefill", "left_padded"} & cases


@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
def test_a_step_left_out_of_every_key_shows_in_scores_and_sinks_alone(report_of, runtime):
    """A constant of the row goes out of a softmax; a sink does not have it, and then the output is another."""
    assert {check.stage for check in report_of("forget", "own_step_left_out", runtime).failures} == {"scores"}
    with_sinks = {check.stage for check in report_of("forget_rotary", "own_step_left_out", runtime).failures}
    assert {"scores", "output"} <= with_sinks


@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
def test_without_a_fault_all_passes(report_of, runtime):
    assert report_of("forget_rotary", None, runtime).passed
