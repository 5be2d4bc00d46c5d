"""The matrix: every kind in every runtime here, and what happens when a runtime is wrong, raises or is missing."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from portpe import parity
from portpe.errors import SpecError
from portpe.parity import matrix
from portpe.parity.layouts import QUICK
from portpe.runtimes import base
from portpe.runtimes.base import Availability, Configuration

RUNTIMES = {"pytorch", "onnxruntime", "onnx-reference", "mlx"}


def test_every_kind_agrees_with_the_truth_in_every_runtime(bundle_of, kind):
    """Every case, stage, type and optimisation level of each encoding kind, within its bound."""
    bundle = bundle_of(kind)
    report = parity.check(bundle)
    assert [vars(check) for check in report.failures[:3]] == []
    assert report.passed
    assert report.status == 0
    assert {check.runtime for check in report.checks} == RUNTIMES
    cases = {case.name for case in bundle.golden("float32")}
    assert len(cases) >= 8
    for runtime in RUNTIMES:
        mine = [check for check in report.checks if check.runtime == runtime]
        assert {check.case for check in mine} == cases
        types = {"float32", "float16"} if runtime == "onnxruntime" else {"float32", "float16", "bfloat16"}
        assert {check.dtype for check in mine} == types
    levels = {check.optimization for check in report.checks if check.runtime == "onnxruntime"}
    assert levels == {"disable", "basic", "extended", "all"}
    reasons = [(one.runtime, one.reason) for one in report.unavailable]
    assert [runtime for runtime, reason in reasons if "bfloat16" in reason] == ["onnxruntime"]


def test_every_stage_of_every_case_is_there(bundle_of):
    report = parity.check(bundle_of("rotary_yarn"), ["onnxruntime"])
    stages = {check.stage for check in report.checks}
    assert stages == {
        *("q", "k", "v", "q_rotated", "k_rotated", "scores", "probs", "context", "output_projection"),
        *("output", "present_key", "present_value"),
    }
    cases = {check.case for check in report.checks}
    assert len(report.checks) == len(stages) * len(cases) * 2 * 4  # two types, four optimisation levels
    assert all(check.bound > 0 for check in report.checks)
    assert all(check.max_abs is not None and check.max_ulp is not None for check in report.checks)


def test_quick_is_a_part_of_it(bundle_of):
    report = parity.check(bundle_of("rotary_llama3"), ["onnxruntime"], matrix="quick")
    assert {check.case for check in report.checks} == set(QUICK) - {"crossing_trained_length"}
    assert {check.optimization for check in report.checks} == {"all"}


def test_full_passes_too(bundle_of):
    assert parity.check(bundle_of("rotary_yarn", ("float32",)), ["pytorch", "mlx"], matrix="full").passed


def test_a_wide_layer_runs_in_the_reference_evaluator_in_float32_alone(bundle_of, monkeypatch):
    """It says so, and nothing is skipped without a word."""
    monkeypatch.setattr(matrix, "WIDE", 43)  # the layer has 44 channels
    report = parity.check(bundle_of("none"), ["onnx-reference"], matrix="quick")
    assert {check.dtype for check in report.checks} == {"float32"}
    assert [one.reason.partition(":")[0] for one in report.unavailable] == ["portable_float16", "portable_bfloat16"]


def test_progress_names_each_configuration(bundle_of):
    said = []
    parity.check(bundle_of("none", ("float32",)), ["pytorch", "onnxruntime"], progress=said.append)
    assert len(said) == 5
    assert said[0] == "pytorch module float32 cpu"


# --- runtimes that fail ----------------------------------------------------------------------


@dataclasses.dataclass
class FakeSession:
    """The PyTorch session with something done to its outputs."""

    inner: object
    change: object
    provider: str = "fake"

    def run(self, inputs, *, stages=False):
        return self.change(self.inner.run(inputs, stages=stages), inputs)


class Fake:
    """A runtime that is the PyTorch one, and then not."""

    name = "pytorch"

    def __init__(self, change=lambda outputs, _inputs: outputs, usable=True, opens=True):
        self.change, self.usable, self.opens = change, usable, opens
        self.real = base.get("pytorch")

    def availability(self):
        return Availability(self.usable, version="1", reason=None if self.usable else "no such thing here")

    def configurations(self, bundle, provider=None):
        return [Configuration("module", dtype, "cpu") for dtype in bundle.dtypes]

    def gaps(self, bundle):
        return [("module_float64", "it has no float64")]

    def open(self, bundle, configuration):
        if not self.opens:
            raise RuntimeError("cannot\nload")
        return FakeSession(self.real.open(bundle, configuration), self.change)


@pytest.fixture
def checked(bundle_of, monkeypatch):
    """A parity run with one fake runtime."""

    def run(names=("pytorch",), **settings):
        fake = Fake(**settings)
        monkeypatch.setattr(matrix, "base", SimpleNamespace(get=lambda _name: fake, names=lambda: ("pytorch",)))
        return parity.check(bundle_of("rotary_llama3", ("float32",)), names, matrix="quick")

    return run


def test_the_fake_itself_passes(checked):
    report = checked()
    assert (report.passed, report.status) == (True, 0)
    assert report.versions["pytorch"] == "1"
    assert [vars(one) for one in report.unavailable] == [
        {"runtime": "pytorch", "reason": "module_float64: it has no float64"}
    ]


def test_a_difference_in_numbers_is_status_1(checked):
    def change(outputs, _inputs):
        return dataclasses.replace(outputs, output=outputs.output * np.float32(1.001))

    report = checked(change=change)
    assert (report.passed, report.status) == (False, 1)
    assert {check.stage for check in report.failures} == {"output"}
    assert report.first_divergence.stage == "output"


def test_the_first_divergence_is_the_earliest_stage(checked):
    def change(outputs, _inputs):
        worse = {
            name: array * np.float32(1.01) for name, array in outputs.stages.items() if name in ("k_rotated", "context")
        }
        return dataclasses.replace(outputs, output=outputs.output + 1, stages=outputs.stages | worse)

    report = checked(change=change)
    assert report.first_divergence.stage == "k_rotated"


def test_an_exception_in_one_case_is_a_failure_and_the_others_go_on(checked):
    def change(outputs, inputs):
        if inputs.past:
            raise ValueError("bad\ncache")
        return outputs

    report = checked(change=change)
    assert (report.passed, report.status) == (False, 3)
    assert {check.case for check in report.raised} >= {"decode"}
    assert all(check.problem == "ValueError: bad cache" for check in report.raised)
    assert any(check.case == "prefill" and check.passed for check in report.checks)


def test_a_runtime_that_cannot_load_is_a_failure(checked):
    report = checked(opens=False)
    assert (report.passed, report.status) == (False, 3)
    assert [check.problem for check in report.checks] == ["RuntimeError: cannot load"]


def test_an_exception_goes_before_a_difference(checked):
    def change(outputs, inputs):
        if inputs.past:
            raise ValueError
        return dataclasses.replace(outputs, output=outputs.output + 1)

    assert checked(change=change).status == 3


def test_nan_is_a_difference(checked):
    def change(outputs, _inputs):
        return dataclasses.replace(outputs, output=outputs.output * np.float32(np.nan))

    report = checked(change=change)
    assert report.status == 1
    assert report.failures[0].max_abs is None


def test_a_missing_runtime_fails_only_when_asked_for(checked):
    asked = checked(usable=False)
    assert (asked.status, asked.missing, asked.checks) == (3, ("pytorch",), ())
    assert asked.unavailable[0].reason == "no such thing here"
    none_usable = checked(names=None, usable=False)
    assert (none_usable.status, none_usable.missing, none_usable.passed) == (3, (), False)


def test_an_absent_runtime_is_only_listed(bundle_of, monkeypatch):
    real_get = base.get

    def get(name):
        return Fake(usable=False) if name == "mlx" else real_get(name)

    monkeypatch.setattr(matrix, "base", SimpleNamespace(get=get, names=base.names))
    report = parity.check(bundle_of("none", ("float32",)), matrix="quick")
    assert (report.passed, report.status) == (True, 0)
    assert ("mlx", "no such thing here") in [(one.runtime, one.reason) for one in report.unavailable]


# --- bad input -------------------------------------------------------------------------------


def test_bad_input_is_one_line(bundle_of, copy_of):
    bundle = bundle_of("none", ("float32",))
    with pytest.raises(SpecError, match=r"runtime must be one of .*, got 'tensorflow'"):
        parity.check(bundle, ["tensorflow"])
    with pytest.raises(SpecError, match="matrix must be quick, default or full, got 'huge'"):
        parity.check(bundle, matrix="huge")
    with pytest.raises(SpecError, match="provider must be"):
        parity.check(bundle, ["onnxruntime"], provider="nonsense")


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx-reference"])
def test_a_manifest_of_another_layer_than_its_graphs_is_bad_input(copy_of, runtime):
    folder = copy_of("rotary_default")
    manifest = json.loads((folder / "portpe.json").read_text())
    (folder / "portpe.json").write_text(json.dumps({**manifest, "layer": 7}))
    with pytest.raises(
        SpecError, match=r"graph inputs must hold past_key_values.7.key, .* got .*past_key_values.0.key"
    ):
        parity.check(folder, [runtime])


def test_without_golden_values_there_is_nothing_to_compare_with(spec_of, tmp_path):
    from portpe import export

    bundle = export(spec_of("none"), tmp_path / "out", golden=False)
    with pytest.raises(SpecError, match="no golden values; export it without --no-golden"):
        parity.check(bundle)


# --- a graph of the user's own ---------------------------------------------------------------


def test_a_users_own_graph_is_judged_on_output_and_cache(bundle_of):
    bundle = bundle_of("rotary_llama3", ("float32",))
    report = parity.check(bundle, graph=bundle.graph("portable", "float32"))
    assert (report.passed, report.status) == (True, 0)
    assert {check.stage for check in report.checks} == {"output", "present_key", "present_value"}
    assert {check.optimization for check in report.checks} == {"disable", "basic", "extended", "all"}
    assert {check.form for check in report.checks} == {"portable_float32.onnx"}


def test_a_users_graph_is_judged_in_its_own_type(bundle_of):
    bundle = bundle_of("rotary_llama3")
    report = parity.check(bundle, graph=bundle.graph("portable", "float16"))
    assert (report.status, {check.dtype for check in report.checks}) == (0, {"float16"})
    narrow = bundle_of("rotary_llama3", ("float32",))
    with pytest.raises(SpecError, match="graph must be in float32, the bundle's types, got float16"):
        parity.check(narrow, graph=bundle.graph("portable", "float16"))


def test_a_users_graph_of_another_encoding_differs(bundle_of):
    other = bundle_of("rotary_default", ("float32",)).graph("portable", "float32")
    report = parity.check(bundle_of("rotary_llama3", ("float32",)), graph=other)
    assert report.status == 1


def test_a_users_graph_of_another_shape_is_an_exception_and_no_graph_bad_input(bundle_of, tmp_path):
    bundle = bundle_of("rotary_llama3", ("float32",))
    with pytest.raises(SpecError, match="graph must be an ONNX file, got"):
        parity.check(bundle, graph=tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("no graph")
    with pytest.raises(SpecError, match="graph must be an ONNX file"):
        parity.check(bundle, graph=tmp_path / "text.onnx")
    encoder = bundle_of("rotary_bidirectional", ("float32",)).graph("portable", "float32")
    with pytest.raises(SpecError, match="graph inputs must hold"):
        parity.check(bundle, graph=encoder)
