"""Export: the same bytes each time, all or nothing, and refusals in one line before a byte is written."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from portpe import bundle as bundles
from portpe import export
from portpe.bundle import Bundle
from portpe.errors import SpecError
from portpe.exporting import estimate, reduced_spec
from portpe.weight_shapes import weight_shapes

LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 12,
    "intermediate_size": 20,
    "max_position_embeddings": 60,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 99,
}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}


def _content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["rotary_yarn", "learned", "alibi_symmetric", "rotary_hf"])
def test_the_same_input_gives_the_same_bytes(spec_of, tmp_path, name):
    for folder in ("a", "b"):
        export(spec_of(name), tmp_path / folder, dtypes=("float32", "bfloat16"))
    assert _content(tmp_path / "a") == _content(tmp_path / "b")


def test_another_process_gives_the_same_bytes(bundle_of, spec_of, tmp_path):
    """Neither the order of hashes nor what ran before has a part in the bytes."""
    bundle = bundle_of("rotary_llama3", ("float32",))
    (tmp_path / "spec.json").write_text(spec_of("rotary_llama3").to_json())
    code = "import sys, json; from portpe import export; export(json.load(open(sys.argv[1])), sys.argv[2])"
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "spec.json", tmp_path / "out"], check=True, env=environment)
    mine, theirs = _content(bundle.path), _content(tmp_path / "out")
    manifests = [json.loads(content.pop("portpe.json")) for content in (mine, theirs)]
    assert mine == theirs
    assert [manifest.pop("source")["name"] for manifest in manifests] == ["spec", "config"]
    assert manifests[0] == manifests[1]


def test_a_bundle_is_made_again_from_its_manifest(bundle_of, tmp_path):
    bundle = bundle_of("rotary_yarn", ("float32",))
    manifest = json.loads((bundle.path / "portpe.json").read_text())
    export(
        manifest["spec"],
        tmp_path / "out",
        layer=manifest["layer"],
        forms=manifest["forms"],
        dtypes=manifest["dtypes"],
        table_positions=manifest["table_positions"],
        seed=manifest["seed"],
    )
    assert Bundle.open(tmp_path / "out").manifest["files"] == manifest["files"]


def test_a_bundle_exported_again_keeps_its_weights_and_their_origin(tmp_path, checkpoint):
    export(checkpoint, tmp_path / "a", layer=1)
    export(tmp_path / "a", tmp_path / "b", layer=1, dtypes=("float32", "float16"))
    a, b = Bundle.open(tmp_path / "a"), Bundle.open(tmp_path / "b")
    assert a.manifest["weights"] == b.manifest["weights"] == "checkpoint"
    assert a.manifest["source"] == b.manifest["source"]
    for name, array in a.weights().items():
        np.testing.assert_array_equal(b.weights()[name], array)


def test_random_weights_do_not_depend_on_forms_and_types(spec_of, tmp_path):
    for folder, dtypes in (("a", ("float32",)), ("b", ("bfloat16", "float16"))):
        export(spec_of("rotary_default"), tmp_path / folder, dtypes=dtypes, golden=False)
    a, b = _content(tmp_path / "a"), _content(tmp_path / "b")
    assert a["weights.safetensors"] == b["weights.safetensors"]
    export(spec_of("rotary_default"), tmp_path / "c", golden=False, seed=5)
    assert _content(tmp_path / "c")["weights.safetensors"] != a["weights.safetensors"]
    assert Bundle.open(tmp_path / "c").manifest["seed"] == 5


@pytest.fixture
def checkpoint(tmp_path):
    """Two layers of a llama in float32, as their owner saves them; the second is not the first."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    random = np.random.default_rng(4)
    tensors = {}
    for layer in (0, 1):
        for part, rows in (("q", 48), ("k", 16), ("v", 16), ("o", 48)):
            name = f"model.layers.{layer}.self_attn.{part}_proj.weight"
            tensors[name] = (random.standard_normal((rows, 48)) * 0.2).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_weights_come_from_the_checkpoint(checkpoint, tmp_path):
    bundle = export(checkpoint, tmp_path / "out", layer=1, golden=False)
    from safetensors.numpy import load_file

    stored = load_file(checkpoint / "model.safetensors")
    for part in "qkvo":
        expected = stored[f"model.layers.1.self_attn.{part}_proj.weight"]
        np.testing.assert_array_equal(bundle.weights()[f"{part}_proj.weight"], expected)
    assert (bundle.manifest["weights"], bundle.manifest["seed"], bundle.layer) == ("checkpoint", None, 1)
    assert bundle.manifest["source"]["name"] == "checkpoint"
    data = (bundle.path / "onnx" / "weights_float32.data").read_bytes()
    q = np.frombuffer(data[: 48 * 48 * 4], np.float32).reshape(48, 48)  # (in, out): a graph multiplies from the left
    np.testing.assert_array_equal(q, stored["model.layers.1.self_attn.q_proj.weight"].T)


def test_layers_become_one_bundle_each_and_an_index(checkpoint, tmp_path):
    first = export(checkpoint, tmp_path / "out", layer="all", golden=False)
    assert first.layer == 0
    assert [bundle.layer for bundle in bundles.open_all(tmp_path / "out")] == [0, 1]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"layer_00", "layer_01", "portpe.index.json"}
    with pytest.raises(SpecError, match="holds one bundle a layer"):
        Bundle.open(tmp_path / "out")
    one = export(checkpoint, tmp_path / "one", layer="1-1", golden=False)
    assert _content(one.path) == _content(tmp_path / "out" / "layer_01")
    (tmp_path / "out" / "layer_00" / "portpe.json").write_text("{}")
    with pytest.raises(SpecError, match=r"layer_00/portpe\.json is not the one exported"):
        bundles.open_all(tmp_path / "out")


@pytest.mark.parametrize("layer", ["2-9", "1-0", "x", "-1", "0-12", ""])
def test_a_bad_range_is_refused(tmp_path, layer):
    with pytest.raises(SpecError, match=r"^layer must be"):
        export({**LLAMA, "num_hidden_layers": 2}, tmp_path / "out", layer=layer, golden=False)
    assert list(tmp_path.iterdir()) == []


# --- refusals --------------------------------------------------------------------------------


def test_a_length_dependent_schedule_needs_a_context(tmp_path):
    config = LLAMA | DYNAMIC
    ways_out = r"schedule dynamic depends on the current length.*--context L.*--regime per_sequence"
    with pytest.raises(SpecError, match=ways_out):
        export(config, tmp_path / "out", golden=False)
    assert list(tmp_path.iterdir()) == []
    bundle = export(config, tmp_path / "out", golden=False, context=120)
    assert bundle.spec.rotary.regime.length == 120


def test_a_length_dependent_schedule_may_follow_each_row(tmp_path):
    config = LLAMA | DYNAMIC
    bundle = export(config, tmp_path / "out", golden=False, regime="per_sequence")
    assert bundle.spec.rotary.regime.kind == "per_sequence"
    assert bundle.tables() == {}
    assert bundle.manifest["table_positions"] is None
    with pytest.raises(SpecError, match="context must be left out under regime per_sequence, got 120"):
        export(config, tmp_path / "both", golden=False, regime="per_sequence", context=120)
    with pytest.raises(SpecError, match="regime must be 'per_sequence', got 'by_sequence'; fix a length with context"):
        export(config, tmp_path / "other", golden=False, regime="by_sequence")
    plain = export(LLAMA, tmp_path / "plain", golden=False, regime="per_sequence")
    assert plain.spec.rotary.regime is None  # nothing there depends on the length


@pytest.mark.parametrize("form", ["ort"])
def test_a_form_that_joins_keys_itself_refuses_to_turn_them_late(tmp_path, form):
    with pytest.raises(SpecError, match=f"form {form} cannot carry this spec: regime per_sequence .*form portable"):
        export(LLAMA | DYNAMIC, tmp_path / "out", golden=False, regime="per_sequence", forms=(form,))


def test_transformers_numbers_have_no_table_where_every_length_has_its_own(tmp_path):
    settings = {"golden": False, "regime": "per_sequence", "precision": "hf"}
    with pytest.raises(SpecError, match="precision must be exact for schedule dynamic under regime per_sequence"):
        export(LLAMA | DYNAMIC, tmp_path / "out", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"forms": ("nice",)}, r"form must be one of .*, got 'nice'"),
        ({"forms": ()}, "at least one name"),
        ({"dtypes": ("float8",)}, r"dtype must be one of .*, got 'float8'"),
        ({"table_positions": 0}, "table_positions must be >= 1, got 0"),
        ({"table_positions": 10**14}, "table_positions must give tables below 2 GiB, .* got 100000000000000 positions"),
        ({"table_positions": 10**9, "precision": "hf"}, "table_positions must give tables below 2 GiB"),
        ({"layer": 99}, r"layer must be"),
        ({"precision": "roughly"}, "precision must be"),
    ],
)
def test_bad_settings_write_nothing(tmp_path, settings, message):
    with pytest.raises(SpecError, match=message) as caught:
        export(LLAMA, tmp_path / "out", golden=False, **settings)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_and_a_bundle_replaced_by_force(spec_of, tmp_path):
    spec = spec_of("none")
    export(spec, tmp_path / "out", golden=False)
    before = _content(tmp_path / "out")
    with pytest.raises(SpecError, match="give --force"):
        export(spec, tmp_path / "out", golden=False, seed=3)
    assert _content(tmp_path / "out") == before
    export(spec, tmp_path / "out", golden=False, seed=3, force=True)
    assert _content(tmp_path / "out").keys() == before.keys()
    assert Bundle.open(tmp_path / "out").manifest["seed"] == 3
    (tmp_path / "mine").mkdir()
    with pytest.raises(SpecError, match="is no bundle"):
        export(spec, tmp_path / "mine", golden=False, force=True)


def test_a_failed_replacement_keeps_the_old_bundle(spec_of, tmp_path):
    export(spec_of("none"), tmp_path / "out", golden=False)
    before = _content(tmp_path)
    with pytest.raises(SpecError, match="factor"):
        export(
            LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": -2.0}},
            tmp_path / "out",
            golden=False,
            force=True,
        )
    assert _content(tmp_path) == before


LIMITED = """
import resource, sys
from portpe.errors import SpecError
from portpe import export
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    export(sys.argv[1], sys.argv[2], golden=sys.argv[4] == "golden", force=True)
except SpecError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.parametrize(("limit", "golden"), [(5_000, ""), (26_000, ""), (70_000, ""), (90_000, "golden")])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_the_old_bundle_or_nothing(bundle_of, spec_of, tmp_path, limit, golden, existing):
    """A file-size limit stands in for a full disk, at the weights, the data, a graph, the golden values."""
    (tmp_path / "spec.json").write_text(spec_of("rotary_llama3").to_json())
    target = tmp_path / "place" / "out"
    if existing:
        import shutil

        shutil.copytree(bundle_of("rotary_llama3", ("float32",)).path, target)
    before = _content(tmp_path)
    sizes = sorted(len(content) for content in _content(bundle_of("rotary_llama3", ("float32",)).path).values())
    assert sizes[0] < limit < sizes[-1]
    arguments = [sys.executable, "-c", LIMITED, tmp_path / "spec.json", target, str(limit), golden]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert re.fullmatch(r"output \S+ cannot be written: .*(File too large|free some space).*\n", done.stdout)
    assert _content(tmp_path) == before
    assert existing or list((tmp_path / "place").iterdir()) == []


def test_a_place_under_a_file_is_refused(spec_of, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="cannot be written: a part of its path is a file"):
        export(spec_of("none"), tmp_path / "file" / "out", golden=False)
    assert _content(tmp_path) == {"file": b"x"}


# --- tables, golden values, sizes ------------------------------------------------------------


@pytest.mark.parametrize(("asked", "given"), [(1, 1024), (1024, 1024), (1025, 2048), (3_000_000, 3_000_320)])
def test_table_positions_are_rounded_up_to_whole_steps(spec_of, tmp_path, asked, given):
    bundle = export(spec_of("rotary_default"), tmp_path / "out", golden=False, table_positions=asked)
    assert bundle.table_positions == given
    assert len(bundle.tables()["cos_hi"]) * 1024 == given
    assert json.loads((bundle.path / "mlx" / "config.json").read_text())["table_positions"] == given


@pytest.mark.parametrize(
    ("name", "end"),
    [("none", None), ("alibi", None), ("learned", 73), ("sinusoidal_sin_cos", 1298), ("rotary_hf", 1600)],
)
def test_the_end_of_positions_is_in_the_manifest(bundle_of, name, end):
    """Learned and sinusoidal: rows less offset. hf: trained length 50 times the factor 32. No table, no end."""
    assert bundle_of(name).table_positions == end


def test_a_position_past_the_table_is_excluded_by_name(bundle_of):
    excluded = {row["case"]: row["reason"] for row in bundle_of("rotary_hf").manifest["exclusions"]}
    assert set(excluded) == {"position_131071", "position_1000000"}
    assert "ends at 1600" in excluded["position_131071"]


NO_TORCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "mlx", "transformers", "onnxruntime"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from portpe import export
export(sys.argv[1], sys.argv[2], golden=False)
"""


def test_export_without_golden_values_needs_no_torch(spec_of, tmp_path):
    (tmp_path / "spec.json").write_text(spec_of("rotary_yarn").to_json())
    arguments = [sys.executable, "-c", NO_TORCH, tmp_path / "spec.json", tmp_path / "out"]
    subprocess.run(arguments, check=True)
    bundle = Bundle.open(tmp_path / "out")
    assert not bundle.has_golden
    assert "torch" not in bundle.manifest["versions"]


def test_the_estimate_covers_what_is_written(bundle_of):
    bundle = bundle_of("rotary_yarn")
    size = sum(entry["bytes"] for entry in bundle.manifest["files"].values())
    assert size <= estimate(bundle.spec, bundle.forms, bundle.dtypes).disk


def test_the_estimate_of_a_real_layer(spec_of):
    """Llama 3.1 8B: 41.9 million weights, 168 MB in float32, of which an export holds three copies."""
    spec = spec_of("rotary_default", hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
    assert sum(np.prod(shape) for shape in weight_shapes(spec).values()) == 41_943_040
    disk = estimate(spec, ("portable",), ("float32",), golden=False).disk
    assert 3 * 167_772_160 <= disk <= 3.1 * 167_772_160


@pytest.mark.parametrize("name", ["rotary_llama3", "learned", "learned_projected", "alibi", "norm_all_heads"])
def test_a_reduced_layer_has_the_same_encoding(spec_of, name):
    spec = spec_of(name)
    small = reduced_spec(spec, hidden=20)
    assert small.hidden_size == 20
    assert (small.rotary, small.bias) == (spec.rotary, spec.bias)
    assert small.num_heads // small.num_kv_heads in (1, 2, 3)
    assert small.num_heads < spec.num_heads
    assert weight_shapes(small)["q_proj.weight"][1] == 20
    assert reduced_spec(spec, hidden=44) == spec


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model-q4_0.gguf", "model.pkl"])
def test_weights_that_are_not_read_are_refused_and_never_replaced_by_random_ones(tmp_path, name):
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(LLAMA))
    (source / name).write_bytes(b"\x80\x04.")
    with pytest.raises(SpecError, match=re.escape(name)):
        export(source, tmp_path / "out", golden=False)
    assert not (tmp_path / "out").exists()


SLOWED = """
import sys, time
from portpe import export
def say(step):
    print(step, flush=True)
    time.sleep(0.2)
export(sys.argv[1], sys.argv[2], dtypes=("float32", "float16"), golden=False, force=True, seed=9, progress=say)
print("done", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("step", ["graphs in float32", "graphs in float16", "digests", "done"])
def test_a_killed_export_leaves_the_old_bundle_or_the_new_one(bundle_of, spec_of, tmp_path, step):
    import shutil

    (tmp_path / "spec.json").write_text(spec_of("none").to_json())
    target = tmp_path / "place" / "out"
    shutil.copytree(bundle_of("none", ("float32",)).path, target)
    before = _content(target)
    arguments = [sys.executable, "-c", SLOWED, tmp_path / "spec.json", target]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == step:
                break
        child.kill()
    found = Bundle.open(target)
    assert found.manifest["seed"] == (9 if step == "done" else 0)
    assert step == "done" or _content(target) == before
    export(spec_of("none"), target, golden=False, force=True)
    assert [path.name for path in target.parent.iterdir()] == ["out"]
