"""Layer: tests. Loading an mlx folder, quantised too, and every way in which it can be wrong."""

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from portpe.encodings import DefaultSchedule, LearnedEncoding, RotaryEncoding
from portpe.errors import SpecError
from portpe.exporters.mlx import write
from portpe.interface import DTYPES
from portpe.layer_parts import ProjectionBiases
from portpe.random_weights import random_weights
from portpe.runtimes.mlx import Attention
from portpe.spec import AttentionSpec

SPEC = AttentionSpec(
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    v_head_dim=32,
    scale=0.2,
    biases=ProjectionBiases(q=True),
    embedding=LearnedEncoding(rows=30, width=64),
    rotary=RotaryEncoding(width=32, schedule=DefaultSchedule()),
)


@pytest.fixture
def folder(tmp_path):
    write(SPEC, random_weights(SPEC, 1), layer=3, folder=tmp_path / "mlx")
    return tmp_path / "mlx"


def hidden(length=5):
    return mx.array(np.random.default_rng(0).standard_normal((2, length, 64)).astype(np.float32))


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_folder_gives_the_layer_that_it_was_written_from(folder):
    block = Attention.from_folder(folder)
    assert block.spec == SPEC
    assert block.args.layer_idx == 3
    direct = Attention(SPEC)
    direct.load(random_weights(SPEC, 1))
    np.testing.assert_array_equal(np.array(block(hidden(), "causal")), np.array(direct(hidden(), "causal")))


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_weights_come_in_the_type_that_was_stored(tmp_path, dtype):
    stored = {name: value.astype(DTYPES[dtype]) for name, value in random_weights(SPEC, 1).items()}
    write(SPEC, stored, layer=0, folder=tmp_path)
    parameters = dict(tree_flatten(Attention.from_folder(tmp_path).parameters()))
    assert parameters.keys() == stored.keys()
    for name, value in parameters.items():
        assert value.dtype == getattr(mx, dtype)
        np.testing.assert_array_equal(np.array(value.astype(mx.float32)), stored[name].astype(np.float32))


def test_a_table_that_is_asked_for_is_the_one_that_is_made(tmp_path):
    spec = SPEC.model_copy(update={"embedding": None})
    write(spec, random_weights(spec, 1), layer=0, folder=tmp_path, table_positions=3000)
    assert Attention.from_folder(tmp_path).end == 3072  # whole steps of 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.pop("k_proj.weight"),
            r"k_proj\.weight is missing from the weights; it must have shape \(64, 64\)",
        ),
        (lambda w: w.update({"o_proj.bias": w["q_proj.bias"]}), r"o_proj\.bias is not a weight of this layer; it has"),
        (
            lambda w: w.update({"k_proj.weight": w["q_proj.weight"]}),
            r"k_proj\.weight must have shape \(64, 64\), got \(128, 64\)",
        ),
        (
            lambda w: w.update({"position_embedding.weight": w["position_embedding.weight"][:-1]}),
            r"position_embedding\.weight must have shape \(30, 64\), got \(29, 64\)",
        ),
    ],
    ids=["missing", "unknown", "another shape", "a row too few"],
)
def test_weights_that_do_not_fit_are_refused(folder, change, message):
    """mlx's load_weights(strict=False) takes each of these without a word."""
    weights = dict(mx.load(str(folder / "weights.safetensors")))
    change(weights)
    mx.save_safetensors(str(folder / "weights.safetensors"), weights)
    with pytest.raises(SpecError, match=f"^{message}") as error:
        Attention.from_folder(folder)
    assert "\n" not in str(error.value)


def test_what_mlx_itself_lets_pass():
    block = Attention(SPEC)
    block.load_weights([("k_proj.weight", mx.zeros((7, 5)))], strict=False)
    assert block.k_proj.weight.shape == (7, 5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json of the mlx folder cannot be read: No such file"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json of the mlx folder is not JSON: "),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json of the mlx folder must be an object, got list"),
        (lambda f: edit(f, model_type="llama"), "model_type must be 'portpe', got 'llama'"),
        (lambda f: edit(f, head_dim=16), "head_dim must equal the spec's 32, got 16"),
        (lambda f: edit(f, portpe={"portpe_spec": 2}), "portpe_spec must be 1, got 2"),
        (lambda f: (f / "weights.safetensors").unlink(), r"weights\.safetensors is missing from the mlx folder"),
        (
            lambda f: (f / "weights.safetensors").write_bytes((f / "weights.safetensors").read_bytes()[:-40]),
            r"weights\.safetensors is truncated or damaged: ",
        ),
        (
            lambda f: (f / "weights.safetensors").write_bytes(b"\x80\x04."),
            r"weights\.safetensors is truncated or damag",
        ),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(folder, damage, message):
    damage(folder)
    with pytest.raises(SpecError, match=f"^{message}") as error:
        Attention.from_folder(folder)
    assert "\n" not in str(error.value)


def test_hf_tables_are_taken_from_the_bundle_and_missed_by_name(tmp_path):
    spec = SPEC.model_copy(update={"embedding": None}).with_precision("hf")
    write(spec, random_weights(spec, 1), layer=0, folder=tmp_path / "mlx")
    with pytest.raises(SpecError, match=r"^tables_hf\.safetensors is required where precision is hf and missing"):
        Attention.from_folder(tmp_path / "mlx")
    rng = np.random.default_rng(2)
    tables = {name: rng.standard_normal((50, 16)).astype(np.float32) for name in ("cos", "sin")}
    mx.save_safetensors(str(tmp_path / "tables_hf.safetensors"), {name: mx.array(t) for name, t in tables.items()})
    block = Attention.from_folder(tmp_path / "mlx")
    assert block.end == 50
    np.testing.assert_array_equal(np.array(block.rope.table._cos), tables["cos"])


def test_sanitize_drops_the_buffers_of_old_checkpoints(folder):
    weights = random_weights(SPEC, 1)
    block = Attention(SPEC)
    block.load(weights | {"rotary_emb.inv_freq": np.zeros(16, np.float32)})
    assert "rotary_emb.inv_freq" not in dict(tree_flatten(block.parameters()))


# --- quantisation ---


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.03), (4, 0.5)])
def test_nn_quantize_takes_the_projections_and_leaves_positions_alone(folder, bits, limit):
    """The error falls with the bits as rounding does (a sixteenth from 4 to 8)."""
    block = Attention.from_folder(folder)
    exact = np.array(block(hidden(), "causal"))
    nn.quantize(block, group_size=32, bits=bits)
    assert isinstance(block.q_proj, nn.QuantizedLinear)
    assert type(block.position_embedding).__name__ == "LearnedTable"
    error = np.abs(np.array(block(hidden(), "causal")) - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < limit
    assert set(block.stages(hidden())) >= {"q_rotated", "probs", "output"}


def test_a_quantised_folder_as_mlx_lm_saves_it(folder):
    block = Attention.from_folder(folder)
    nn.quantize(block, group_size=32, bits=8)
    expected = np.array(block(hidden(), "causal"))
    mx.save_safetensors(str(folder / "weights.safetensors"), dict(tree_flatten(block.parameters())))
    edit(folder, quantization={"group_size": 32, "bits": 8})
    np.testing.assert_array_equal(np.array(Attention.from_folder(folder)(hidden(), "causal")), expected)
    edit(folder, quantization={"group_size": 64, "bits": 8})
    with pytest.raises(SpecError, match="must have shape"):
        Attention.from_folder(folder)
    edit(folder, quantization={"group_size": 48, "bits": 8})
    with pytest.raises(SpecError, match=r"^quantization of config\.json does not fit this layer: "):
        Attention.from_folder(folder)
    edit(folder, quantization=None)
    with pytest.raises(SpecError, match=r"^q_proj\.weight must have shape"):
        Attention.from_folder(folder)
