"""Keys out of order: a ring of slots serves biases that go by position, and not one that sums along the keys."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from portpe.encodings import CopeEncoding, ShawEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 7, "scale": 0.3}


def decoded(block, cache, tokens=11):
    return mx.concatenate([block(tokens_of(block, at), cache=cache) for at in range(tokens)], axis=1)


def tokens_of(block, at):
    mx.random.seed(at)
    return mx.random.normal((2, 1, block.args.hidden_size))


def test_a_ring_is_refused_where_a_bias_sums_along_keys(block_of):
    block, _ = block_of(AttentionSpec(**SIZES, window=5, bias=(CopeEncoding(rows=4),)))
    with pytest.raises(SpecError, match="cache RotatingKVCache reorders keys, and a bias sums along their order"):
        decoded(block, RotatingKVCache(max_size=5))


def test_a_ring_serves_a_bias_of_distances(block_of, as_float64):
    block, _ = block_of(AttentionSpec(**SIZES, window=5, bias=(ShawEncoding(left=4, right=1, values=True),)))
    ring, whole = (as_float64(decoded(block, cache)) for cache in (RotatingKVCache(max_size=5), KVCache()))
    assert abs(ring - whole).max() <= 1e-5 * abs(whole).max()
