"""The calls that runtimes are judged on: sizes, positions, masks, and what is left out by name."""

import numpy as np
import pytest

from portpe.golden import CaseInputs
from portpe.parity import cases, layouts
from portpe.positions import sequence_lengths
from portpe.tables import end_of, table_set

CAUSAL = {
    *("prefill", "decode", "chunked_prefill", "left_padded", "left_padded_decode", "holes", "arbitrary_positions"),
    "spread_positions",
    *("trained_length", "past_trained_length", "position_131071", "position_1000000", "last_position", "long_past"),
}


def _layouts(spec, end=2**20):
    found, excluded = layouts.layouts(spec, end)
    return {layout.name: layout for layout in found}, {one.case: one.reason for one in excluded}


def test_a_causal_layer_has_every_case(spec_of):
    found, excluded = _layouts(spec_of("rotary_default"))
    assert set(found) == CAUSAL
    assert excluded == {}
    assert set(layouts.QUICK) <= CAUSAL | {"crossing_trained_length"}


def test_the_switch_is_crossed_within_one_batch(spec_of):
    """LongRoPE trained at 40: rows of lengths 41, 40 and 39 behind one cache, so two schedules in one call."""
    spec = spec_of("rotary_longrope_by_length")
    found = {layout.name: layout for layout in layouts.layouts(spec, 2**20)[0]}
    crossing = found["crossing_trained_length"]
    lengths = sequence_lengths(crossing.key_position_ids, crossing.attention_mask)
    assert lengths[:3].tolist() == [41, 40, 39]
    assert crossing.past > 0
    assert set(found) == CAUSAL | {"crossing_trained_length"}


@pytest.mark.parametrize("name", ["rotary_default", "rotary_yarn", "learned", "alibi", "rotary_bidirectional"])
def test_no_two_axes_have_one_size(spec_of, name):
    spec = spec_of(name)
    for layout in layouts.layouts(spec, 2**20)[0]:
        batch, rows = layout.position_ids.shape
        sizes = [size for size in (batch, rows, layout.past, spec.num_heads, spec.num_kv_heads) if size > 1]
        assert len(set(sizes)) == len(sizes), (layout.name, sizes)


def test_each_case_is_what_it_is_called(spec_of):
    """Positions written out by hand for a trained length of 60."""
    found, _ = _layouts(spec_of("rotary_default"))
    assert found["prefill"].past == 0
    np.testing.assert_array_equal(found["prefill"].position_ids[1], range(7))
    assert found["decode"].position_ids.shape[1] == 1
    assert set(found["decode"].position_ids.flat) == {13}
    np.testing.assert_array_equal(found["chunked_prefill"].key_position_ids[0], range(16))
    np.testing.assert_array_equal(found["chunked_prefill"].position_ids[0], range(11, 16))
    assert found["trained_length"].position_ids.max() == 59
    assert found["past_trained_length"].position_ids.max() == 63
    assert found["position_131071"].position_ids.max() == 131071
    assert found["position_1000000"].position_ids.max() == 1_000_000
    assert found["last_position"].position_ids.max() == 2**20 - 1
    assert found["long_past"].past > 60


def test_positions_of_a_padded_batch_count_real_tokens(spec_of):
    found, _ = _layouts(spec_of("rotary_default"))
    padded = found["left_padded"]
    np.testing.assert_array_equal(padded.attention_mask[:3, :5], [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(padded.key_position_ids[:3, :5], [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [0, 0, 0, 0, 0]])
    decode = found["left_padded_decode"]
    pads = (decode.attention_mask == 0).sum(axis=1)
    assert len(set(pads)) == len(pads)
    np.testing.assert_array_equal(decode.position_ids[:, 0], decode.past - pads)


def test_arbitrary_positions_are_in_no_order_and_have_gaps(spec_of):
    found, _ = _layouts(spec_of("rotary_default"))
    for row in found["arbitrary_positions"].key_position_ids:
        steps = np.diff(row)
        assert (steps < 0).any()
        assert (steps > 1).any()
    assert not np.array_equal(*found["arbitrary_positions"].key_position_ids[:2])


def test_hidden_keys_stand_among_cached_and_new_ones(spec_of):
    """In each batch row elsewhere, never first or last: neither a count of pads nor a length tells which."""
    for name in ("rotary_default", "rotary_bidirectional"):
        holes = _layouts(spec_of(name))[0]["holes"]
        whole = holes.attention_mask[:, : holes.past], holes.attention_mask[:, holes.past :]
        for part in whole if holes.past else whole[1:]:
            assert part[:, 0].all()
            assert part[:, -1].all()
            hidden = part.argmin(axis=1)
            assert (part.sum(axis=1) == part.shape[1] - 1).all()
            assert len(set(hidden)) == len(hidden)


@pytest.mark.parametrize(("name", "end"), [("rotary_default", 2**20), ("rotary_bidirectional", 2**20), ("learned", 73)])
def test_spread_positions_are_a_fixed_ratio_apart(spec_of, name, end):
    """By hand: from 64 to 2^20 there are 14 octaves, 1.75 for each of 8 rows; a table of 73 has 3.1 in all."""
    spread = _layouts(spec_of(name), end)[0]["spread_positions"]
    rows, octaves = spread.position_ids[0], 1.75 if end > 73 else 3.1 / 8
    assert np.log2(end / rows[-1]) == pytest.approx(octaves / 2, abs=0.1)
    np.testing.assert_allclose(np.diff(np.log2(rows)), octaves, atol=0.13)
    sampled = cases._sampled_pairs(spread.attention_mask[:, spread.past :], shift=0)
    assert len(sampled) == len(rows) == 8


def test_an_encoder_has_its_own_cases(spec_of):
    found, excluded = _layouts(spec_of("rotary_bidirectional"))
    assert all(layout.past == 0 for layout in found.values())
    right = found["right_padded"]
    assert right.attention_mask[1, 0] == 1
    assert right.attention_mask[1, -1] == 0
    assert found["window_radius"].position_ids.shape[1] == 8  # a radius of 3, crossed from both sides
    assert excluded == {}


def test_a_window_is_crossed_by_a_token_and_by_a_chunk(spec_of):
    found, _ = _layouts(spec_of("rotary_yarn"))  # window 9
    assert found["window_decode"].past >= 9
    assert found["window_decode"].position_ids.shape[1] == 1
    chunk = found["window_chunk"]
    assert chunk.past < 9 <= chunk.key_position_ids.shape[1] - 1
    assert chunk.position_ids.shape[1] > 1


@pytest.mark.parametrize(
    ("name", "changes", "before"),
    [
        ("stepped", {}, 26),  # (26 + 1) // 7 = 3, (27 + 1) // 7 = 4
        ("stepped", {"interval": 8192}, 8190),
        ("mla_stepped", {"interval": 40, "offset": 0}, 39),
        ("power", {}, 32),
        ("logarithmic", {"interval": 3000}, 2998),
    ],
)
def test_queries_stand_on_both_sides_of_a_temperature_s_step(spec_of, name, changes, before):
    spec = spec_of(name)
    spec = spec.model_copy(update={"query_scale": spec.query_scale.model_copy(update=changes)})
    step = _layouts(spec)[0]["temperature_step"]
    for row in step.position_ids[:2]:
        assert {before, before + 1} <= set(row.tolist())
    assert step.position_ids.shape[1] < 10


def test_a_wide_window_and_a_long_training_are_excluded_by_name(spec_of):
    _, excluded = _layouts(spec_of("rotary_yarn", window=8193))
    assert excluded == dict.fromkeys(("window_decode", "window_chunk"), "window 8193 is over 8192 cached slots")
    _, excluded = _layouts(spec_of("rotary_default", max_position_embeddings=8193))
    assert excluded == {"long_past": "trained length 8193 is over 8192 cached slots"}
    found, excluded = _layouts(spec_of("rotary_yarn", window=8192))
    assert (found["window_decode"].past, excluded) == (8197, {})
    _, excluded = _layouts(spec_of("rotary_bidirectional", window_radius=257))
    assert set(excluded) == {"window_radius"}


def test_what_is_past_a_table_is_excluded_by_name(spec_of):
    found, excluded = _layouts(spec_of("learned"), end=73)
    assert set(excluded) == {"position_131071", "position_1000000"}
    assert found["last_position"].position_ids.max() == 72
    assert "ends at 73" in excluded["position_131071"]
    _, excluded = _layouts(spec_of("learned", max_position_embeddings=73), end=73)
    assert {"past_trained_length", "long_past"} <= set(excluded)


@pytest.mark.parametrize(
    ("name", "changes", "length"),
    [
        ("rotary_llama3", {"max_position_embeddings": 9999}, 70),  # the schedule's original length
        ("rotary_dynamic", {}, 60),
        ("rotary_default", {"max_position_embeddings": 33}, 33),
        ("learned", {"max_position_embeddings": None}, 73),
        ("none", {"max_position_embeddings": None}, 2048),
    ],
)
def test_trained_length(spec_of, name, changes, length):
    assert layouts.trained_length(spec_of(name, **changes)) == length


# --- what is in them -------------------------------------------------------------------------


def _built(spec):
    from portpe.checkpoint import random_weights

    weights, tables = random_weights(spec, 0), table_set(spec)
    return cases.build(spec, weights, tables, end_of(spec, tables))[0], weights


@pytest.mark.parametrize("name", ["rotary_default", "learned_projected", "norm_before", "alibi"])
def test_inputs_have_eight_bits(spec_of, name):
    for case in _built(spec_of(name))[0]:
        for array in (case.hidden_states, case.past_key_tile, case.past_value_tile):
            assert array.dtype.name == "bfloat16"
        inputs = case.inputs("float16")
        np.testing.assert_array_equal(inputs.hidden_states.astype(np.float64), case.hidden_states.astype(np.float64))


def _score_std(spec, weights, case: CaseInputs):
    """Standard deviation of q.k * scale without encoding, bias or norm, by plain matrix products."""
    x = case.hidden_states.astype(np.float64).reshape(-1, spec.hidden_size)
    q = (x @ weights["q_proj.weight"].T.astype(np.float64)).reshape(len(x), spec.num_heads, spec.head_dim)
    k = (x @ weights["k_proj.weight"].T.astype(np.float64)).reshape(len(x), spec.num_kv_heads, spec.head_dim)
    group = spec.num_heads // spec.num_kv_heads
    return np.einsum("shd,thd->hst", q, k.repeat(group, axis=1)).std() * spec.scale


@pytest.mark.parametrize("factor", [1e-3, 1.0, 50.0])
def test_scores_are_several_units_wide_whatever_the_weights(spec_of, factor):
    spec = spec_of("none")
    from portpe.checkpoint import random_weights

    weights = {name: array * np.float32(factor) for name, array in random_weights(spec, 0).items()}
    built, _ = cases.build(spec, weights, {}, None)
    assert 1.4 <= _score_std(spec, weights, built[0]) <= 7


def test_cached_keys_are_as_large_as_new_ones(spec_of):
    spec = spec_of("none")
    built, weights = _built(spec)
    chunk = next(case for case in built if case.name == "chunked_prefill")
    x = chunk.hidden_states.astype(np.float64).reshape(-1, spec.hidden_size)
    for tile, name in ((chunk.past_key_tile, "k"), (chunk.past_value_tile, "v")):
        own = (x @ weights[f"{name}_proj.weight"].T).std()
        assert 0.5 <= tile.astype(np.float64).std() / own <= 2


def test_a_long_past_is_stored_as_one_prime_tile(spec_of):
    built, _ = _built(spec_of("rotary_default", max_position_embeddings=700))
    long = next(case for case in built if case.name == "long_past")
    assert long.past > 700
    assert long.past_key_tile.shape[2] == 251
    assert all(251 % n for n in range(2, 16))


def test_sampled_places_are_real_rows(spec_of):
    for case in _built(spec_of("rotary_default"))[0]:
        assert 1 <= len(case.pairs) <= 8
        assert 1 <= len(case.heads) <= 8
        batch, row = case.pairs.T
        assert (case.attention_mask[batch, case.past + row] == 1).all()
        assert (case.attention_mask[tuple(case.slots.T)] == 1).all()
        assert (case.slots[:, 1] >= case.past).all()
        assert case.key_position_ids.shape[1] - 1 in case.slots[:, 1]  # the last slot is among them
        assert {0, 5} <= set(case.heads)


@pytest.mark.parametrize("end", [1, 3, 23])
@pytest.mark.parametrize("name", ["sinusoidal_hf", "rotary_hf"])
def test_tables_shorter_than_any_case_are_enough(spec_of, name, end):
    from portpe.checkpoint import random_weights

    spec = spec_of(name)
    built, excluded = cases.build(spec, random_weights(spec, 0), table_set(spec, end), end)
    assert built
    assert max(int(case.position_ids.max()) for case in built) < end
    assert {case.name for case in built} | {one.case for one in excluded} == CAUSAL
