"""Layer: tests. Regime per_sequence over mlx-lm's caches: rows of different lengths, rings, and going back."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_lm.models import cache as mlx_caches
from mlx_lm.models.base import create_attention_mask

from portpe import tables
from portpe.encodings import DynamicSchedule, DynamicYarnSchedule, LongropeSchedule, PerSequenceRegime, RotaryEncoding
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.reference import Attention as Reference
from portpe.runtimes.mlx import Attention, caches
from portpe.runtimes.mlx.positions import Run
from portpe.spec import AttentionSpec

TRAINED, WIDTH = 16, 8
SCHEDULES = {
    "dynamic": DynamicSchedule(rope_theta=100.0, factor=3.0, max_position_embeddings=TRAINED),
    "dynamic_yarn": DynamicYarnSchedule(rope_theta=100.0, original_max_position_embeddings=TRAINED),
    "longrope": LongropeSchedule(
        rope_theta=100.0,
        short_factor=(1.0, 1.1, 1.3, 1.7),
        long_factor=(1.2, 2.5, 4.0, 9.0),
        original_max_position_embeddings=TRAINED,
        factor=4.0,
    ),
}
TOLERANCE = 3e-5  # of outputs of about 1


def spec_of(kind, **fields):
    sizes = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": WIDTH, "v_head_dim": 7, "scale": 0.35}
    rotary = RotaryEncoding(width=WIDTH, schedule=SCHEDULES[kind], regime=PerSequenceRegime())
    return AttentionSpec(**sizes, rotary=rotary, **fields)


def block_of(spec):
    block = Attention(spec)
    block.load(random_weights(spec, 11))
    return block


def hidden(batch, length, seed=5):
    return np.random.default_rng(seed).standard_normal((batch, length, 20)).astype(np.float32)


def whole(spec, x):
    """The last row of a whole sequence without a cache, in float64, under the schedule of its own length."""
    spec = spec.model_copy(update={"rotary": spec.rotary.model_copy(update={"regime": None})})
    block = Reference(spec, dtype=torch.float64)
    block.load({name: array.astype(np.float64) for name, array in random_weights(spec, 11).items()})
    return block(torch.from_numpy(x.astype(np.float64))).output[:, -1].numpy()


def stepped(block, x, cache, prompt, window=None):
    """The output of every token from ``prompt`` on, one at a time, behind a prefill."""
    outputs = []
    for start, end in [(0, prompt), *((row, row + 1) for row in range(prompt, x.shape[1]))]:
        part = mx.array(x[:, start:end])
        outputs.append(np.array(block(part, create_attention_mask(part, cache, window_size=window), cache))[:, -1])
    return outputs[1:]


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(
    "make",
    [mlx_caches.KVCache, mlx_caches.ConcatenateKVCache, lambda: mlx_caches.RotatingKVCache(max_size=64)],
    ids=["KVCache", "ConcatenateKVCache", "RotatingKVCache"],
)
def test_steps_across_the_trained_length_equal_whole_sequences(kind, make):
    spec, x = spec_of(kind), hidden(2, TRAINED + 5)
    prompt = TRAINED - 2
    for count, output in enumerate(stepped(block_of(spec), x, make(), prompt), start=prompt + 1):
        np.testing.assert_allclose(output, whole(spec, x[:, :count]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_rows_of_a_batch_cross_at_their_own_steps(kind):
    """Left padding of 0, 3 and 4: each row is its own tokens alone."""
    pads, spec, prompt = (0, 3, 4), spec_of(kind), TRAINED - 1
    x = hidden(3, TRAINED + 8)
    outputs = stepped(block_of(spec), x, mlx_caches.BatchKVCache(list(pads)), prompt)
    for count, output in enumerate(outputs, start=prompt + 1):
        for row, pad in enumerate(pads):
            expected = whole(spec, x[row : row + 1, pad:count])[0]
            np.testing.assert_allclose(output[row], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_ring_counts_the_tokens_seen_and_not_the_rows_held(kind):
    """Window 5 in a ring of 6: keys are evicted and overwritten, lengths go on."""
    spec, x = spec_of(kind, window=5), hidden(2, TRAINED + 6)
    cache = mlx_caches.RotatingKVCache(max_size=6)
    outputs = stepped(block_of(spec), x, cache, 9, window=5)
    assert cache.keys.shape[2] <= 6
    for count, output in enumerate(outputs, start=10):
        np.testing.assert_allclose(output, whole(spec, x[:, :count]), rtol=0, atol=TOLERANCE)


def test_the_next_position_follows_the_tokens_seen():
    """10 seen, 4 evicted, 6 held: the next position is 10, and the keys are those of 5 to 10."""
    cache = mlx_caches.RotatingKVCache(max_size=6)
    for _ in range(10):
        cache.update_and_fetch(mx.zeros((1, 2, 1, WIDTH)), mx.zeros((1, 2, 1, 7)))
    assert cache.keys.shape[2] == 6
    assert caches.next_positions(cache, 1) == Run(10, 1)
    got = caches.extend(cache, mx.zeros((1, 2, 1, WIDTH)), mx.zeros((1, 2, 1, 7)))
    assert sorted(got.key_slots.tolist()) == [5, 6, 7, 8, 9, 10]


def fed(block, x, cache, count, window):
    for row in range(count):
        part = mx.array(x[:, row : row + 1])
        block(part, create_attention_mask(part, cache, window_size=window), cache)


@pytest.mark.parametrize("kind", ["dynamic", None])
@pytest.mark.parametrize(("seen", "back_to"), [(10, 3), (6, 3), (5, 2)])
def test_a_ring_that_passed_over_a_token_cannot_go_back_to_it(kind, seen, back_to):
    """Window 4 in a ring of 4. mlx-lm's own trim sets the count back, and the slots hold other tokens."""
    spec = spec_of(kind or "dynamic", window=4)
    if kind is None:
        spec = spec.model_copy(update={"rotary": None})
    block, x, cache = block_of(spec), hidden(1, 12), mlx_caches.RotatingKVCache(max_size=4)
    fed(block, x, cache, seen, 4)
    assert not cache.is_trimmable()
    cache.trim(seen - back_to)
    with pytest.raises(SpecError, match=rf"RotatingKVCache was rewound to token {back_to} .*cold prefill.*KVCache"):
        block(mx.array(x[:, back_to : back_to + 1]), None, cache)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_cache_that_keeps_all_keys_goes_back_behind_the_switch(kind):
    """Past the trained length, back to before it, and on: bit for bit the steps that were, and no stale key."""
    block, x, cache = block_of(spec_of(kind)), hidden(1, TRAINED + 4), mlx_caches.KVCache()
    first = stepped(block, x, cache, TRAINED - 3)
    cache.trim(7)
    again = [
        np.array(block(mx.array(x[:, row : row + 1]), None, cache))[:, -1] for row in range(TRAINED - 3, TRAINED + 4)
    ]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_keys_are_cached_as_they_were_projected():
    spec, x = spec_of("longrope"), hidden(1, 7)
    cache, block = mlx_caches.KVCache(), block_of(spec)
    block(mx.array(x), "causal", cache)
    np.testing.assert_array_equal(np.array(cache.keys[..., :7, :]), np.array(block.stages(mx.array(x))["k"]))


def test_a_mask_that_hides_keys_shortens_the_row():
    """Two rows of 20 slots; of the second the last 5 are pads, which some callers count on: its length is 15."""
    spec, x = spec_of("longrope", causal=False), hidden(2, 20)
    kept = np.ones((2, 1, 1, 20), bool)
    kept[1, ..., 15:] = False
    found = np.array(block_of(spec)(mx.array(x), mx.array(kept), position_ids=np.arange(20)))
    np.testing.assert_allclose(found[0, -1], whole(spec, x[:1])[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found[1, 14], whole(spec, x[1:, :15])[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_two_offsets_give_two_tables_and_each_is_a_slice_of_the_full_one(kind):
    """4 tokens at 0 and at 7, one module, both at one length: neither call is served the other's rows."""
    rope = block_of(spec_of(kind)).rope
    rng = np.random.default_rng(0)
    q, k = (mx.array(rng.standard_normal((1, heads, 1, WIDTH)).astype(np.float32)) for heads in (6, 2))

    def turned(first, length=30):
        rows = [mx.repeat(part, 4, axis=2) for part in (q, k)]
        return np.array(rope.rotate_all(*rows, Run(first, 4), Run(first, 4), np.array([length]))[0])

    at_0, at_7 = turned(0), turned(7)
    assert np.abs(at_0 - at_7).max() > 0.5
    full = np.array(rope.rotate_all(mx.repeat(q, 11, axis=2), k, Run(0, 11), Run(0, 1), np.array([30]))[0])
    np.testing.assert_array_equal(at_7, full[:, :, 7:])
    np.testing.assert_array_equal(turned(0), at_0)
    assert np.abs(turned(7, TRAINED) - at_7).max() > 1e-2  # another length is another table too


@pytest.mark.parametrize("way", ["compiled", "metal", "fast_rope"])
def test_ways_of_one_schedule_are_refused(way):
    with pytest.raises(SpecError, match=f"rotation must be auto or plain under regime per_sequence, got '{way}'"):
        Attention(spec_of("dynamic"), rotation=way)


def test_tables_are_made_for_a_length_and_kept_for_the_next_call(monkeypatch):
    """Up to the trained length one table serves all; past it each length has one, of the last call alone."""
    made = []
    levels = tables.rotary_levels

    def noted(encoding, end, length, *rest):
        made.append(length)
        return levels(encoding, end, length, *rest)

    monkeypatch.setattr(tables, "rotary_levels", noted)
    stepped(block_of(spec_of("dynamic")), hidden(1, TRAINED + 3), mlx_caches.KVCache(), 9)
    assert made == [1, TRAINED + 1, TRAINED + 2, TRAINED + 3]
