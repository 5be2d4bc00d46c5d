"""Layer: tests. Keys with tables of their own: what graphs hold, keys far ahead in float16, MLX's ways of turning."""

import mlx.core as mx
import numpy as np
import onnx
import pytest
import torch
from mlx_lm.models.cache import KVCache

from portpe.encodings import DefaultSchedule, RotaryEncoding, XposDecay
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS
from portpe.interface import BlockInputs
from portpe.random_weights import random_weights
from portpe.reference import Attention as Reference
from portpe.runtimes.mlx import Attention
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.spec import AttentionSpec
from portpe.tables import end_of, table_set
from tests.exporters.onnx.blocks import LAYER
from tests.exporters.onnx.files import write

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 8, "scale": 0.3}


def layer(centre, trained=2000, **keys):
    rotary = RotaryEncoding(width=8, schedule=DefaultSchedule(), decay=XposDecay(centre=centre), **keys)
    return AttentionSpec(**SIZES, rotary=rotary, max_position_embeddings=trained)


def truth(spec, weights, hidden, positions):
    block = Reference(spec, dtype=torch.float64).load(weights)
    return block(torch.from_numpy(hidden.astype(np.float64)), torch.from_numpy(positions)).output.numpy()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_tables_of_keys(form, tmp_path):
    spec = layer(1000)
    assert FORMS[form].carries(spec) is None
    made = table_set(spec)
    files = write(tmp_path, spec, random_weights(spec, 1), "float32", made, form=form)
    held = {tensor.name for tensor in onnx.load(files.path, load_external_data=False).graph.initializer}
    names = {f"{prefix}{name}_{level}" for prefix in ("", "key_") for name in ("cos", "sin") for level in ("hi", "lo")}
    assert names <= held
    assert end_of(spec, made) == 2048


@pytest.mark.parametrize("form", FORMS)
def test_keys_as_far_ahead_as_positions_go_stay_numbers_in_float16(form, tmp_path):
    """Some operators form a hidden key's score before they hide it; here it has grown by 2^9.4."""
    spec = layer(1340, trained=2680 - 1)
    files = write(tmp_path, spec, random_weights(spec, 2), "float16", table_set(spec, 2680), form=form)
    positions = np.array([[0, 2, 3, 1300, 2670, 2671, 2675]])
    hidden = (np.random.default_rng(3).standard_normal((1, 7, 20)) * 3).astype(np.float16)
    nothing = np.zeros((1, 2, 0, 8), np.float16)
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)
    found = session.run(BlockInputs(hidden, positions, np.ones_like(positions), positions, nothing, nothing)).output
    expected = truth(
        spec, {name: w.astype(np.float16) for name, w in random_weights(spec, 2).items()}, hidden, positions
    )
    assert np.abs(found.astype(np.float64) - expected).max() < 4e-3 * np.abs(expected).max()


def mlx_block(spec, weights, **keys):
    block = Attention(spec, **keys)
    block.load(weights)
    return block


@pytest.mark.parametrize("rotation", ["auto", "plain", "compiled"])
def test_mlx_steps_and_long_calls_turn_keys_by_their_own_table(rotation):
    """One token after another is cut from prepared blocks, a long call is looked up on the device."""
    spec = layer(70, trained=300, pairing="interleaved")
    weights = random_weights(spec, 4)
    hidden = np.random.default_rng(5).standard_normal((1, 131, 20)).astype(np.float32)
    expected = truth(spec, weights, hidden, np.arange(131)[None])
    block, cache = mlx_block(spec, weights, rotation=rotation), KVCache()
    parts = [block(mx.array(hidden[:, :90]), "causal", cache)]
    parts += [block(mx.array(hidden[:, row : row + 1]), None, cache) for row in range(90, 131)]
    found = np.array(mx.concatenate(parts, axis=1))
    assert np.abs(found - expected).max() < 4e-6 * np.abs(expected).max()


def test_mlx_refuses_positions_that_its_type_does_not_hold():
    spec = layer(0)
    block = mlx_block(spec, random_weights(spec, 7))
    hidden, positions = mx.ones((1, 2, 20)), np.array([[3, 1417]])
    assert mx.isfinite(block(hidden, "causal", position_ids=positions)).all()
    block.set_dtype(mx.float16)
    assert mx.isfinite(block(hidden.astype(mx.float16), "causal", position_ids=positions - 1)).all()
    with pytest.raises(SpecError, match=r"positions must be from 0 to 1416 with rotary\.decay, .* float16 holds"):
        block(hidden.astype(mx.float16), "causal", position_ids=positions)


def test_mlx_never_takes_a_way_that_turns_queries_and_keys_alike():
    spec = layer(0, trained=300)
    block = mlx_block(spec, random_weights(spec, 6))
    assert block.rotation_way()[0] == "plain"
    assert block.rope._why_not_metal() == "the Metal kernel turns q and k by one table, and here keys have their own"
    with pytest.raises(SpecError, match=r"rotation must be auto or plain here, got 'metal': .* keys have their own"):
        Attention(spec, rotation="metal")
    with pytest.raises(SpecError, match=r"rotary\.decay must be left out where rotation is fast_rope"):
        Attention(spec, rotation="fast_rope")
