"""What a source is: mappings, objects, files, folders, bundles and names."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import portpe
from portpe.config import load_layers, load_spec, read
from portpe.encodings import DefaultSchedule, NtkSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

SPEC = AttentionSpec(
    hidden_size=24,
    num_heads=3,
    num_kv_heads=1,
    head_dim=8,
    v_head_dim=8,
    scale=0.5,
    rotary=RotaryEncoding(width=8, schedule=NtkSchedule(factor=4.0)),
)


def write(path: Path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_the_public_names():
    assert portpe.load_spec is load_spec
    assert portpe.load_layers is load_layers


def test_a_mapping_a_file_and_a_folder_are_the_same_config(llama, tmp_path):
    path = write(tmp_path / "checkpoint" / "config.json", llama())
    expected = load_spec(llama())
    for source in (path, str(path), path.parent, str(path.parent)):
        assert load_spec(source) == expected
    assert load_layers(path) == [expected] * 3
    renamed = write(tmp_path / "anything.txt", llama())
    assert load_spec(renamed) == expected


def test_a_config_object_is_read_through_to_dict(llama):
    class Config:
        def to_dict(self):
            return llama()

    assert load_spec(Config()) == load_spec(llama())


@pytest.mark.parametrize("form", ["object", "mapping", "file"])
def test_a_spec_works_everywhere_a_config_does(form, tmp_path):
    source = {"object": SPEC, "mapping": SPEC.to_dict(), "file": write(tmp_path / "s.json", SPEC.to_json())}[form]
    reading = read(source)
    assert reading.spec == SPEC
    assert (reading.num_layers, reading.model_type, reading.config, reading.folder) == (1, None, None, None)
    assert load_layers(source) == [SPEC]
    with pytest.raises(SpecError, match=r"^layer must be 0: .* describes that layer alone, got 1"):
        load_spec(source, layer=1)
    with pytest.raises(SpecError, match=r"^part must be left out"):
        load_spec(source, part="encoder")
    with pytest.raises(SpecError, match=r"^input_norm must be in the spec itself"):
        read(source, input_norm=True)


def test_a_spec_keeps_its_own_precision_unless_hf_is_asked_for():
    assert read(SPEC.with_precision("hf")).spec.precision == "hf"
    assert read(SPEC, precision="hf").spec.precision == "hf"
    assert read(SPEC).spec.precision == "exact"


def test_a_spec_of_another_version_or_a_bad_one():
    with pytest.raises(SpecError, match=r"^portpe_spec must be 1, got 2"):
        load_spec(SPEC.to_dict() | {"portpe_spec": 2})
    with pytest.raises(SpecError, match=r"^num_heads .*got -3"):
        load_spec(SPEC.to_dict() | {"num_heads": -3})
    with pytest.raises(SpecError, match=r"^ropey is not a known field"):
        load_spec(SPEC.to_dict() | {"ropey": 1})


def test_a_bundle_says_its_own_layer(tmp_path):
    manifest = {"schema_version": 1, "spec": SPEC.to_dict(), "layer": 5, "part": "encoder"}
    path = write(tmp_path / "out" / "portpe.json", manifest)
    write(tmp_path / "out" / "config.json", {"model_type": "bert"})
    for source in (path, path.parent):
        for options in ({}, {"layer": 5}, {"part": "encoder"}):
            reading = read(source, **options)
            assert (reading.spec, reading.layer, reading.part) == (SPEC, 5, "encoder")
        with pytest.raises(SpecError, match=r"^layer must be 5: .* describes that layer alone, got 3"):
            read(source, layer=3)
    write(path, manifest | {"layer": -1})
    with pytest.raises(SpecError, match="must be an integer >= 0, got -1"):
        read(path)


def test_only_a_folder_is_searched_for_weights(llama, tmp_path):
    folder = write(tmp_path / "model-7b" / "config.json", llama()).parent
    assert read(folder).folder == folder
    assert read(folder / "config.json").folder is None


def test_names_are_never_paths_from_the_root(llama, tmp_path):
    folder = write(tmp_path / "model-7b" / "config.json", llama()).parent
    assert read(folder).source_name == "model-7b"
    assert read(folder / "config.json").source_name == "config.json"
    assert read(llama()).source_name == "config"
    assert read("gpt2").source_name == "gpt2"


def test_digests_are_of_the_bytes_or_of_canonical_json(llama, tmp_path):
    import hashlib

    path = write(tmp_path / "config.json", json.dumps(llama(), indent=3))
    assert read(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    shuffled = dict(reversed(llama().items()))
    assert read(shuffled).sha256 == read(llama()).sha256
    assert read(llama(rope_theta=7.0)).sha256 != read(llama()).sha256
    assert read(SPEC).sha256 == read(SPEC.to_dict()).sha256


def test_an_existing_path_wins_over_a_preset(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_spec("gpt2").embedding.rows == 1024
    write(tmp_path / "gpt2" / "config.json", llama())
    assert load_spec("gpt2").rotary.schedule == DefaultSchedule(rope_theta=20000.0)


def test_an_unknown_name_says_what_is_near():
    with pytest.raises(SpecError, match=r"^source must be an existing path or a preset's name, got 'llama-3.1-8B-x'"):
        load_spec("llama-3.1-8B-x")
    with pytest.raises(SpecError, match=r"near ones: .*llama-3\.1-8b"):
        load_spec("Llama-3.1-8B")
    with pytest.raises(SpecError, match="--list-presets"):
        load_spec("zzzzzzzzzzzzzzzzzz")


@pytest.mark.parametrize("source", [None, 3, 2.5, [1], object()])
def test_what_is_no_source(source):
    with pytest.raises(SpecError, match=r"^source must be a config, a spec, a path or a preset's name, got"):
        load_spec(source)


def test_a_mapping_that_json_cannot_hold(llama):
    with pytest.raises(SpecError, match=r"^config must hold what JSON can hold: "):
        load_spec(llama() | {(1, 2): 3})
    circle = llama()
    circle["itself"] = circle
    with pytest.raises(SpecError, match=r"^config must hold what JSON can hold: Circular"):
        load_spec(circle)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON: Expecting value"),
        ("not json", "must be JSON: Expecting value"),
        ("{'model_type': 'llama'}", "must be JSON: Expecting property name"),
        ('{"model_type": "llama",}', "must be JSON: "),
        ('{"model_type": "llama"} x', "must be JSON: Extra data"),
        ('["model_type"]', "must be a JSON object, got list"),
        ("3", "must be a JSON object, got int"),
        ("null", "must be a JSON object, got NoneType"),
        ('{"model_type": "llama", "rope_theta": NaN}', "must be JSON, got NaN, which is no JSON number"),
        ('{"model_type": "llama", "rope_theta": -Infinity}', "must be JSON, got -Infinity, which is no JSON number"),
        ('{"model_type": "llama", "rope_theta": 1e999}', "must hold finite numbers, got 1e999"),
        ('{"rope_theta": 1, "model_type": "llama", "rope_theta": 2}', "must not repeat a key, got 'rope_theta' twice"),
        ('{"rope_scaling": {"factor": 1, "factor": 2}}', "must not repeat a key, got 'factor' twice"),
        ('{"model_type": "llama", "x": ' + "9" * 5000 + "}", "must be JSON: Exceeds the limit"),
        ("[" * 100_000, "must be JSON"),
        ("{}", "must have model_type, to be a config, or portpe_spec, to be a spec; got neither"),
        ('{"model_type": null}', "must have model_type, to be a config"),
    ],
)
def test_files_that_are_no_config(tmp_path, text, message):
    path = write(tmp_path / "config.json", text)
    for source in (path, path.parent):
        with pytest.raises(SpecError) as error:
            load_spec(source)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00\xff\xfe")
    with pytest.raises(SpecError, match="must be JSON"):
        load_spec(path)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(SpecError, match=r"^source must hold a config.json or a portpe.json, got neither in"):
        load_spec(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecError, match=r"^source must be an existing path"):
        load_spec(tmp_path / "missing" / "config.json")
    with pytest.raises(SpecError):
        load_spec("a" * 5000)
    with pytest.raises(SpecError):
        load_spec("nul\0byte")


@given(
    st.floats(1e2, 1e7),
    st.sampled_from([8, 16, 64]),
    st.integers(1, 6),
    st.one_of(st.none(), st.floats(1.0, 64.0)),
)
def test_a_spec_read_from_a_config_survives_json(theta, head_dim, groups, factor):
    config = {
        "model_type": "llama",
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": groups,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "max_position_embeddings": 99,
        "rope_theta": theta,
        "rope_scaling": None if factor is None else {"rope_type": "dynamic", "factor": factor},
    }
    spec = load_spec(config)
    assert load_spec(json.loads(spec.to_json())) == spec
    assert spec.rotary.schedule.rope_theta == theta
