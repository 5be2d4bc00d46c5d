"""Attention in chunks: a query sees the positions of its own chunk up to itself, worked by hand."""

import numpy as np
import pytest
import torch

from portpe.errors import SpecError
from portpe.parity.stages import visible_keys
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.reference.mask import visible
from portpe.report.budget import attention_flops, cache_bytes
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 7, "scale": 0.3}
CHUNKED = AttentionSpec(**SIZES, chunk=3)


def test_what_is_seen_by_position():
    """Chunks 0 1 2, 3 4 5, 6 7 8: of the queries at 5, 6 and 7, the first sees 3 to 5, the second itself alone."""
    keys = torch.arange(8)[None]
    seen = visible(CHUNKED, 3, 5, None, torch.device("cpu"), (keys[:, 5:], keys))[0, 0]
    assert [row.nonzero().flatten().tolist() for row in seen] == [[3, 4, 5], [6], [6, 7]]
    for row in range(3):
        mask = np.ones(8, np.int64)
        ours = visible_keys(CHUNKED, row, 5, mask, (np.array(5 + row), np.arange(8)))
        assert ours.tolist() == seen[row].tolist()


def test_pads_do_not_shift_the_chunks():
    """Three pads, then positions 0 to 4: the token at position 3 begins a chunk wherever its slot is."""
    positions = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]).bool()
    seen = visible(CHUNKED, 8, 0, mask, torch.device("cpu"), (positions, positions))[0, 0]
    assert [row.nonzero().flatten().tolist() for row in seen[3:]] == [[3], [3, 4], [3, 4, 5], [6], [6, 7]]


def test_a_chunk_of_a_long_call_is_a_call_of_its_own():
    """Without a rotation a chunk knows nothing of what came before it."""
    block = Attention(CHUNKED, dtype=torch.float64).load(random_weights(CHUNKED, 0))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 8, 20)))
    whole = block(x).output
    for start in (0, 3, 6):
        part = x[:, start : start + 3]
        assert torch.allclose(whole[:, start : start + 3], block(part).output, rtol=1e-13, atol=1e-13)
    plain = CHUNKED.model_copy(update={"chunk": None})
    assert (Attention(plain, dtype=torch.float64).load(random_weights(plain, 0))(x).output - whole).abs().max() > 0.1


def test_decoding_over_a_boundary_equals_one_call():
    block = Attention(CHUNKED, dtype=torch.float64).load(random_weights(CHUNKED, 0))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 8, 20)))
    whole, key, value, steps = block(x).output, None, None, []
    for row in range(8):
        result = block(x[:, row : row + 1], past_key=key, past_value=value)
        key, value = result.present_key, result.present_value
        steps.append(result.output)
    assert torch.allclose(torch.cat(steps, dim=1), whole, rtol=1e-13, atol=1e-13)


def test_costs():
    """8 tokens in chunks of 3: 6 + 6 + 3 pairs; the cache holds a chunk at most."""
    assert attention_flops([CHUNKED], 8) == 2 * 6 * (12 + 7) * 15
    assert cache_bytes([CHUNKED], 8, 2) == 2 * (12 + 7) * 2 * 3
    assert cache_bytes([CHUNKED], 2, 2) == 2 * (12 + 7) * 2 * 2


def test_chunks_need_causality():
    with pytest.raises(SpecError, match="chunk needs causal true and positions of one axis, got chunk 3"):
        AttentionSpec(**SIZES, chunk=3, causal=False)
