"""Graphs whose tables go by distance, at lengths that nobody thought of: no length is baked in."""

import numpy as np
import pytest
import torch

from portpe.encodings import DebertaEncoding
from portpe.exporters.onnx import FORMS
from portpe.interface import BlockInputs
from portpe.layer_parts import ProjectionBiases
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.spec import AttentionSpec
from tests.exporters.onnx.blocks import LAYER
from tests.exporters.onnx.files import write

HIDDEN, HEADS, SPAN, LONGEST = 24, 3, 6, 11


@pytest.fixture(scope="module")
def theirs():
    """transformers' own disentangled attention with log buckets, and its tensors under canonical names."""
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta

    config = DebertaV2Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        relative_attention=True,
        position_buckets=SPAN,
        max_relative_positions=LONGEST,
        pos_att_type="c2p|p2c",
    )
    torch.manual_seed(0)
    attention = deberta.DisentangledSelfAttention(config).eval()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    table, out = torch.randn(2 * SPAN, HIDDEN), torch.eye(HIDDEN)
    names = {"query": "q", "key": "k", "value": "v", "pos_key": "position_key", "pos_query": "position_query"}
    weights = {"relative_embedding.weight": table.numpy(), "o_proj.weight": out.numpy()}
    for name, ours in names.items():
        for part in ("weight", "bias"):
            weights[f"{ours}_proj.{part}"] = getattr(getattr(attention, f"{name}_proj"), part).detach().numpy()

    def call(states):
        count = states.shape[1]
        seen = torch.ones(len(states), 1, count, count, dtype=torch.bool)
        with torch.no_grad():
            return attention.double()(states, seen, rel_embeddings=table.double())[0].numpy()

    return call, weights


@pytest.mark.parametrize("form", ["portable", "standard", "ort"])
def test_log_buckets_at_one_length_and_another(form, theirs, tmp_path):
    """A graph that ran 8 rows first runs 16 and 3 as well: buckets go by distance and not by the length of a trace."""
    call, weights = theirs
    spec = AttentionSpec(
        hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=8,
        v_head_dim=8,
        scale=(8 * 3) ** -0.5,
        causal=False,
        biases=ProjectionBiases(q=True, k=True, v=True),
        bias=(DebertaEncoding(span=SPAN, max_distance=LONGEST, key_bias=True),),
    )
    assert FORMS[form].carries(spec) is None
    files = write(tmp_path, spec, weights, "float32", {}, form=form)
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, None)
    random = np.random.default_rng(1)
    for count in (8, 16, 3):
        states = random.standard_normal((2, count, HIDDEN)).astype(np.float32)
        places = np.arange(count)[None].repeat(2, 0) + 40
        nothing = np.zeros((2, HEADS, 0, 8), np.float32)
        found = session.run(BlockInputs(states, places, np.ones_like(places), places, nothing, nothing))
        expected = call(torch.from_numpy(states).double())
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(found.output, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
