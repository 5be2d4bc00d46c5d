"""``portpe parity``: exit statuses, reports, and which status goes before which."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from safetensors.numpy import load_file, save_file

from portpe.runtimes import base


@pytest.fixture
def copy(bundle, tmp_path) -> Path:
    return shutil.copytree(bundle, tmp_path / "copy")


def _renew_digest(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    manifest = json.loads((folder / "portpe.json").read_text())
    manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / "portpe.json").write_text(json.dumps(manifest))


def _spoil(folder: Path) -> None:
    """One weight of the MLX side, a tenth off."""
    file = folder / "mlx" / "weights.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("v_proj.weight"))
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] *= 1.1
    save_file(tensors, file, metadata={"format": "mlx"})


def _absent(monkeypatch, name: str) -> None:
    gone = base.Availability(False, reason=f"{name} is not here")
    monkeypatch.setattr(type(base.get(name)), "availability", lambda _self: gone)


def _raising(monkeypatch, name: str) -> None:
    def fail(*_arguments, **_settings):
        raise RuntimeError("no kernel [for] this")

    monkeypatch.setattr(type(base.get(name)), "open", fail)


def test_all_equal_is_0_and_the_reports_are_written(portpe, copy):
    done = portpe("parity", copy, "--quick")
    assert (done.status, done.err) == (0, ""), done
    report = json.loads((copy / "report.json").read_text())
    assert report["passed"] is True
    assert {check["runtime"] for check in report["checks"]} == set(base.names())
    assert ElementTree.parse(copy / "report.xml").getroot().get("failures") == "0"
    assert (copy / "report.html").read_text().startswith("<!doctype html>")
    assert f"report: {copy}/report.html" in done.out
    assert portpe("parity", copy, "--quick", "--runtime", "mlx").status == 0, "reports are no part of the digest"


def test_the_table_shows_each_configuration_with_its_bound(portpe, copy):
    out = portpe("parity", copy, "--quick", "--runtime", "pytorch").out
    header, row = (next(line for line in out.splitlines() if line.startswith(word)) for word in ("runtime", "pytorch"))
    assert "error    bound" in header
    assert row.rstrip().endswith("ok")


def test_reports_elsewhere(portpe, copy, tmp_path):
    files = {kind: tmp_path / f"elsewhere.{kind}" for kind in ("json", "xml", "html")}
    options = ("--json", files["json"], "--junit", files["xml"], "--html", files["html"])
    done = portpe("parity", copy, "--quick", "--runtime", "mlx", *options)
    assert done.status == 0
    for kind, file in files.items():
        assert file.read_text() == (copy / f"report.{kind}").read_text()
        assert str(file) in done.out


def test_a_difference_is_1(portpe, copy):
    _spoil(copy)
    _renew_digest(copy, "mlx/weights.safetensors")
    done = portpe("parity", copy, "--quick")
    assert (done.status, done.err) == (1, ""), done
    report = json.loads((copy / "report.json").read_text())
    assert report["passed"] is False
    assert {check["runtime"] for check in report["checks"] if not check["passed"]} == {"mlx"}
    assert "mlx module float32: first divergence: v in " in done.out


def test_a_digest_that_does_not_fit_is_2(refused, copy):
    _spoil(copy)
    assert "mlx/weights.safetensors" in refused("parity", copy, "--quick")
    assert not (copy / "report.json").exists()


def test_a_runtime_that_raises_is_3(portpe, copy, monkeypatch):
    _raising(monkeypatch, "mlx")
    done = portpe("parity", copy, "--quick")
    assert (done.status, done.err) == (3, ""), done
    assert "RuntimeError: no kernel [for] this" in done.out
    assert json.loads((copy / "report.json").read_text())["passed"] is False


def test_3_goes_before_1(portpe, copy, monkeypatch):
    _spoil(copy)
    _renew_digest(copy, "mlx/weights.safetensors")
    _raising(monkeypatch, "onnx-reference")
    assert portpe("parity", copy, "--quick").status == 3


def test_2_goes_before_3(refused, copy, monkeypatch):
    _raising(monkeypatch, "mlx")
    _spoil(copy)
    refused("parity", copy)


def test_a_missing_runtime_is_listed_or_3(portpe, copy, monkeypatch):
    _absent(monkeypatch, "mlx")
    done = portpe("parity", copy, "--quick")
    assert done.status == 0
    assert "not run: mlx: mlx is not here" in done.out
    asked = portpe("parity", copy, "--quick", "--runtime", "mlx", "--runtime", "pytorch")
    assert asked.status == 3
    assert json.loads((copy / "report.json").read_text())["unavailable"] == [
        {"runtime": "mlx", "reason": "mlx is not here"}
    ]


def test_no_usable_runtime_is_3(portpe, copy, monkeypatch):
    for name in base.names():
        _absent(monkeypatch, name)
    done = portpe("parity", copy, "--quick")
    assert done.status == 3
    assert "nothing was checked" in done.out


@pytest.mark.parametrize("options", [["--runtime", "tensorrt"], ["-e", "NoSuchExecutionProvider"]])
def test_unknown_names_are_2(refused, copy, options):
    refused("parity", copy, "--quick", *options)


def test_a_provider_of_onnx_runtimes_goes_for_every_runtime_that_has_it(portpe, copy):
    """PyTorch takes ONNX Runtime's names; a runtime without that device is listed and not refused."""
    done = portpe("parity", copy, "--quick", "-e", "CPUExecutionProvider")
    assert (done.status, done.err) == (0, ""), done
    report = json.loads((copy / "report.json").read_text())
    providers = {(check["runtime"], check["provider"]) for check in report["checks"]}
    assert {("onnxruntime", "CPUExecutionProvider"), ("pytorch", "cpu")} <= providers


def test_a_device_that_pytorch_lacks_is_listed(portpe, copy, monkeypatch):
    from portpe.runtimes import onnxruntime

    monkeypatch.setattr(onnxruntime, "resolve_provider", lambda _name: "CPUExecutionProvider")
    done = portpe("parity", copy, "--quick", "-e", "DmlExecutionProvider")
    assert done.status == 0, done
    unavailable = json.loads((copy / "report.json").read_text())["unavailable"]
    assert [one["reason"] for one in unavailable if one["runtime"] == "pytorch"] == [
        "provider must be one of cpu, cuda for pytorch, got 'dml'"
    ]


def test_a_report_that_cannot_be_written_is_2(refused, copy, tmp_path):
    refused("parity", copy, "--quick", "--runtime", "mlx", "--json", tmp_path / "none" / "r.json")


def test_a_range_of_layers_is_judged_layer_by_layer(portpe, refused, written, tmp_path):
    out = tmp_path / "out"
    assert portpe("export", written(), "-o", out, "--layer", "0-1").status == 0
    done = portpe("parity", out, "--quick", "--runtime", "mlx")
    assert (done.status, done.err) == (0, ""), done
    for number in (0, 1):
        assert f"config.json, layer {number}\n" in done.out
        assert json.loads((out / f"layer_{number:02d}" / "report.json").read_text())["passed"] is True
    assert "one layer" in refused("parity", out, "--json", tmp_path / "r.json")
    _spoil(out / "layer_00")
    assert "mlx/weights.safetensors" in refused("parity", out)


def test_a_graph_of_the_users_own(portpe, copy, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(copy / "onnx", own)
    done = portpe("parity", copy, "--graph", own / "portable_float32.onnx")
    assert (done.status, done.err) == (0, ""), done
    (own / "broken.onnx").write_bytes(b"not a graph")
    assert portpe("parity", copy, "--graph", own / "broken.onnx").status in (2, 3)
    assert portpe("parity", copy, "--graph", own / "absent.onnx").status == 2


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
def test_a_folder_is_no_place_for_a_report(portpe, copy_of, tmp_path, option):
    """Said before the work, not after it."""
    done = portpe("parity", copy_of("none"), option, tmp_path)
    assert (done.status, done.out) == (2, "")
    assert f"report {tmp_path} must be a file, got a folder" in done.err
