"""Layer: tests. Operations, bytes and memory of a call, counted by hand."""

from collections.abc import Callable

import pytest

from portpe.bench import costs
from portpe.bench.case import Case, inputs
from portpe.spec import AttentionSpec

# hidden 44, 6 query heads on 2 of width 8, values of width 10: q 48 x 44, k 16 x 44, v 20 x 44, o 44 x 60
MATRICES = 48 * 44 + 16 * 44 + 20 * 44 + 44 * 60


def test_flops_of_a_prefill(spec_of: Callable[..., AttentionSpec]):
    spec = spec_of("rotary_default")
    pairs = 1 + 2 + 3 + 4 + 5
    assert costs.flops(spec, Case("prefill", 5)) == 2 * 5 * MATRICES + 2 * 6 * (8 + 10) * pairs


def test_flops_of_a_decode_step(spec_of: Callable[..., AttentionSpec]):
    assert costs.flops(spec_of("rotary_default"), Case("decode", 7)) == 2 * MATRICES + 2 * 6 * 18 * 8


def test_a_window_bounds_pairs_and_cache(spec_of: Callable[..., AttentionSpec]):
    spec = spec_of("rotary_default", window=3)
    assert costs.flops(spec, Case("prefill", 5)) == 2 * 5 * MATRICES + 2 * 6 * 18 * (1 + 2 + 3 + 3 + 3)
    assert costs.bytes_read(spec, Case("decode", 100), "float32") == 4 * (MATRICES + 2 * 18 * 3)


def test_without_causality_every_pair_counts_within_the_radius(spec_of: Callable[..., AttentionSpec]):
    spec = spec_of("rotary_bidirectional")  # radius 3
    pairs = 4 + 5 + 6 + 6 + 5 + 4
    assert costs.flops(spec, Case("prefill", 6)) == 2 * 6 * MATRICES + 2 * 6 * 18 * pairs


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_bytes_of_a_decode_step_are_weights_and_cache_once(spec_of: Callable[..., AttentionSpec], dtype, width):
    assert costs.bytes_read(spec_of("rotary_default"), Case("decode", 7), dtype) == width * (MATRICES + 2 * 18 * 7)


def test_a_position_table_is_looked_up_not_read(spec_of: Callable[..., AttentionSpec]):
    assert costs.bytes_read(spec_of("learned"), Case("decode", 7), "float32") == 4 * (MATRICES + 2 * 18 * 7)


def test_scores_of_a_prefill(spec_of: Callable[..., AttentionSpec]):
    assert costs.score_bytes(spec_of("none"), Case("prefill", 100)) == 4 * 6 * 100 * 100


@pytest.mark.parametrize(
    ("case", "rows", "past", "capacity"),
    [(Case("prefill", 300), 300, 0, 512), (Case("decode", 255), 1, 255, 256), (Case("decode", 256), 1, 256, 512)],
)
def test_a_case(case, rows, past, capacity):
    assert (case.rows, case.past, case.total, case.capacity) == (rows, past, rows + past, capacity)


def test_inputs_follow_on_from_the_cache(spec_of: Callable[..., AttentionSpec]):
    found = inputs(spec_of("alibi"), Case("decode", 9), "float16")
    assert found.position_ids.tolist() == [[9]]
    assert found.key_position_ids.tolist() == [list(range(10))]
    assert found.past_key.shape == (1, 2, 9, 8)
    assert found.past_value.shape == (1, 2, 9, 10)
    assert found.hidden_states.dtype == "float16"
