"""Layer: tests. The block inside mlx-lm's world: its own Llama attention, and every cache that it has."""

import inspect

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import cache as mlx_caches
from mlx_lm.models import llama
from mlx_lm.models.base import create_attention_mask

from portpe.encodings import AlibiEncoding, DefaultSchedule, LinearSchedule, Llama3Schedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.runtimes.mlx import Attention
from portpe.spec import AttentionSpec

HIDDEN, HEADS, KV, DIM = 24, 6, 2, 8
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def spec_with(**fields):
    sizes = {"hidden_size": HIDDEN, "num_heads": HEADS, "num_kv_heads": KV, "head_dim": DIM, "v_head_dim": DIM}
    return AttentionSpec(**sizes, **{"scale": DIM**-0.5, **fields})


def rotary(schedule=None, **fields):
    return {"rotary": RotaryEncoding(width=DIM, schedule=schedule or DefaultSchedule(rope_theta=100.0), **fields)}


def loaded(spec, seed=11):
    block = Attention(spec)
    block.load(random_weights(spec, seed))
    return block


def hidden(batch, length, seed=5):
    return mx.array(np.random.default_rng(seed).standard_normal((batch, length, HIDDEN)).astype(np.float32))


def run_in_parts(block, x, cache, cuts, window=None, mask_of=None):
    """The outputs of a sequence fed in parts, with the masks that an mlx-lm model makes."""
    outputs, start = [], 0
    for cut in cuts:
        part = x[:, start : start + cut]
        mask = mask_of(part, cache) if mask_of else create_attention_mask(part, cache, window_size=window)
        outputs.append(block(part, mask, cache))
        start += cut
    return np.array(mx.concatenate(outputs, axis=1))


@pytest.mark.parametrize("cuts", [[17], [9, 1, 1, 1, 5], [1] * 17], ids=["prefill", "decode and a chunk", "decode"])
@pytest.mark.parametrize(
    ("scaling", "schedule"),
    [
        (None, DefaultSchedule(rope_theta=100.0)),
        ({"rope_type": "linear", "factor": 4.0}, LinearSchedule(rope_theta=100.0, factor=4.0)),
        ({"rope_type": "llama3", **LLAMA3}, Llama3Schedule(rope_theta=100.0, **LLAMA3)),
    ],
    ids=["default", "linear", "llama3"],
)
@pytest.mark.parametrize("traditional", [False, True])
def test_it_is_mlx_lms_llama_attention(cuts, scaling, schedule, traditional):
    """Same weights, same caches, same masks; at positions where float32 angles are still good."""
    spec = spec_with(**rotary(schedule, pairing="interleaved" if traditional else "half"))
    ours = loaded(spec)
    theirs = llama.Attention(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=HIDDEN,
            num_hidden_layers=1,
            intermediate_size=1,
            num_attention_heads=HEADS,
            num_key_value_heads=KV,
            head_dim=DIM,
            rms_norm_eps=1e-5,
            vocab_size=1,
            rope_theta=100.0,
            rope_traditional=traditional,
            rope_scaling=scaling,
        )
    )
    theirs.load_weights([(name, mx.array(value)) for name, value in random_weights(spec, 11).items()], strict=True)
    x = hidden(3, sum(cuts))
    caches = mlx_caches.KVCache(), mlx_caches.KVCache()
    found, expected = (run_in_parts(block, x, cache, cuts) for block, cache in zip((ours, theirs), caches, strict=True))
    assert np.abs(expected).max() > 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(
        np.array(caches[0].keys_and_values()[0]), np.array(caches[1].keys_and_values()[0]), rtol=0, atol=1e-5
    )


# --- caches: each is right or refused, and a new one is noticed ---

ENCODINGS = {
    "rotary": rotary(),
    "alibi": {"bias": (AlibiEncoding(),)},
    "rotary, window": rotary() | {"window": 5},
    "alibi, window": {"bias": (AlibiEncoding(),), "window": 5},
    "linear": rotary() | {"attention": "linear", "scale": 1.0},
    "linear, window": rotary() | {"attention": "linear", "scale": 1.0, "window": 5},
    "alibi, sinks": {"bias": (AlibiEncoding(),), "sinks": True},  # a sink feels a bias that is off by a constant
}
RIGHT = {
    "KVCache": mlx_caches.KVCache,
    "ConcatenateKVCache": mlx_caches.ConcatenateKVCache,
    "RotatingKVCache": lambda: mlx_caches.RotatingKVCache(max_size=64),
    "ChunkedKVCache": lambda: mlx_caches.ChunkedKVCache(chunk_size=64),
    "BatchKVCache": lambda: mlx_caches.BatchKVCache([0, 0]),
}
APPROXIMATE = {"QuantizedKVCache"}
REFUSED = {
    "BatchRotatingKVCache": (lambda: mlx_caches.BatchRotatingKVCache(8, [0, 0]), "reorders slots by row"),
    "ArraysCache": (lambda: mlx_caches.ArraysCache(2), "must keep keys and values"),
    "CacheList": (lambda: mlx_caches.CacheList(mlx_caches.KVCache()), "must keep keys and values"),
}


def test_every_cache_class_of_mlx_lm_is_accounted_for():
    base = mlx_caches._BaseCache
    there = {
        name
        for name, value in inspect.getmembers(mlx_caches, inspect.isclass)
        if issubclass(value, base) and value is not base
    }
    assert there == set(RIGHT) | APPROXIMATE | set(REFUSED)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_cached_run_equals_the_whole(name, encoding):
    """Prefill, two single tokens, a chunk and another token; a model that makes its own window masks, and one that
    leaves the window to the block."""
    spec = spec_with(**ENCODINGS[encoding])
    block, x = loaded(spec), hidden(2, 14)
    whole = np.array(block(x, "causal"))
    for mask_of in (None, lambda part, _: "causal" if part.shape[1] > 1 else None):
        if name == "ChunkedKVCache" and mask_of is None:
            continue  # it makes no masks
        found = run_in_parts(block, x, RIGHT[name](), [7, 1, 1, 4, 1], spec.window, mask_of)
        np.testing.assert_allclose(found, whole, rtol=0, atol=5e-6)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("encoding", ["rotary", "alibi, window", "linear, window"])
def test_a_quantised_cache_is_right_on_the_keys_that_it_kept(encoding, bits):
    """Against the same block on keys and values that went through the same rounding, and near the exact ones."""
    spec = spec_with(**ENCODINGS[encoding]).model_copy(update={"head_dim": 32, "v_head_dim": 32, "rotary": None})
    block, x = loaded(spec), hidden(2, 9)

    class Rounding(mlx_caches.KVCache):
        def update_and_fetch(self, keys, values):
            rounded = (
                mx.dequantize(*mx.quantize(part, group_size=32, bits=bits), group_size=32, bits=bits)
                for part in (keys, values)
            )
            return super().update_and_fetch(*rounded)

    quantised = run_in_parts(block, x, mlx_caches.QuantizedKVCache(group_size=32, bits=bits), [6, 1, 2])
    expected = run_in_parts(block, x, Rounding(), [6, 1, 2])
    exact = np.array(block(x, "causal"))
    np.testing.assert_allclose(quantised, expected, rtol=0, atol=5e-6)
    error = np.abs(quantised - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < {8: 0.05, 4: 0.6}[bits]


@pytest.mark.parametrize("name", REFUSED)
def test_other_caches_are_refused_by_name(name):
    make, reason = REFUSED[name]
    with pytest.raises(SpecError, match=f"{name}|{reason}") as error:
        loaded(spec_with(**rotary()))(hidden(2, 1), None, make())
    assert name in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("encoding", ["rotary, window", "alibi, window", "linear, window"])
@pytest.mark.parametrize(
    "cuts", [[6, *[1] * 14], [1] * 20, [6, 1, 5, 1, 1, 4, 1, 1]], ids=["decode", "one by one", "chunks"]
)
def test_a_rotating_cache_is_right_while_it_holds_the_window(keep, encoding, cuts):
    """Its slots are a ring: windows and biases follow the tokens, not the slots."""
    spec = spec_with(**ENCODINGS[encoding])
    block, x = loaded(spec), hidden(2, 20)
    whole = np.array(block(x, "causal"))
    for size in (5 + keep, 7 + keep):
        cache = mlx_caches.RotatingKVCache(max_size=size, keep=keep)
        found = run_in_parts(block, x, cache, cuts, mask_of=lambda part, _: "causal" if part.shape[1] > 1 else None)
        np.testing.assert_allclose(found, whole, rtol=0, atol=5e-6)
        assert cache.offset == 20
        assert cache.size() == size  # it has dropped tokens


def test_a_rotating_cache_with_the_masks_that_it_makes_itself():
    spec = spec_with(**ENCODINGS["alibi, window"])
    block, x = loaded(spec), hidden(2, 20)
    whole = np.array(block(x, "causal"))
    for size in (5, 8):
        found = run_in_parts(block, x, mlx_caches.RotatingKVCache(max_size=size), [6, 1, 5, 1, 1, 4, 1, 1], window=5)
        np.testing.assert_allclose(found, whole, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("encoding", "cache", "message"),
    [
        (
            "rotary",
            lambda: mlx_caches.RotatingKVCache(max_size=8),
            r"RotatingKVCache has dropped token 0, which attent",
        ),
        ("alibi", lambda: mlx_caches.RotatingKVCache(max_size=8, keep=3), "RotatingKVCache has dropped token 3, which"),
        ("rotary, window", lambda: mlx_caches.RotatingKVCache(max_size=4), "a window of 5 still needs at token 4;"),
        ("rotary", lambda: mlx_caches.ChunkedKVCache(chunk_size=8), "ChunkedKVCache has dropped token 0, which"),
    ],
)
def test_a_cache_that_drops_what_is_needed_is_refused_before_it_is_touched(encoding, cache, message):
    spec = spec_with(**ENCODINGS[encoding])
    block, x, cache = loaded(spec), hidden(2, 20), cache()
    whole = np.array(block(x, "causal"))

    def feed():
        while cache.offset < 20:
            if hasattr(cache, "maybe_trim_front"):
                cache.maybe_trim_front()
            at = cache.offset
            out = np.array(block(x[:, at : at + 1], None, cache))
            np.testing.assert_allclose(out[:, 0], whole[:, at], rtol=0, atol=5e-6)  # right up to there

    with pytest.raises(SpecError, match=message):
        feed()
    offset = cache.offset
    with pytest.raises(SpecError, match=message):
        block(x[:, :1], None, cache)
    assert cache.offset == offset


def test_a_cache_that_hides_its_order_is_refused():
    class Short(mlx_caches.KVCache):
        def update_and_fetch(self, keys, values):
            keys, values = super().update_and_fetch(keys, values)
            return keys[..., -3:, :], values[..., -3:, :]

    block = loaded(spec_with(**rotary()))
    with pytest.raises(SpecError, match="cache Short returned 3 keys of 6 and does not say which"):
        block(hidden(1, 6), "causal", Short())


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("masked_by", ["the model", "the block"])
def test_a_left_padded_batch_equals_its_rows_alone(encoding, masked_by):
    """BatchKVCache counts positions from each row's first token; its pads are hidden whether or not the model's mask
    says so."""
    spec = spec_with(**ENCODINGS[encoding])
    block = loaded(spec)
    padding, cuts = [0, 3, 6], [8, 1, 1, 3]
    rows = [hidden(1, 13 - pad, seed=pad) for pad in padding]
    x = mx.concatenate([mx.pad(row, [(0, 0), (pad, 0), (0, 0)]) for row, pad in zip(rows, padding, strict=True)])
    cache = mlx_caches.BatchKVCache(padding)
    by_block = lambda part, _: "causal" if part.shape[1] > 1 else None  # noqa: E731
    found = run_in_parts(block, x, cache, cuts, spec.window, by_block if masked_by == "the block" else None)
    assert np.isfinite(found).all()
    for row, pad in enumerate(padding):
        alone = np.array(block(rows[row], "causal"))
        np.testing.assert_allclose(found[row, pad:], alone[0], rtol=0, atol=5e-6)


def test_merged_and_extended_batches_keep_their_positions():
    """Caches of sequences that were prefilled alone, decoded together (what mlx-lm's batch generation does)."""
    for encoding in ("rotary", "alibi"):
        block = loaded(spec_with(**ENCODINGS[encoding]))
        lengths, rows, single = (4, 9, 6), [], []
        for seed, length in enumerate(lengths):
            rows.append(hidden(1, length + 2, seed=seed))
            cache = mlx_caches.KVCache()
            block(rows[-1][:, :length], "causal", cache)
            single.append(cache)
        batch = mlx_caches.KVCache.merge(single)
        for step in range(2):
            x = mx.concatenate(
                [row[:, length + step : length + step + 1] for row, length in zip(rows, lengths, strict=True)]
            )
            found = np.array(block(x, create_attention_mask(x, batch), batch))
            for row, length in enumerate(lengths):
                whole = np.array(block(rows[row], "causal"))
                np.testing.assert_allclose(found[row, 0], whole[0, length + step], rtol=0, atol=5e-6)


def test_a_whole_mlx_lm_model_takes_the_block():
    """In place of the attention of mlx-lm's Llama, through its own model call and cache factory."""
    spec = spec_with(**rotary())
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        intermediate_size=16,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        head_dim=DIM,
        rms_norm_eps=1e-5,
        vocab_size=13,
        rope_theta=100.0,
    )
    model = llama.Model(args)
    tokens = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    expected = model(tokens)
    for layer in model.layers:
        block = Attention(spec)
        block.load({f"{name}.weight": layer.self_attn[name].weight for name in PROJECTIONS})
        layer.self_attn = block
    cache = mlx_caches.make_prompt_cache(model)
    steps = [model(tokens[:, :6], cache), model(tokens[:, 6:7], cache), model(tokens[:, 7:], cache)]
    np.testing.assert_allclose(np.array(mx.concatenate(steps, axis=1)), np.array(expected), rtol=0, atol=1e-5)
