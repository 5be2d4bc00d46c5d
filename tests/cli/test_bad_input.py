"""Bad input of every kind: one line on stderr, exit status 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_not_json(refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{model_type: llama}")
    assert "JSON" in refused("spec", path)


def test_empty_file_and_binary_file(refused, tmp_path):
    path = tmp_path / "config.json"
    for content in (b"", b"\x80\x02\x00\xff", b"[1, 2]", b"null"):
        path.write_bytes(content)
        refused("spec", path)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "-2.0", "0", '"8"', "true", "null", "1e999"])
def test_bad_factor(refused, written, literal):
    path = written(rope_scaling={"type": "linear", "factor": "FACTOR"})
    path.write_text(path.read_text().replace('"FACTOR"', literal))
    refused("spec", path)


def test_the_message_names_field_rule_and_value(refused, written):
    line = refused("spec", written(rope_scaling={"type": "linear", "factor": -2.0}))
    assert "factor" in line
    assert "-2.0" in line
    assert "greater than 0" in line or "> 0" in line


def test_odd_rotary_width(refused, written):
    line = refused("spec", written(rope_scaling={"rope_type": "linear", "factor": 2.0}, partial_rotary_factor=0.3))
    assert "3" in line
    assert "4" in line  # what transformers would rotate


@pytest.mark.parametrize("name", ["short_factor", "long_factor"])
def test_wrong_length_of_factors(refused, written, phi3, name):
    scaling = phi3["rope_scaling"] | {name: [1.0] * 5}
    line = refused("spec", written(phi3, rope_scaling=scaling))
    assert name in line
    assert "5" in line


def test_heads_not_divisible(refused, written):
    assert "6" in refused("spec", written(num_key_value_heads=4))


def test_unknown_rope_type(refused, written):
    assert "foo" in refused("spec", written(rope_scaling={"rope_type": "foo", "factor": 2.0}))


@pytest.mark.parametrize("where", ["top", "rope_scaling", "rope_parameters"])
def test_unknown_key_that_changes_numbers(refused, written, where):
    if where == "top":
        path = written(rope_temperature=2.0)
        key = "rope_temperature"
    else:
        path = written(**{where: {"rope_type": "linear", "factor": 2.0, "fudge": 1.0, "rope_theta": 10000.0}})
        key = "fudge"
    assert key in refused("spec", path)


def test_ignore_key_lets_it_pass(portpe, written):
    path = written(rope_temperature=2.0)
    done = portpe("spec", path, "--ignore-key", "rope_temperature")
    assert (done.status, done.err) == (0, "")
    assert "ignored: rope_temperature" in done.out


def test_missing_layer(refused, written):
    line = refused("spec", written(), "--layer", 3)
    assert "3" in line
    assert "2" in line


def test_missing_source(refused, tmp_path):
    assert "none-such" in refused("spec", "none-such")
    assert "config.json" in refused("spec", tmp_path)


def test_source_given_twice_or_not_at_all(refused, written):
    refused("spec", written(), "--model", written())
    refused("spec")


def _checkpoint(folder: Path, config: dict, change=None) -> Path:
    """A checkpoint of random weights, one layer of Llama's names; ``change`` edits the tensors."""
    from portpe import config as configs

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    spec: AttentionSpec = configs.load_spec(config)
    made = np.random.default_rng(3)
    tensors = {
        f"model.layers.0.self_attn.{name}": made.standard_normal(shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_good_checkpoint_exports(portpe, tmp_path, llama):
    done = portpe("export", _checkpoint(tmp_path / "model", llama), "-o", tmp_path / "out", "--no-golden")
    assert done.status == 0, done
    assert json.loads((tmp_path / "out" / "portpe.json").read_text())["weights"] == "checkpoint"


def test_missing_tensor(refused, tmp_path, llama):
    name = "model.layers.0.self_attn.k_proj.weight"
    folder = _checkpoint(tmp_path / "model", llama, lambda tensors: tensors.pop(name))
    assert "k_proj" in refused("export", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_shape(refused, tmp_path, llama):
    def transpose(tensors):
        name = "model.layers.0.self_attn.q_proj.weight"
        tensors[name] = np.ascontiguousarray(tensors[name].T)

    line = refused("export", _checkpoint(tmp_path / "model", llama, transpose), "-o", tmp_path / "out")
    assert "q_proj" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left", [0, 4, 100, -7])
def test_truncated_safetensors(refused, tmp_path, llama, left):
    folder = _checkpoint(tmp_path / "model", llama)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    assert "model.safetensors" in refused("export", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_quantised_checkpoint(refused, tmp_path, llama):
    config = llama | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    folder = _checkpoint(tmp_path / "model", llama)
    (folder / "config.json").write_text(json.dumps(config))
    assert "quantis" in refused("export", folder, "-o", tmp_path / "out")


def test_pickle_checkpoint(refused, tmp_path, llama):
    folder = _checkpoint(tmp_path / "model", llama)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    line = refused("export", folder, "-o", tmp_path / "out")
    assert "pytorch_model.bin" in line
    assert "safetensors" in line  # what to do


@pytest.mark.parametrize("positions", ["-1", "0,-5", "1.5", "a", "", "1,,2", "9" * 30])
def test_bad_positions(refused, written, tmp_path, positions):
    refused("tables", written(), "--positions", positions, "-o", tmp_path / "t.npz")
    assert not (tmp_path / "t.npz").exists()


def test_position_out_of_a_learned_table(refused, portpe, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(portpe("spec", "gpt2", "--json").out)
    line = refused("tables", spec, "--positions", "0,1024", "-o", tmp_path / "t.npz")
    assert "1024" in line
    assert list(tmp_path.glob("*.npz")) == []


def test_existing_folder(refused, portpe, written, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep")
    for force in ([], ["--force"]):
        refused("export", written(), "-o", tmp_path / "mine", "--no-golden", *force)
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "keep"
    assert portpe("export", written(), "-o", tmp_path / "out", "--no-golden").status == 0
    assert "--force" in refused("export", written(), "-o", tmp_path / "out", "--no-golden")
    assert portpe("export", written(), "-o", tmp_path / "out", "--no-golden", "--force").status == 0


def test_length_dependent_export_needs_a_context(refused, portpe, written, tmp_path):
    path = written(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert "--context" in refused("export", path, "-o", tmp_path / "out", "--no-golden")
    assert portpe("export", path, "-o", tmp_path / "out", "--no-golden", "--context", 96).status == 0


def test_length_dependent_export_may_follow_each_row(refused, portpe, written, tmp_path):
    path, by_row = written(rope_scaling={"type": "dynamic", "factor": 2.0}), ("--regime", "per_sequence")
    assert "--regime" in refused("export", path, "-o", tmp_path / "out", "--no-golden")
    assert "context" in refused("export", path, "-o", tmp_path / "out", "--no-golden", *by_row, "--context", 96)
    refused("export", path, "-o", tmp_path / "out", "--no-golden", "--regime", "sticky")
    assert portpe("export", path, "-o", tmp_path / "out", "--no-golden", *by_row).status == 0
    assert "by_sequence" in portpe("spec", tmp_path / "out").out
    assert "by_capacity: every call takes the schedule of length 96" in portpe("spec", path, "--context", 96).out
    assert "none yet" in portpe("spec", path).out
    shown = portpe("spec", path, *by_row).out
    assert next(line.split() for line in shown.splitlines() if "regime.kind" in line)[1:] == [*by_row][::-1]


def test_path_under_a_file(refused, written, tmp_path):
    (tmp_path / "file").write_text("keep")
    refused("export", written(), "-o", tmp_path / "file" / "out", "--no-golden")
    refused("tables", written(), "--positions", "1", "-o", tmp_path / "file" / "t.npz")
    assert (tmp_path / "file").read_text() == "keep"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "config.json"}


def _limited(arguments: list[object], limit: int) -> subprocess.CompletedProcess[str]:
    """Run portpe in a process that cannot write files larger than ``limit`` bytes, as on a full disk."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2);"
        "from portpe.cli import run; sys.exit(run(sys.argv[2:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(limit), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.mark.parametrize("limit", [0, 100, 5000, 30000])
def test_full_disk_leaves_nothing(written, tmp_path, limit):
    done = _limited(["export", written(), "-o", tmp_path / "out", "--no-golden"], limit)
    assert done.returncode == 2, done
    assert done.stderr.startswith("portpe: ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_full_disk_keeps_the_old_table(written, tmp_path):
    target = tmp_path / "t.npz"
    target.write_bytes(b"old")
    done = _limited(["tables", written(), "--positions", "0,5,9", "-o", target], 200)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert target.read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "t.npz"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["spec", "llama-3.1-8b", "--no-such-option"],
        ["spec", "llama-3.1-8b", "--layer", "one"],
        ["spec", "llama-3.1-8b", "extra"],
        ["spec", "llama-3.1-8b", "--precision", "double"],
        ["diff", "llama-3.1-8b"],
        ["tables", "llama-3.1-8b", "-o", "t.npz"],
        ["tables", "llama-3.1-8b", "--positions", "1", "-o", "table.txt"],
        ["export", "llama-3.1-8b"],
        ["export", "llama-3.1-8b", "-o", "nowhere", "--dtype", "float64"],
        ["export", "llama-3.1-8b", "-o", "nowhere", "--form", "fancy"],
        ["export", "llama-3.1-8b", "-o", "nowhere", "--layer", "7-2"],
        ["export", "llama-3.1-8b", "-o", "nowhere", "--layer", "x"],
        ["export", "llama-3.1-8b", "-o", "nowhere", "--table-positions", "0"],
        ["parity", "no-such-bundle"],
        ["parity", "no-such-bundle", "--quick", "--full"],
        ["demo"],
    ],
)
def test_usage_errors(refused, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    refused(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "extra", "options"),
    [("onnx_ir", "onnx", ["--no-golden"]), ("onnx", "onnx", ["--no-golden"]), ("torch", "torch", [])],
)
def test_a_missing_package_is_named_with_its_extra(written, tmp_path, package, extra, options):
    code = f"import sys; sys.modules[{package!r}] = None; from portpe.cli import run; sys.exit(run(sys.argv[1:]))"
    arguments = ["export", str(written()), "-o", str(tmp_path / "out"), *options]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"portpe: {package}")
    assert done.stderr.endswith(f"pip install 'portpe[{extra}]'\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_closed_pipe_is_no_traceback_and_never_status_1():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "portpe", "spec", "--schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == -signal.SIGPIPE


def test_a_real_process_shows_no_traceback(tmp_path):
    for arguments in (["spec", "none-such"], ["parity", str(tmp_path)], ["expot"]):
        done = subprocess.run(
            [sys.executable, "-m", "portpe", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("portpe: ")
        assert done.stderr.count("\n") == 1
