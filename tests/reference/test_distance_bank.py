"""Inkling's bank of profiles: the scores of the block against the formula, pair by pair, and a cache in every form."""

import math

import numpy as np
import pytest
import torch

import portpe
from portpe.encodings import DistanceBankEncoding, LogarithmicTemperature
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 3, "scale": 0.4}
TEMPERATURE = LogarithmicTemperature(interval=9, offset=1, beta=0.3)


def by_hand(encoding, weights, x, head, query, key):
    """What the score of a token ``x`` (hidden,) at position ``query`` gets of a key at ``key``."""
    if not 0 <= query - key < encoding.extent:
        return 0.0
    rows = range(head * encoding.width, (head + 1) * encoding.width)
    states = [float(weights["relative_state_proj.weight"][row] @ x) for row in rows]
    if encoding.clip is not None:
        states = [state * weights["relative_state_scale"][head, at] for at, state in enumerate(states)]
        shorter = encoding.clip / (math.sqrt(sum(state**2 for state in states)) + 1e-6)
        states = [state * min(1.0, shorter) for state in states]
    total = sum(state * weights["distance_bank"][at, query - key] for at, state in enumerate(states))
    return total * (1 + 0.3 * math.log(max((query + 1) / 9, 1))) if encoding.tempered else total


@pytest.mark.parametrize("clip", [None, 0.9])
@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 3), (False, None)])
def test_scores_are_the_formula(clip, tempered, causal, window, weights_of, states):
    encoding = DistanceBankEncoding(extent=5, width=3, clip=clip, tempered=tempered)
    spec = AttentionSpec(**SIZES, causal=causal, window=window, bias=(encoding,), query_scale=TEMPERATURE)
    weights = weights_of(spec)
    block = Attention(spec, dtype=torch.float64).load(weights)
    x = states(spec, 2, 6)
    places = torch.tensor([[0, 3, 4, 5, 9, 11], [16, 14, 20, 17, 17, 18]])  # one at its place twice, two out of order
    found = {name: stage.numpy() for name, stage in block.stages(x, places).items()}
    shortened = 0
    for b, h, i in np.ndindex(2, 6, 6):
        seen = [j for j in range(6) if (not causal or j <= i) and (window is None or j > i - window)]
        q, keys = found["q_rotated"][b, h, i], found["k"][b, h // 3]
        added = [by_hand(encoding, weights, x[b, i].numpy(), h, int(places[b, i]), int(places[b, j])) for j in seen]
        expected = [float(q @ keys[j]) * spec.scale + more for j, more in zip(seen, added, strict=True)]
        np.testing.assert_allclose(found["scores"][b, h, i, seen], expected, rtol=0, atol=1e-12)
        longest = weights["relative_state_proj.weight"][3 * h : 3 * h + 3] @ x[b, i].numpy()
        shortened += clip is not None and np.linalg.norm(longest) > clip
    assert clip is None or 10 < shortened < 72


def test_chunks_and_steps_equal_the_whole(weights_of, states):
    """A query's own token says how it reads the bank: a cache needs no more than keys and their positions."""
    encoding = DistanceBankEncoding(extent=4, width=3, clip=1.1, tempered=True)
    spec = AttentionSpec(**SIZES, bias=(encoding,), query_scale=TEMPERATURE)
    block = Attention(spec, dtype=torch.float64).load(weights_of(spec))
    x = states(spec, 2, 19)
    whole = block(x).output
    key = value = None
    for part in (slice(0, 4), slice(4, 15), slice(15, 18), slice(18, 19)):
        found = block(x[:, part], past_key=key, past_value=value)
        torch.testing.assert_close(found.output, whole[:, part], rtol=0, atol=1e-12)
        key, value = found.present_key, found.present_value


def test_tabulate_lists_the_rows_alone():
    """Row ``extent`` is the 0 behind the bank: of distances from there on, and of keys ahead."""
    spec = AttentionSpec(**SIZES, bias=(DistanceBankEncoding(extent=3, width=2),))
    found = portpe.tabulate(spec, [4, 2, 9])
    assert set(found) == {"buckets"}
    assert found["buckets"].tolist() == [[0, 2, 3], [3, 0, 3], [3, 3, 0]]


def test_a_temperature_is_needed_where_it_multiplies_the_bias():
    with pytest.raises(SpecError, match="tempered needs a query_scale, got none"):
        AttentionSpec(**SIZES, bias=(DistanceBankEncoding(extent=3, width=2, tempered=True),))
