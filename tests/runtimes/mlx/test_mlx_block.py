"""Layer: tests. The MLX block, stage by stage and as a call, against the reference in float64."""

import mlx.core as mx
import numpy as np
import pytest

from portpe.encodings import AlibiEncoding, DefaultSchedule, DynamicSchedule, LearnedEncoding, RotaryEncoding
from portpe.errors import SpecError
from portpe.interface import CACHE, cache_of, stages_of
from portpe.random_weights import random_weights
from portpe.runtimes.mlx import Attention, ModelArgs, caches, masks
from portpe.runtimes.mlx.weights import to_mlx
from portpe.spec import AttentionSpec
from tests.kinds import make_spec

EARLY = ("embedded", "normed", "q", "k", "v", "q_rotated", "k_rotated", *CACHE)


def stages_by(block, inputs):
    return block.stages(
        to_mlx(inputs.hidden_states),
        inputs.position_ids,
        inputs.attention_mask,
        to_mlx(inputs.past_key),
        to_mlx(inputs.past_value),
        inputs.key_position_ids,
        states_of(inputs),
    )


def states_of(inputs):
    """What encodings cached before the call."""
    return {name: to_mlx(state) for name, state in inputs.past_states.items()}


def call(block, inputs):
    """The call that a user makes: a mask array or "causal", a cache that holds the past."""
    past = to_mlx(inputs.past_key), to_mlx(inputs.past_value), states_of(inputs)
    cache = caches.PastCache(*past) if block.spec.causal else None
    mask = masks.from_attention_mask(block.spec, inputs.attention_mask, inputs.hidden_states.shape[1])
    return block(to_mlx(inputs.hidden_states), mask, cache, inputs.position_ids, inputs.key_position_ids), cache


def largest_error(found, expected, keep=None):
    """The largest error in units of the stage's largest value."""
    difference = np.abs(found - expected)
    if keep is not None:
        difference, expected = difference[keep], expected[keep]
    return difference.max() / max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_stage_equals_the_truth(variant, dtype, block_of, inputs_of, truth, as_float64, ulp):
    block, weights = block_of(variant, dtype)
    inputs = inputs_of(variant, dtype)
    found, expected = stages_by(block, inputs), truth(variant, weights, inputs)
    real = inputs.attention_mask[:, inputs.past :] == 1
    assert set(found) == set(stages_of(variant)) | set(cache_of(variant))
    assert np.abs(expected["scores"]).max() > 2.5, "the case is too tame to see a fault"
    for name in found:
        keep = None
        if name in ("scores", "probs"):  # (B, heads, S, T): visible places of real rows
            keep = np.broadcast_to((expected["probs"] > 0) & real[:, None, :, None], expected[name].shape)
        elif name in ("context", "gated"):
            keep = np.broadcast_to(real[:, None, :, None], expected[name].shape)
        elif name == "output":
            keep = np.broadcast_to(real[:, :, None], expected[name].shape)
        bound = 8 if name in EARLY else 25
        assert largest_error(as_float64(found[name]), expected[name], keep) <= bound * ulp[dtype], name


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_call_equals_the_stages(variant, dtype, padded, block_of, inputs_of, as_float64, ulp):
    """mx.fast (or the plain path) behind the mlx-lm call, and plain operations by name, are one layer; without
    padding the mask is "causal" by name."""
    block, _ = block_of(variant, dtype)
    inputs = inputs_of(variant, dtype, padded=padded)
    stages = stages_by(block, inputs)
    output, cache = call(block, inputs)
    assert output.dtype == getattr(mx, dtype)
    assert largest_error(as_float64(output), as_float64(stages["output"])) <= 25 * ulp[dtype]
    if cache is not None:
        np.testing.assert_array_equal(as_float64(cache.keys), as_float64(stages["present_key"]))
        np.testing.assert_array_equal(as_float64(cache.values), as_float64(stages["present_value"]))
        for name, state in cache.states.items():
            np.testing.assert_array_equal(as_float64(state), as_float64(stages[f"present_{name}"]))


def test_a_row_without_keys_has_context_zero(spec_of, block_of, inputs_of, as_float64):
    """mx.fast gives such a row the mean of the values, or NaN."""
    for name in ("none", "sinks", "softcap", "alibi, window, sinks", "kind alibi"):
        spec = spec_of(name)
        for dtype in ("float32", "float16"):
            block, _ = block_of(spec, dtype)
            inputs = inputs_of(spec, dtype, past=0)  # row 0 begins with two pads: their queries see nothing
            output, _ = call(block, inputs)
            stages = stages_by(block, inputs)
            np.testing.assert_array_equal(as_float64(stages["context"])[0, :, :2], 0.0)
            np.testing.assert_array_equal(as_float64(stages["probs"])[0, :, :2], 0.0)
            np.testing.assert_array_equal(as_float64(output)[0, :2], 0.0)
            assert np.abs(as_float64(output)[0, 2:]).min(axis=-1).max() > 0


@pytest.mark.parametrize("integer", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("first", [0, 131_069, 999_998, 2**20 - 5])
def test_positions_of_any_integer_type_up_to_the_last(integer, first, spec_of, block_of, inputs_of, as_float64):
    """The table's last row is as good as its first, and no float stands between a position and its row."""
    spec = spec_of("interleaved")
    block, _ = block_of(spec)
    assert block.end == 2**20
    hidden = inputs_of(spec, "float32").hidden_states
    positions = np.array([[first + 4, first, first + 3, first + 1, first + 2]], integer)
    for given in (positions, mx.array(positions)):
        stages = block.stages(to_mlx(hidden), given)
        q = as_float64(stages["q"])
        angles = positions[0].astype(np.float64)[:, None] * 500.0 ** (-np.arange(6) / 6)
        a, b = q[..., 0::2], q[..., 1::2]
        expected = np.stack([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)
        np.testing.assert_allclose(as_float64(stages["q_rotated"]), expected.reshape(q.shape), rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"rotary": RotaryEncoding(width=12, schedule=DefaultSchedule())}, 2**20),
        ({"embedding": LearnedEncoding(rows=16, width=20)}, 16),
        ({"embedding": LearnedEncoding(rows=16, width=20, offset=2)}, 14),
    ],
)
def test_positions_are_checked_before_anything_is_dispatched(fields, end, block_of, as_float64):
    """X04, S16: mlx returns whatever lies past a table; offset + length counts, not length."""
    spec = AttentionSpec(hidden_size=20, num_heads=4, num_kv_heads=2, head_dim=12, v_head_dim=12, scale=0.3, **fields)
    block, _ = block_of(spec)
    x = mx.ones((1, 2, 20))
    past = mx.zeros((1, 2, 1, 12))

    class Cache(caches.PastCache):
        offset = end - 1
        touched = False

        def update_and_fetch(self, keys, values):
            self.touched = True
            return super().update_and_fetch(keys, values)

    cache = Cache(past, past)
    with pytest.raises(SpecError, match=rf"position_ids must be < {end}, .* got {end}$"):
        block(x, "causal", cache)
    assert not cache.touched
    for bad in ([[end - 1, end]], [[end + 100, 0]]):
        with pytest.raises(SpecError, match=f"< {end}, the end of the position table"):
            block(x, position_ids=np.array(bad))
        with pytest.raises(SpecError, match=f"< {end}, the end of the position table"):
            block.stages(x, np.array(bad))
    with pytest.raises(SpecError, match="position_ids must be >= 0, got -1"):
        block(x, position_ids=mx.array([[-1, 0]]))
    with pytest.raises(SpecError, match="position_ids must be integers, got float32"):
        block(x, position_ids=mx.array([[0.0, 1.0]]))
    with pytest.raises(SpecError, match="position_ids must have 2 columns, one a token, got 3"):
        block(x, position_ids=mx.array([[0, 1, 2]]))
    assert np.isfinite(as_float64(block(x, position_ids=mx.array([[end - 2, end - 1]])))).all()


def test_position_values_count_and_not_their_number(spec_of, block_of, as_float64):
    """S11: positions 3, 4, 9 take rows 3, 4 and 9 of the table, not the first three."""
    spec = spec_of("kind learned")
    block, weights = block_of(spec)
    x = mx.zeros((1, 3, 20))
    embedded = as_float64(block.stages(x, np.array([[3, 4, 9]]))["embedded"])
    np.testing.assert_array_equal(embedded[0], weights["position_embedding.weight"][[5, 6, 11]])


def test_rows_of_a_batch_equal_rows_alone(spec_of, block_of, inputs_of, as_float64):
    """S08: offsets by row keep the shape, and each row is the one that it would be alone."""
    for name in ("interleaved", "alibi, window, sinks", "sinusoidal, scaled", "multi-query, window"):
        spec = spec_of(name)
        block, _ = block_of(spec)
        inputs = inputs_of(spec, "float32", batch=2, length=1, past=6)
        past_key, past_value = to_mlx(inputs.past_key), to_mlx(inputs.past_value)

        class Rows(caches.PastCache):
            offset = mx.array([6, 131])

        x = to_mlx(inputs.hidden_states)
        together = as_float64(block(x, None, Rows(past_key, past_value)))
        assert together.shape == (2, 1, 20)
        for row, position in enumerate((6, 131)):
            keys = np.arange(position - 6, position + 1)[None]
            cache = caches.PastCache(past_key[row : row + 1], past_value[row : row + 1])
            alone = block(x[row : row + 1], None, cache, np.array([[position]]), keys)
            np.testing.assert_allclose(together[row], as_float64(alone)[0], rtol=0, atol=2e-6)


def test_positions_none_count_the_kept_tokens(causal_variant, block_of, inputs_of, truth, as_float64):
    """With an attention_mask, position_ids None means its running count, pads 0."""
    block, weights = block_of(causal_variant)
    inputs = inputs_of(causal_variant, "float32")
    past = to_mlx(inputs.past_key), to_mlx(inputs.past_value)
    given = {"attention_mask": inputs.attention_mask, "past_states": states_of(inputs)}
    found = block.stages(to_mlx(inputs.hidden_states), past_key=past[0], past_value=past[1], **given)
    counted = np.array([[0, 0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 1, 2, 3, 4, 5, 6, 7]])
    plain = type(inputs)(**(vars(inputs) | {"position_ids": counted[:, 4:].copy(), "key_position_ids": counted}))
    expected = truth(causal_variant, weights, plain)
    assert largest_error(as_float64(found["output"]), expected["output"]) < 2e-6


def test_biases_ask_for_key_positions_where_they_cannot_know_them(spec_of, block_of):
    block, _ = block_of(spec_of("kind alibi"))
    past = caches.PastCache(mx.zeros((1, 2, 3, 12)), mx.zeros((1, 2, 3, 7)))
    x = mx.ones((1, 2, 20))
    with pytest.raises(SpecError, match="key_position_ids are required where"):
        block(x, "causal", past, position_ids=np.array([[3, 4]]))
    with pytest.raises(SpecError, match="key_position_ids must have 5 columns, one a key, got 4"):
        block(x, "causal", past, np.array([[3, 4]]), np.array([[1, 2, 3, 4]]))


def test_what_cannot_be_built_is_refused():
    sizes = {"hidden_size": 20, "num_heads": 4, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 12, "scale": 0.3}
    schedule = DynamicSchedule(factor=2.0, max_position_embeddings=64)
    with pytest.raises(SpecError, match="dynamic"):
        Attention(AttentionSpec(**sizes, rotary=RotaryEncoding(width=12, schedule=schedule)))
    bidirectional = Attention(AttentionSpec(**sizes, causal=False, bias=(AlibiEncoding(symmetric=True),)))
    with pytest.raises(SpecError, match="mask must be None or an array where causal is false, got 'causal'"):
        bidirectional(mx.ones((1, 3, 20)), mask="causal")
    with pytest.raises(SpecError, match="cache must be None where causal is false, got PastCache"):
        bidirectional.stages(mx.ones((1, 3, 20)), past_key=mx.zeros((1, 2, 1, 12)), past_value=mx.zeros((1, 2, 1, 12)))


def test_tables_stay_in_float32_and_are_no_parameters(spec_of, block_of):
    from mlx.utils import tree_flatten

    block, weights = block_of(spec_of("interleaved"))
    block.set_dtype(mx.bfloat16)
    assert block.rope.table._cos_hi.dtype == mx.float32
    assert {name for name, _ in tree_flatten(block.parameters())} == set(weights)
    assert block.q_proj.weight.dtype == mx.bfloat16


def test_model_args_rebuild_the_spec_and_refuse_a_contradiction(variant):
    args = ModelArgs.from_spec(variant)
    again = ModelArgs.from_dict(vars(args) | {"some_other_tool": 1})
    assert again.spec == variant
    assert (again.num_key_value_heads, again.sliding_window) == (variant.num_kv_heads, variant.window)
    with pytest.raises(SpecError, match=f"num_attention_heads must equal the spec's {variant.num_heads}, got 5"):
        ModelArgs.from_dict(vars(args) | {"num_attention_heads": 5})
    with pytest.raises(SpecError, match=r"portpe is required in config\.json and missing"):
        ModelArgs.from_dict({k: v for k, v in vars(args).items() if k != "portpe"})


def test_precision_hf_takes_the_tables_that_it_is_given(spec_of, block_of, inputs_of, as_float64):
    """A full float32 table is read row by row; here it is one that no formula makes."""
    spec = spec_of("all biases").model_copy(update={"max_position_embeddings": 60}).with_precision("hf")
    rng = np.random.default_rng(5)
    tables = {name: rng.standard_normal((60, 6)).astype(np.float32) for name in ("cos", "sin")}
    block, _ = block_of(spec, tables=tables)
    assert block.end == 60
    stages = block.stages(to_mlx(inputs_of(spec, "float32").hidden_states), np.array([[59, 0, 7, 7, 31]]))
    k = as_float64(stages["k"])
    cos, sin = tables["cos"][[59, 0, 7, 7, 31]], tables["sin"][[59, 0, 7, 7, 31]]
    a, b = k[..., :6], k[..., 6:]
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    np.testing.assert_allclose(as_float64(stages["k_rotated"]), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", ["grid_bicubic", "grid_sinusoidal", "grid_table", "grid_network"])
def test_counted_positions_stand_alike_on_both_axes(name):
    """Without position_ids, from a mask or from nothing; a batch of two is not taken for two axes."""
    spec = make_spec(name)
    block = Attention(spec)
    block.load(random_weights(spec, 3))
    x = mx.array(np.random.default_rng(1).standard_normal((2, 4, spec.input_width)).astype(np.float32))
    mask = np.array([[1, 1, 1, 1], [0, 1, 1, 1]])
    counted = np.array([[0, 1, 2, 3], [0, 0, 1, 2]])
    found = block.stages(x, attention_mask=mask)["output"]
    expected = block.stages(x, np.stack([counted, counted]), mask)["output"]
    assert np.array_equal(np.array(found), np.array(expected))
    plain = np.array([[0, 1, 2, 3]] * 2)
    assert np.array_equal(np.array(block(x)), np.array(block(x, position_ids=np.stack([plain, plain]))))
