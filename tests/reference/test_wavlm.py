"""WavLM's gated buckets: by hand, and whole layers of transformers' own model, weights through the checkpoint."""

import math

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.encodings import GatedBucketsEncoding
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.spec import AttentionSpec

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()

SIZES = {"hidden_size": 12, "num_heads": 3, "num_kv_heads": 3, "head_dim": 5, "v_head_dim": 4, "scale": 0.4}
POSITIONS = (0, 1, 2, 4, 9, 30)
MODEL = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "num_buckets": 18,
    "max_bucket_distance": 11,
    "conv_dim": [8],
    "conv_stride": [1],
    "conv_kernel": [1],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
MODELS = {"wavlm": MODEL, "wavlm stable": {**MODEL, "do_stable_layer_norm": True}}
FRAMES = 15


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def bucket(behind):
    """Of 7 buckets a direction, 3 of one distance each, the others by the logarithm up to 20."""
    large = 3 + int(math.log(max(abs(behind), 3) / 3) / math.log(20 / 3) * 4)
    return (abs(behind) if abs(behind) < 3 else min(large, 6)) + 7 * (behind < 0)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_the_formula(causal, weights_of, states):
    spec = AttentionSpec(**SIZES, causal=causal, bias=(GatedBucketsEncoding(num_buckets=14, max_distance=20),))
    weights, x = weights_of(spec), states(spec, 2, 6)
    stages = Attention(spec, dtype=torch.float64).load(weights).stages(x, torch.tensor([POSITIONS] * 2))
    found = {name: stage.numpy() for name, stage in stages.items()}
    table, scale = weights["relative_attention_bias.weight"], weights["relative_gate_scale"]
    for batch, h, i in np.ndindex(2, 3, 6):
        own = x[batch, i].numpy()[4 * h : 4 * h + 4]
        eight = [
            sum(float(w * c) for w, c in zip(weights["relative_gate.weight"][r], own, strict=True))
            + float(weights["relative_gate.bias"][r])
            for r in range(8)
        ]
        a, b = sigmoid(sum(eight[:4])), sigmoid(sum(eight[4:]))
        gate = a * (b * float(scale[h]) - 1) + 2
        for j in range(i + 1 if causal else 6):
            added = gate * float(table[bucket(POSITIONS[i] - POSITIONS[j]), h])
            expected = float(found["q"][batch, h, i] @ found["k"][batch, h, j]) * 0.4 + added
            assert found["scores"][batch, h, i, j] == pytest.approx(expected, abs=1e-12)


def test_hidden_states_are_cut_by_head():
    with pytest.raises(SpecError, match=r"^hidden_size must be a multiple of num_heads = 5 for gated buckets, got 12$"):
        AttentionSpec(**{**SIZES, "num_heads": 5, "num_kv_heads": 5}, bias=(GatedBucketsEncoding(),))


def test_positions_give_the_buckets_and_no_bias():
    spec = AttentionSpec(**SIZES, bias=(GatedBucketsEncoding(num_buckets=14, max_distance=20),))
    found = portpe.tabulate(spec, [0, 4, 70])
    assert found.keys() == {"buckets"}
    np.testing.assert_array_equal(found["buckets"], [[0, 10, 13], [3, 0, 13], [6, 6, 0]])


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # torch's, of the model's own masks
@pytest.mark.parametrize("name", MODELS)
def test_layers_equal_transformers(name, tmp_path):
    """The table of layer 0 serves layer 1, whose gates are its own; frames behind a text are masked."""
    torch.manual_seed(0)
    config = transformers.WavLMConfig(**MODELS[name])
    model = transformers.WavLMModel(config).eval()
    for name, parameter in model.named_parameters():
        if "attention" in name:
            parameter.data.normal_(0.5 if "const" in name else 0.0, 0.5)
    model.save_pretrained(tmp_path)
    model = model.double()
    seen, given = [], []
    for layer in model.encoder.layers:
        layer.attention.register_forward_hook(lambda _, args, output: seen.append((args, output)))
    states = torch.randn(2, FRAMES, 48, dtype=torch.float64) * 2
    mask = torch.tensor([[True] * FRAMES, [True] * 11 + [False] * 4])
    with torch.no_grad():
        model.encoder(states, attention_mask=mask)
    for number, (args, output) in enumerate(seen):
        reading = portpe.config.read(tmp_path, number)
        assert (reading.spec.bias[0].num_buckets, reading.spec.causal) == (18, False)
        weights = load_layer(tmp_path, reading.spec, model_type="wavlm", layer=number)
        block = Attention(reading.spec, dtype=torch.float64)
        block.load({name: array.astype(np.float64) for name, array in weights.items()})
        ours = block(args[0], torch.arange(FRAMES)[None].repeat(2, 1), mask.long()).output
        assert output[0].std() > 0.1
        torch.testing.assert_close(ours[mask], output[0][mask], rtol=0, atol=1e-9)
        given.append(weights)
    np.testing.assert_array_equal(*(each["relative_attention_bias.weight"] for each in given))
    assert np.abs(given[0]["relative_gate.weight"] - given[1]["relative_gate.weight"]).max() > 0.1
    if not config.do_stable_layer_norm:
        with pytest.raises(SpecError, match=r"^input_norm must be false for wavlm layer 1"):
            portpe.config.read(tmp_path, 1, input_norm=True)
        return
    normed = portpe.config.read(tmp_path, 1, input_norm=True).spec
    assert load_layer(tmp_path, normed, model_type="wavlm", layer=1)["input_norm.weight"].shape == (48,)
