"""Layer: tests. Linear attention in MLX: masks by head and batch, left padding, and what is refused."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_lm.models import cache as mlx_caches

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.reference import Attention as Reference
from portpe.runtimes.mlx import Attention
from portpe.spec import AttentionSpec

SPEC = AttentionSpec(
    hidden_size=20,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    v_head_dim=5,
    scale=1.0,
    attention="linear",
    rotary=RotaryEncoding(width=6, schedule=DefaultSchedule(rope_theta=90.0)),
)


def hidden(batch, length, seed=2):
    return np.random.default_rng(seed).standard_normal((batch, length, SPEC.hidden_size)).astype(np.float32)


def test_a_mask_by_head_hides_keys_from_numerator_and_normaliser(block_of):
    """Against plain sums over each head's own keys, from the module's stages without a mask."""
    block, weights = block_of(SPEC)
    x = mx.array(hidden(2, 5))
    keep = np.random.default_rng(9).random((2, 6, 5, 5)) < 0.6
    keep[:, :, 1] = False
    stages = {name: np.array(value).astype(np.float64) for name, value in block.stages(x).items()}
    above = np.where(keep, stages["q_rotated"] @ np.repeat(stages["k_rotated"], 3, 1).swapaxes(2, 3), 0)
    below = np.where(keep, stages["q_features"] @ np.repeat(stages["k_features"], 3, 1).swapaxes(2, 3), 0)
    below = below.sum(-1, keepdims=True)
    context = above @ np.repeat(stages["v"], 3, 1) / np.where(below == 0, 1, below)
    expected = context.transpose(0, 2, 1, 3).reshape(2, 5, -1) @ weights["o_proj.weight"].T.astype(np.float64)
    found = np.array(block(x, mx.array(keep)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert not found[:, 1].any()


def test_left_padding_of_a_batch_cache(block_of):
    """Two rows, one with three pads before it: prompt and steps as the reference has the row without its pads."""
    block, weights = block_of(SPEC)
    truth = Reference(SPEC, dtype=torch.float64).load(
        {name: value.astype(np.float64) for name, value in weights.items()}
    )
    x, cache = hidden(2, 9), mlx_caches.BatchKVCache([0, 3])
    found = [block(mx.array(x[:, :6]), "causal", cache)]
    found += [block(mx.array(x[:, row : row + 1]), None, cache) for row in range(6, 9)]
    found = np.array(mx.concatenate(found, axis=1))
    for row, pads in ((0, 0), (1, 3)):
        expected = truth(torch.from_numpy(x[row : row + 1, pads:].astype(np.float64))).output[0].numpy()
        np.testing.assert_allclose(found[row, pads:], expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_a_mask_that_is_added_is_refused(block_of, dtype):
    block, _ = block_of(SPEC)
    with pytest.raises(SpecError, match=r"mask must be bool \(True = keep\) with linear attention, got mlx"):
        block(mx.array(hidden(1, 3)), mx.zeros((3, 3), dtype=dtype))


@pytest.mark.parametrize("rotation", ["compiled", "metal", "fast_rope"])
def test_keys_are_turned_in_plain_operations(rotation):
    with pytest.raises(
        SpecError, match=f"rotation must be auto or plain where each call turns all keys, got '{rotation}'"
    ):
        Attention(SPEC, rotation=rotation)
    for plain in ("auto", "plain"):
        assert Attention(SPEC, rotation=plain).rotation_way() == ("plain", None)


def test_a_position_past_the_table_is_an_error_for_keys_too(block_of):
    block, _ = block_of(SPEC, table_positions=1024)
    x, past = mx.array(hidden(1, 1)), [mx.zeros((1, 2, 2, width)) for width in (8, 5)]
    block.stages(x, [[1023]], None, *past, [[5, 1023, 1023]])
    with pytest.raises(SpecError, match="position_ids must be < 1024"):
        block.stages(x, [[1023]], None, *past, [[5, 1024, 1023]])
