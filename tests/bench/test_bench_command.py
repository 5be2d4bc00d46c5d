"""Layer: tests. ``portpe bench`` as a command, and what it writes."""

import json

import pytest

from portpe.bench import output
from portpe.bench.result import Entrant, LeftOut, Report, Result
from portpe.cli import run
from portpe.exporters.onnx import FORMS
from portpe.exporting import export

TINY = {
    "portpe_spec": 1,
    "hidden_size": 24,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 8,
    "v_head_dim": 8,
    "scale": 8**-0.5,
    "max_position_embeddings": 64,
    "rotary": {"kind": "rotary", "width": 8, "schedule": {"kind": "default", "rope_theta": 100.0}},
}
QUICK = ("--quick", "--lengths", "8,16", "--rounds", "3", "--runtime", "onnxruntime", "--no-peers")
TOP = {
    *("schema_version", "subject", "settings", "machine", "versions", "limits", "competitors", "cases", "left_out"),
    *("export", "processes", "imports", "memory", "notes"),
}
CASE = {
    *("phase", "length", "rounds", "flops", "bytes_read", "limit", "limit_seconds", "limits", "baseline", "results"),
    "overhead",
}
RESULT = {
    *("competitor", "peer", "encoded", "verdict", "max_abs", "share_of_bound", "calls", "rounds", "wall", "cpu"),
    *("fraction_of_limit", "fraction_of_gemv", "ratio"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture(scope="module")
def written(source, tmp_path_factory):
    """One run with every file asked for; returns the folder."""
    folder = tmp_path_factory.mktemp("report")
    places = ["--json", folder / "r.json", "--html", folder / "r.html", "--plot", folder / "plots"]
    assert run([str(one) for one in ("bench", source, *QUICK, *places)]) == 0
    return folder


@pytest.fixture
def report(written):
    return json.loads((written / "r.json").read_text())


def test_json_has_the_documented_keys(report):
    assert set(report) == TOP
    assert [set(case) for case in report["cases"]] == [CASE] * 4
    assert {frozenset(result) for case in report["cases"] for result in case["results"]} == {frozenset(RESULT)}
    assert {name: set(limit) for name, limit in report["limits"].items()} == {
        name: {"median", "q1", "q3", "unit", "method"}
        for name in ("read_bandwidth", "copy_bandwidth", "gemm_rate", "gemv_bandwidth")
    }
    machine = {"processor", "cores", "memory_bytes", "pages", "transparent_hugepage", "system", "python"}
    assert machine | {"load_average"} <= set(report["machine"])
    assert {frozenset(one) for case in report["cases"] for one in case["overhead"]} == {
        frozenset({"competitor", "median", "low", "high", "rounds"})
    }
    assert {"portpe", "numpy", "onnxruntime"} <= set(report["versions"])


def test_every_form_is_measured_with_and_without_its_encoding(report):
    names = {f"onnxruntime {form}" for form in FORMS}
    assert [(case["phase"], case["length"]) for case in report["cases"]] == [
        ("decode", 8),
        ("decode", 16),
        ("prefill", 8),
        ("prefill", 16),
    ]
    for case in report["cases"]:
        assert {(one["competitor"], one["encoded"]) for one in case["results"]} == {
            (name, encoded) for name in names for encoded in (True, False)
        }
        assert {one["verdict"] for one in case["results"]} == {"exact"}
        assert {one["competitor"] for one in case["overhead"]} == names
        assert case["baseline"] == "onnxruntime portable"
        assert {one["rounds"] for one in (*case["results"], *case["overhead"])} == {3}
        assert {one["fraction_of_gemv"] is None for one in case["results"]} == {case["phase"] == "prefill"}
    assert report["left_out"] == []


def test_threads_are_stated_for_everybody(report):
    assert all("intra_op_num_threads=1" in one["threads"] for one in report["competitors"])
    assert (report["settings"]["threads"], report["settings"]["clock"]) == (1, "cpu")


def test_plots_and_page_are_written(written):
    assert sorted(path.name for path in (written / "plots").iterdir()) == [
        "fraction_of_limit.png",
        "overhead.png",
        "time.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (written / "plots").iterdir())
    page = (written / "r.html").read_text()
    assert page.count("<svg") == 3
    assert "onnxruntime portable" in page


def test_a_bundle_is_measured_with_its_own_graphs(source, tmp_path, capsys):
    bundle = export(source, tmp_path / "bundle", forms=("portable", "standard"), golden=False)
    place = tmp_path / "r.json"
    status = run(["bench", str(bundle.path), *QUICK, "--only", "onnxruntime standard", "--json", str(place)])
    assert status == 0
    assert {one["competitor"] for case in json.loads(place.read_text())["cases"] for one in case["results"]} == {
        "onnxruntime standard"
    }
    status = run(["bench", str(bundle.path), *QUICK, "--form", "standard", "--json", str(place)])
    assert status == 0
    names = {one["competitor"] for case in json.loads(place.read_text())["cases"] for one in case["results"]}
    assert names == {"onnxruntime standard"}
    assert "onnxruntime standard" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "8,x"], "lengths must be whole numbers with commas between, got '8,x'"),
        (["--only", "abacus"], "only must be one of onnxruntime portable, "),
        (["--phase", "training"], "phase must be one of decode, prefill, got 'training'"),
        (["--lengths", "0"], "lengths must be >= 1, got [0]"),
        (["--threads", "0"], "threads must be >= 1, got 0"),
        (["--form", "none"], "form must be one of"),
        (["--dtype", "int8"], "dtype must be one of"),
        (["--runtime", "abacus"], "runtime must be one of onnxruntime, pytorch, mlx, got 'abacus'"),
        (["--pages", "tiny"], "pages must be one of huge, default, got 'tiny'"),
        (["--json", "nowhere/r.json"], "must lie in an existing folder"),
        (["--html", "."], "report . must be a file, got a folder"),
    ],
)
def test_bad_input_is_one_line(source, capsys, arguments, message):
    assert run(["bench", str(source), "--quick", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("portpe: ")
    assert message in err
    assert err.count("\n") == 1


def report_with(peer, verdict, left_out=()):
    from portpe.bench.result import CaseResult

    result = Result("one", peer, True, verdict, 1.0, 7.0)
    case = CaseResult("decode", 8, 3, 1, 1, "read_bandwidth", 1.0, {}, None, [result], [])
    entrant = Entrant("one", "pytorch", peer, True, "1", None, "", "")
    return Report({}, {}, {}, {}, {}, [entrant], [case], list(left_out))


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (report_with(False, "exact"), 0),
        (report_with(False, "wrong"), 1),
        (report_with(True, "wrong"), 0),
        (report_with(False, "exact", [LeftOut("one", "decode 8", "RuntimeError: x", failed=True)]), 3),
        (report_with(True, "exact", [LeftOut("one", "decode 8", "RuntimeError: x", failed=True)]), 0),
        (report_with(False, "exact", [LeftOut("one", "decode 8", "it would take about 9 GB")]), 0),
    ],
)
def test_only_portpes_own_decide_the_status(report, status):
    assert report.status == status


def test_infinities_are_null_in_json():
    report = report_with(False, "wrong")
    report.cases[0].results[0] = Result("one", False, True, "wrong", float("inf"), float("nan"))
    data = json.loads(output.to_json(report))
    assert data["cases"][0]["results"][0]["max_abs"] is None


def test_a_regime_reaches_the_bundle(tmp_path):
    """Without one a length-dependent schedule is refused; with it the forms that turn cached keys are measured."""
    dynamic = {"kind": "dynamic", "rope_theta": 100.0, "factor": 4.0, "max_position_embeddings": 12}
    source, found = tmp_path / "dynamic.json", tmp_path / "r.json"
    source.write_text(json.dumps({**TINY, "rotary": {**TINY["rotary"], "schedule": dynamic}}))
    asked = ("bench", str(source), *QUICK, "--no-processes", "--json", str(found))
    assert run([*asked]) == 2
    assert run([*asked, "--regime", "per_sequence"]) == 0
    report = json.loads(found.read_text())
    ran = {one["competitor"] for case in report["cases"] for one in case["results"]}
    assert ran == {"onnxruntime portable", "onnxruntime standard", "onnxruntime shared"}
