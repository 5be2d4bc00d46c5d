"""Proof that parity can fail: each fault of the catalogue, planted alone, is caught; without it everything passes."""

import pytest

from portpe import export, parity
from portpe.parity import matrix
from portpe.parity.faults import FAULTS
from portpe.runtimes import onnxruntime
from portpe.spec import AttentionSpec
from portpe.tables import table_set

LLAMA3 = {"kind": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"kind": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False}
BASES = {
    "llama3": {
        "rotary": {"kind": "rotary", "schedule": {**LLAMA3, "original_max_position_embeddings": 8192}},
        "max_position_embeddings": 131072,
    },
    "yarn": {
        "rotary": {"kind": "rotary", "schedule": {**YARN, "original_max_position_embeddings": 4096}},
        "window": 128,
        "sinks": True,
    },
    "alibi": {"bias": [{"kind": "alibi"}], "output_gate": {"scope": "channel"}, "max_position_embeddings": 2048},
    "temperature": {
        "rotary": {"kind": "rotary", "schedule": {"kind": "default", "rope_theta": 1000000.0}},
        "query_scale": {"kind": "stepped", "interval": 8192, "offset": 1, "beta": 0.1},
        "max_position_embeddings": 131072,
        "q_norm": {"kind": "rms", "eps": 1e-5},
        "k_norm": {"kind": "rms", "eps": 1e-5},
    },
    "decay": {
        "rotary": {"kind": "rotary", "schedule": {"kind": "default"}, "decay": {"kind": "xpos", "centre": 900}},
        "max_position_embeddings": 2048,
    },
}
# The layers of size 256 have the proportions of real ones; those of 4096 are as wide as a 7B model's.
SIZES = {
    256: {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    4096: {"num_heads": 32, "num_kv_heads": 4, "head_dim": 128},
}

AT = {256: (*BASES,), 4096: ("llama3", "yarn", "alibi")}


def make(base, hidden):
    heads = SIZES[hidden]
    plain = {
        "portpe_spec": 1,
        "hidden_size": hidden,
        "v_head_dim": heads["head_dim"],
        "scale": heads["head_dim"] ** -0.5,
    }
    spec = {**plain, **heads, **BASES[base]}
    if "rotary" in spec:
        spec["rotary"] = {**spec["rotary"], "width": heads["head_dim"]}
    return AttentionSpec.from_dict(spec)


def faults_of(base, hidden):
    spec = make(base, hidden)
    tables = table_set(spec)
    return [name for name, fault in FAULTS.items() if fault.applies(spec, tables)]


def planted_cases(hidden):
    """Every fault on every base that can have it, but generic ones once only."""
    chosen, seen = [], set()
    for base in AT[hidden]:
        for name in faults_of(base, hidden):
            again = name == "offset_in_decode" and base == "alibi"  # pads counted shift all distances alike: no fault
            if again or name not in seen:
                seen.add(name)
                chosen.append((base, name))
    return chosen


def test_the_catalogue_is_planted_whole():
    """Every fault has a base that can have it; those of features, which see a head and no width, are planted apart. At
    4096 those are left out too whose numbers multiply each channel alone.
    """
    of_features = {name for name, fault in FAULTS.items() if fault.features is not None}
    alone = {name for name in FAULTS if name.startswith(("temperature", "decay"))}
    for hidden, left_out in ((256, of_features), (4096, of_features | alone)):
        assert {name for _base, name in planted_cases(hidden)} == set(FAULTS) - left_out


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    """A bundle of a base, made once; a planted fault is taken out again."""
    made = {}

    def get(base, hidden):
        if (base, hidden) not in made:
            dtypes = ("float32", "float16", "bfloat16") if hidden == 256 else ("float32",)
            made[base, hidden] = export(make(base, hidden), tmp_path_factory.mktemp("meta") / base, dtypes=dtypes)
        return made[base, hidden]

    return get


@pytest.fixture
def one_truth(monkeypatch):
    """The truth of a bundle kept from run to run: a fault changes the artefact, never the truth."""
    kept, original = _KEPT, matrix._Run._truth

    def truth(self, dtype):
        key = (str(self.bundle.path), dtype)
        if key not in kept:
            if len(kept) > 2:
                kept.clear()
            kept[key] = original(self, dtype)
        return kept[key]

    monkeypatch.setattr(matrix._Run, "_truth", truth)


_KEPT: dict = {}


def _check(bundle, runtime, fault_name, planted, margins):
    with planted(bundle.path, FAULTS[fault_name], runtime) as faulty:
        report = parity.check(faulty, [runtime])
    assert not report.passed
    if fault_name == "offset_in_decode":  # one past the last row of a table is refused, and says so
        assert {check.case for check in report.raised} <= {"last_position"}
        assert "prefill" not in {check.case for check in report.failures}
    else:
        assert report.status == 1, [check.problem for check in report.raised][:1]
    if fault_name == "mask_not_used" and bundle.spec.hidden_size == 256:
        assert {"left_padded", "left_padded_decode"} <= {check.case for check in report.failures}
    must = {check.dtype for check in report.checks}
    if fault_name == "bfloat16_table":
        must = {"float32"}  # in a 16-bit type the table is rounded like everything else, rightly
    for dtype in sorted(must):
        failed = [check for check in report.failures if check.dtype == dtype and check.max_abs is not None]
        assert failed, f"{fault_name} passes in {dtype}"
        first = min(failed, key=lambda check: parity.outcome.ORDER.index(check.stage))
        worst = max((check for check in failed if check.stage == first.stage), key=_ratio)
        hidden = str(bundle.spec.hidden_size)
        margins.append((hidden, runtime, fault_name, dtype, first.stage, worst.case, f"{_ratio(worst):.3g}"))
    return report


def _ratio(check):
    return float("inf") if not check.bound else check.max_abs / check.bound


@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
@pytest.mark.parametrize(("base", "fault"), planted_cases(256))
@pytest.mark.usefixtures("one_truth")
def test_a_planted_fault_is_caught(bundle, planted, margins, base, fault, runtime):
    _check(bundle(base, 256), runtime, fault, planted, margins)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.usefixtures("one_truth")
def test_without_a_fault_all_passes(bundle, base):
    report = parity.check(bundle(base, 256))
    assert [vars(check) for check in report.failures[:3]] == []
    assert report.passed


@pytest.fixture
def highest_level(monkeypatch):
    """ONNX Runtime at its default level alone: at 4096 each level takes seconds, and the fault is in the graph."""
    monkeypatch.setattr(onnxruntime, "LEVELS", {"all": "ORT_ENABLE_ALL"})


@pytest.fixture
def until_one_fails(monkeypatch):
    """The default matrix until its first failing case, which decides: the other cases would take minutes."""
    original = matrix._Run._judged

    def judged(self, *arguments, **settings):
        if all(check.passed for check in self.checks):
            yield from original(self, *arguments, **settings)

    monkeypatch.setattr(matrix._Run, "_judged", judged)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "mlx"])
@pytest.mark.parametrize(("base", "fault"), planted_cases(4096))
@pytest.mark.usefixtures("one_truth", "highest_level", "until_one_fails")
def test_a_planted_fault_is_caught_at_4096(bundle, planted, margins, base, fault, runtime):
    _check(bundle(base, 4096), runtime, fault, planted, margins)


@pytest.mark.slow
@pytest.mark.parametrize("base", AT[4096])
@pytest.mark.usefixtures("one_truth", "highest_level")
def test_without_a_fault_all_passes_at_4096(bundle, base):
    report = parity.check(bundle(base, 4096), ["onnxruntime", "mlx"])
    assert [vars(check) for check in report.failures[:3]] == []
    assert report.passed
