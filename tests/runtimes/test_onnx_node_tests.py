"""ONNX's own node tests, for every operator and type that our graphs use, on both runtimes.

The operators are read from built graphs. Known failures stand in tests/divergences.toml, and a row there that no
longer fails is an error.
"""

import tomllib
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from portpe.exporters.onnx import FORMS, build, graph_weights
from portpe.runtimes.onnxruntime import run_session
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CARRIED, LAYER, SPECS, random_weights
from tests.exporters.onnx.files import place
from tests.exporters.onnx.opened import nodes, types

LEDGER = Path(__file__).parents[1] / "divergences.toml"
VERSIONS = sorted({(form.opset, form.ir_version) for form in FORMS.values()})


@cache
def used_operators() -> dict[str, set[int]]:
    """The standard's operators -> the types of the tensors at them, over every form and kind of block in every type."""
    found = defaultdict(set)
    for form, name in CARRIED:
        spec = SPECS[name]
        tables = table_set(spec)
        for dtype in FORMS[form].dtypes:
            _, places = place(graph_weights(spec, random_weights(spec, dtype), dtype), "weights.data")
            arguments = {"form": form, "dtype": dtype, "layer": LAYER, "weights": places}
            graph = onnx.load_from_string(build(spec, tables=tables, **arguments)).graph
            kinds = types(graph)
            for node in nodes(graph):
                if not node.domain:
                    found[node.op_type] |= {kinds[each] for each in (*node.input, *node.output) if each}
    return dict(found)


@cache
def node_tests() -> dict[str, object]:
    """The standard's cases of one node whose operator and types our graphs use, by name."""
    from onnx.backend.test.loader import load_node_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the cases overflow on purpose
        cases = load_node_model_tests()
    used = used_operators()
    types = set.union(*used.values()) | {TensorProto.INT32}  # the standard compares integers of 32 bits for equality
    chosen = {}
    for case in cases:
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type not in used:
            continue
        if {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} <= types:
            chosen[case.name] = case
    return chosen


def ledger() -> dict[str, str]:
    """Known failures: ``runtime-case`` -> why, from the rows that name the test below with these in brackets."""
    prefix = "tests/runtimes/test_onnx_node_tests.py::test_a_node_test_of_the_standard["
    rows = tomllib.loads(LEDGER.read_text())["divergence"]
    return {row["test"].removeprefix(prefix).rstrip("]"): row["why"] for row in rows if row["test"].startswith(prefix)}


def arrays(values):
    return [
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value) for value in values
    ]


def at_our_opset(model, opset, ir_version):
    """The case under an opset of our graphs, where it is a legal model there; else None."""
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    lowered.opset_import[0].version = opset
    lowered.ir_version = ir_version
    try:
        onnx.checker.check_model(lowered, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return lowered


def by_onnxruntime(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(run_session(session, feeds).values())


def by_reference(model, feeds):
    return ReferenceEvaluator(model).run(None, feeds)


RUNTIMES = {"onnxruntime": by_onnxruntime, "onnx-reference": by_reference}


def run_case(run, case, model):
    for given, expected in case.data_sets:
        names = [value.name for value in model.graph.input]
        found = run(model, dict(zip(names, arrays(given), strict=True)))
        for actual, wanted in zip(found, arrays(expected), strict=True):
            assert actual.dtype == wanted.dtype
            assert np.shape(actual) == wanted.shape
            both = [
                np.asarray(array, np.float64) for array in (actual, wanted)
            ]  # bfloat16 has no comparison of its own
            np.testing.assert_allclose(*both, rtol=case.rtol, atol=case.atol)


def parameters():
    known, chosen = ledger(), []
    for runtime in RUNTIMES:
        for name in node_tests():
            key = f"{runtime}-{name}"
            marks = [pytest.mark.xfail(reason=known.pop(key), strict=True)] if key in known else []
            chosen.append(pytest.param(runtime, name, marks=marks, id=key))
    assert not known, f"rows of {LEDGER.name} without a case: {', '.join(known)}"
    return chosen


@pytest.mark.parametrize(("runtime", "name"), parameters())
def test_a_node_test_of_the_standard(runtime, name):
    """At the version that the case states, and at the versions that our graphs import."""
    case = node_tests()[name]
    run_case(RUNTIMES[runtime], case, case.model)
    for versions in VERSIONS:
        lowered = at_our_opset(case.model, *versions)
        if lowered is not None:
            run_case(RUNTIMES[runtime], case, lowered)


def test_every_operator_has_cases():
    """None of the operators goes untested, the count cannot fall to nothing, and most run at our opset too."""
    covered = {case.model.graph.node[0].op_type for case in node_tests().values()}
    assert covered == set(used_operators())
    assert len(covered) >= 31
    assert len(node_tests()) >= 150
    for versions in VERSIONS:
        lowered = [case for case in node_tests().values() if at_our_opset(case.model, *versions) is not None]
        assert len(lowered) >= 140
    for operator, cases in (("RotaryEmbedding", 8), ("Attention", 75), ("TensorScatter", 3)):
        found = [case for case in node_tests().values() if case.model.graph.node[0].op_type == operator]
        assert len(found) >= cases, operator
