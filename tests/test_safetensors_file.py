"""The files of a checkpoint folder: damaged ones, pickles, indexes and links are refused, caches of hubs are read."""

import json
from pathlib import Path

import pytest

from portpe.checkpoint import has_weights
from tests.checkpoints import NORM, SPEC, folder_of, llama, load, raw_file, refused

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED = {
    "empty": b"",
    "short": b"\x08\x00",
    "header longer than the file": (b"{}", b"", 4096),
    "header of 2**60 bytes": (b"{}", b"", 2**60),
    "bad JSON": (b'{"a": }', b"", None),
    "a list": (b"[1, 2]", b"", None),
    "data cut off": ({"a": {**ONE, "shape": [4], "data_offsets": [0, 16]}}, b"\0" * 12, None),
    "offset past the end": ({"a": {**ONE, "data_offsets": [0, 80]}}, b"\0" * 12, None),
    "overlap": ({"a": ONE, "b": {**ONE, "data_offsets": [4, 12]}}, b"\0" * 12, None),
    "shape and bytes differ": ({"a": {**ONE, "shape": [3]}}, b"\0" * 8, None),
    "unknown type": ({"a": {**ONE, "dtype": "Q4"}}, b"\0" * 8, None),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "model.safetensors"
    content = DAMAGED[damage]
    path.write_bytes(content) if isinstance(content, bytes) else raw_file(path, content[0], content[1], content[2])
    refused(r"^model\.safetensors is truncated or damaged: .*fetch or save the checkpoint again", tmp_path)


def test_a_real_file_cut_anywhere_is_refused(tmp_path):
    whole = (folder_of(tmp_path / "m", llama()) / "model.safetensors").read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        refused("truncated or damaged", tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json",
        "model.pt",
        "consolidated.00.pth",
    ],
)
def test_a_pickle_is_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    assert has_weights(tmp_path), "it must not be taken for a folder without weights"
    refused(rf"^{name} is a pickle.*save_pretrained\(\) write model\.safetensors", tmp_path)


def test_gguf_is_refused_by_name(tmp_path):
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    assert has_weights(tmp_path)
    refused(r"^model-q4\.gguf is a GGUF file", tmp_path)


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert not has_weights(tmp_path)
    assert not has_weights(tmp_path / "absent")
    refused(r"has no model\.safetensors", tmp_path)
    refused(r"must be a folder, got 'absent'", tmp_path / "absent")


def test_several_files_without_an_index_are_refused(tmp_path):
    folder_of(tmp_path, llama(1), file="a.safetensors")
    folder_of(tmp_path, llama(1), file="b.safetensors")
    refused(r"several safetensors files \(a\.safetensors, b\.safetensors\)", tmp_path)


def test_one_file_of_any_name_is_read(tmp_path):
    assert load(folder_of(tmp_path, llama(), file="weights.safetensors"))["q_proj.weight"].shape == (24, 20)


INDEX = "model.safetensors.index.json"


def index_folder(tmp_path, index):
    folder = folder_of(tmp_path / "m", llama(), file="a.safetensors")
    (folder / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ("{", "is not readable as JSON"),
        ("[]", "must have weight_map"),
        ({"metadata": {}}, "must have weight_map"),
        ({"weight_map": {"a": 3}}, "must have weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, r"names gone\.safetensors, which is not there"),
        ({"weight_map": {"a": "../a.safetensors"}}, r"'\.\./a\.safetensors', which is no plain file name"),
        ({"weight_map": {"a": "/etc/passwd"}}, "no plain file name"),
        ({"weight_map": {"a": ".."}}, r"names '?\.\."),
        ({"weight_map": {"a": "sub/a.safetensors"}}, "no plain file name"),
    ],
)
def test_a_bad_index_is_refused(tmp_path, index, match):
    refused(match, index_folder(tmp_path, index))


def test_an_index_that_puts_a_tensor_into_the_wrong_file(tmp_path):
    names = [*llama(), "model.layers.1.self_attn.q_norm.weight"]
    folder = index_folder(tmp_path, {"weight_map": dict.fromkeys(names, "a.safetensors")})
    spec = SPEC.model_copy(update={"q_norm": NORM, "k_norm": NORM})
    names.append("model.layers.1.self_attn.k_norm.weight")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")}))
    refused(r"q_norm\.weight is in a\.safetensors, which does not have it", folder, spec=spec, model_type="qwen3")


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder_of(tmp_path / "elsewhere", llama(), file="x.safetensors")
    folder = index_folder(tmp_path, {"weight_map": dict.fromkeys(llama(), "link.safetensors")})
    (folder / "link.safetensors").symlink_to(tmp_path / "elsewhere" / "x.safetensors")
    refused(r"link\.safetensors, a link that leads out of the folder", folder)


def test_the_hub_caches_links_to_its_blobs_are_read(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    folder_of(blobs, llama(), file="0123")
    (snapshot / "model-00001-of-00001.safetensors").symlink_to(Path("../../blobs/0123"))
    index = {"weight_map": dict.fromkeys(llama(), "model-00001-of-00001.safetensors")}
    (snapshot / INDEX).write_text(json.dumps(index))
    assert load(snapshot)["k_proj.weight"][0, 0] == 110
