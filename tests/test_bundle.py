"""The bundle: nothing is loaded from a folder whose digests do not fit, and any machine with numpy can read one."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import onnx
import pytest

from portpe import bundle as bundles
from portpe.bundle import Bundle
from portpe.errors import SpecError

MANIFEST_KEYS = {
    *("schema_version", "spec", "source", "layer", "part", "forms", "dtypes", "table_positions", "weights", "seed"),
    *("capabilities", "exclusions", "versions", "files"),
}


def test_layout_and_manifest(bundle_of):
    bundle = bundle_of("rotary_llama3")
    manifest = json.loads((bundle.path / "portpe.json").read_text())
    assert set(manifest) == MANIFEST_KEYS
    expected = {"weights.safetensors", "golden.safetensors", "mlx/config.json", "mlx/weights.safetensors"}
    for dtype in ("float32", "float16", "bfloat16"):
        expected |= {f"onnx/portable_{dtype}.onnx", f"onnx/portable_{dtype}.stages.onnx", f"onnx/weights_{dtype}.data"}
    assert set(manifest["files"]) == expected
    found = {path.relative_to(bundle.path).as_posix() for path in bundle.path.rglob("*") if path.is_file()}
    assert found == expected | {"portpe.json"}
    for name, entry in manifest["files"].items():
        content = (bundle.path / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert (manifest["weights"], manifest["seed"], manifest["table_positions"]) == ("random", 0, 2**20)


def test_no_path_of_the_machine_is_in_a_bundle(bundle_of):
    """The folder may be sent to anybody: no file holds a path of this machine."""
    bundle = bundle_of("rotary_llama3")
    for path in bundle.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for place in (os.getcwd(), str(bundle.path.parent), sys.prefix, os.path.expanduser("~")):
                assert place.encode() not in content, path.name


def test_opened_bundle_gives_what_was_exported(bundle_of, spec_of):
    bundle = bundle_of("rotary_hf")
    assert bundle.spec == spec_of("rotary_hf")
    assert (bundle.layer, bundle.forms, bundle.dtypes) == (0, ("portable",), ("float32", "float16", "bfloat16"))
    assert bundle.graph("portable", "float16").name == "portable_float16.onnx"
    assert bundle.graph("portable", "float16", stages=True).name == "portable_float16.stages.onnx"
    assert set(bundle.tables()) == {"cos", "sin"}
    assert (bundle.path / "tables_hf.safetensors").is_file()
    assert len(bundle.golden("bfloat16")) > 8


FILES = [
    "weights.safetensors",
    "golden.safetensors",
    "mlx/weights.safetensors",
    "mlx/config.json",
    "onnx/weights_float32.data",
]
FILES += ["onnx/portable_float32.onnx", "onnx/portable_float32.stages.onnx"]


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_found_before_anything_is_loaded(copy_of, name):
    folder = copy_of("rotary_default")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(SpecError, match=rf"^{name} is not the file that was exported: its sha256 differs"):
        Bundle.open(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_and_a_truncated_file(copy_of, name):
    folder = copy_of("rotary_default")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(SpecError, match="not the file that was exported"):
        Bundle.open(folder, verify=False)  # the size is looked at in any case
    (folder / name).unlink()
    with pytest.raises(SpecError, match=rf"^{name} is missing from the bundle"):
        Bundle.open(folder)


def test_links_are_refused(copy_of, tmp_path):
    folder = copy_of("rotary_default")
    data = folder / "onnx" / "weights_float32.data"
    outside = tmp_path / "outside.data"
    data.rename(outside)
    data.symlink_to(outside)
    with pytest.raises(SpecError, match="is a link"):
        Bundle.open(folder)
    data.unlink()
    os.link(outside, data)
    with pytest.raises(SpecError, match="is a hard link"):
        Bundle.open(folder)


def test_a_linked_folder_inside_is_refused(copy_of, tmp_path):
    folder = copy_of("rotary_default")
    (folder / "onnx").rename(tmp_path / "elsewhere")
    (folder / "onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="is a link"):
        Bundle.open(folder)


def test_a_linked_manifest_is_refused(copy_of, tmp_path):
    folder = copy_of("rotary_default")
    (folder / "portpe.json").rename(tmp_path / "portpe.json")
    (folder / "portpe.json").symlink_to(tmp_path / "portpe.json")
    with pytest.raises(SpecError, match=r"^portpe.json is a link"):
        Bundle.open(folder)


@pytest.fixture
def indexed(copy_of, tmp_path):
    """A stack whose index is what a test makes of the numbers; both layers are one bundle."""
    folder = copy_of("rotary_default")
    for name in ("layer_00", "layer_01"):
        shutil.copytree(folder, tmp_path / "stack" / name)

    def write(*layers):
        entries = [
            {"layer": number, "path": name, "sha256": bundles.digest(tmp_path / "stack" / name / "portpe.json")}
            for number, name in layers
        ]
        (tmp_path / "stack" / "portpe.index.json").write_text(json.dumps({"schema_version": 1, "layers": entries}))
        return tmp_path / "stack"

    return write


@pytest.mark.parametrize(
    ("layers", "got"), [([(9, "layer_00")], "layer 0, got 9"), ([(0, "layer_00"), (0, "layer_01")], "layer 0, got 0")]
)
def test_an_index_names_each_layer_once_by_its_number(indexed, layers, got):
    with pytest.raises(SpecError, match=f"must name each layer once, by its number: layer_0. is {got}"):
        bundles.open_all(indexed(*layers))
    assert [bundle.layer for bundle in bundles.open_all(indexed((0, "layer_01")))] == [0]


def test_a_linked_layer_is_refused(indexed, tmp_path):
    stack = indexed((0, "layer_00"))
    (stack / "layer_00").rename(tmp_path / "elsewhere")
    (stack / "layer_00").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match=r"^layer_00 is a link"):
        bundles.open_all(stack)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], r"layers must have a length >= 1, got \[\]"),
        ([{"layer": 0, "path": "layer_00"}], "sha256 is required and missing"),
        ([{"layer": 0, "path": "../out", "sha256": ""}], "must be relative paths inside the bundle"),
        ([{"layer": 0, "path": "layer_00", "sha256": ""}], "portpe.json cannot be read"),
    ],
)
def test_a_bad_index_is_one_line(tmp_path, layers, message):
    (tmp_path / "portpe.index.json").write_text(json.dumps({"schema_version": 1, "layers": layers}))
    with pytest.raises(SpecError, match=message) as caught:
        bundles.open_all(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "onnx/../../outside", "a\\..\\b", "C:/x", ""])
def test_paths_that_lead_out_are_refused(copy_of, name):
    folder = copy_of("rotary_default")
    manifest = json.loads((folder / "portpe.json").read_text())
    manifest["files"][name] = {"sha256": "0" * 64, "bytes": 1}
    (folder / "portpe.json").write_text(json.dumps(manifest))
    with pytest.raises(SpecError, match="must be relative paths inside the bundle"):
        Bundle.open(folder)


@pytest.mark.parametrize("location", ["../../secret", "/etc/passwd", "unlisted.data", "../weights.safetensors/../x"])
def test_a_graph_that_takes_weights_from_elsewhere_is_refused(copy_of, location):
    """Also when its digest was renewed, and before a runtime follows it; a file inside that no digest covers too."""
    folder = copy_of("rotary_default")
    path = folder / "onnx" / "portable_float32.onnx"
    model = onnx.load(path, load_external_data=False)
    entries = model.graph.initializer[0].external_data
    next(entry for entry in entries if entry.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    (folder / "onnx" / "unlisted.data").write_bytes(b"x")
    bundles.seal(folder, json.loads((folder / "portpe.json").read_text()))
    sealed = json.loads((folder / "portpe.json").read_text())
    del sealed["files"]["onnx/unlisted.data"]
    (folder / "portpe.json").write_text(json.dumps(sealed))
    with pytest.raises(SpecError, match=r"portable_float32.onnx takes weights from .* which is no file of the bundle"):
        Bundle.open(folder)


def _broken(change):
    def apply(folder):
        manifest = json.loads((folder / "portpe.json").read_text())
        change(manifest)
        (folder / "portpe.json").write_text(json.dumps(manifest))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "portpe.json").write_text("{"), "portpe.json is not readable as JSON"),
        (lambda folder: (folder / "portpe.json").write_text("[]"), "portpe.json must be a JSON object, got list"),
        (lambda folder: (folder / "portpe.json").unlink(), "is no bundle: it has no portpe.json"),
        (_broken(lambda m: m.update(schema_version=99)), "schema_version must be 1, got 99"),
        (_broken(lambda m: m.pop("layer")), "portpe.json layer is required and missing"),
        (_broken(lambda m: m.update(files=[])), r"portpe.json files must be a valid dictionary, got \[\]; export"),
        (_broken(lambda m: m.update(layer="x")), "portpe.json layer must be a valid integer, got 'x'"),
        (_broken(lambda m: m.update(layer=True)), "portpe.json layer must be a valid integer, got True"),
        (_broken(lambda m: m.update(source="x")), "portpe.json source "),
        (_broken(lambda m: m.update(dtypes=["float64"])), "portpe.json dtypes.0 must be 'float32'"),
        (_broken(lambda m: m.update(forms=[])), r"portpe.json forms must have a length >= 1, got \[\]"),
        (_broken(lambda m: m.update(forms=["ort"])), "files must hold onnx/ort_float32.onnx"),
        (_broken(lambda m: m["files"].pop("weights.safetensors")), "files must hold weights.safetensors"),
        (_broken(lambda m: m["files"].pop("mlx/config.json")), "files must hold mlx/config.json"),
        (_broken(lambda m: m["files"].pop("mlx/weights.safetensors")), "files must hold mlx/weights.safetensors"),
        (_broken(lambda m: m["files"].pop("onnx/weights_float32.data")), "files must hold onnx/weights_float32.data"),
        (
            _broken(lambda m: m["files"].pop("onnx/portable_float32.stages.onnx")),
            "files must hold onnx/portable_float32.stages.onnx",
        ),
        (_broken(lambda m: m.update(table_positions=-1)), "portpe.json table_positions must be greater than 0"),
        (_broken(lambda m: m["files"].update({"golden.safetensors": None})), "portpe.json files.golden.safetensors "),
        (_broken(lambda m: m.pop("weights")), "portpe.json weights is required and missing"),
        (_broken(lambda m: m["spec"].update(num_heads=-1)), r"portpe.json spec.num_heads"),
        (_broken(lambda m: m["files"]["golden.safetensors"].pop("bytes")), "golden.safetensors.bytes is required"),
    ],
)
def test_a_bad_manifest_is_one_line(copy_of, change, message):
    folder = copy_of("rotary_default")
    change(folder)
    with pytest.raises(SpecError, match=message) as caught:
        Bundle.open(folder)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_said(bundle_of, tmp_path):
    bundle = bundle_of("none", ("float32",))
    with pytest.raises(SpecError, match=r"bundle has no onnx/portable_float16.onnx"):
        bundle.graph("portable", "float16")
    with pytest.raises(SpecError, match="no golden values for bfloat16"):
        bundle.golden("bfloat16")
    with pytest.raises(SpecError, match="is no bundle"):
        Bundle.open(tmp_path)
    with pytest.raises(SpecError, match="is no bundle"):
        Bundle.open(tmp_path / "absent")


def test_reports_are_not_covered_by_digests(copy_of):
    folder = copy_of("none")
    (folder / "report.json").write_text("{}")
    bundles.seal(folder, Bundle.open(folder).manifest)
    (folder / "report.json").write_text("[]")
    assert "report.json" not in Bundle.open(folder).manifest["files"]


def test_only_a_bundle_may_be_replaced(tmp_path, copy_of):
    folder = copy_of("none")
    with pytest.raises(SpecError, match="give --force"):
        bundles.check_target(folder, force=False)
    bundles.check_target(folder, force=True)
    bundles.check_target(tmp_path / "new", force=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for target in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(SpecError, match="exists and is no bundle"):
            bundles.check_target(target, force=True)


READ = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "onnx", "onnx_ir", "onnxruntime", "mlx", "transformers"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from portpe.bundle import Bundle
bundle = Bundle.open(sys.argv[1])
print(len(bundle.weights()), sorted(bundle.tables())[0], len(bundle.golden("bfloat16")))
"""


@pytest.mark.parametrize(("name", "first"), [("rotary_default", "cos_hi"), ("rotary_hf", "cos")])
def test_numpy_alone_reads_a_bundle(bundle_of, name, first):
    bundle = bundle_of(name)
    done = subprocess.run([sys.executable, "-c", READ, str(bundle.path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", first, str(len(bundle.golden("bfloat16")))]
