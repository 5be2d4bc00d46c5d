"""CoPE: the sum of gates by hand, its ends, and the scores of the block against the formula, key by key."""

import math

import numpy as np
import pytest
import torch

import portpe
from portpe.encodings import CopeEncoding
from portpe.reference import Attention
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 3, "scale": 0.4}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def by_hand(encoding, scale, table, q, keys):
    """What each of the keys (T, D) that a query sees gets, the last of them being the nearest."""
    added = []
    for j in range(len(keys)):
        place = sum(sigmoid(float(q @ key) * (scale if encoding.scaled_gates else 1.0)) for key in keys[j:])
        place = min(place, encoding.rows - 1)
        low = math.floor(place)
        share = place - low
        added.append(float(q @ table[low]) * (1 - share) + float(q @ table[math.ceil(place)]) * share)
    return added


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 30])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 3), (False, None)])
def test_scores_are_the_formula(scaled, rows, causal, window, weights_of, states):
    encoding = CopeEncoding(rows=rows, scaled_gates=scaled)
    spec = AttentionSpec(**SIZES, causal=causal, window=window, bias=(encoding,))
    weights = weights_of(spec)
    block = Attention(spec, dtype=torch.float64).load(weights)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    found = {name: stage.numpy() for name, stage in block.stages(states(spec, 2, 6), attention_mask=mask).items()}
    for b, h, i in np.ndindex(2, 6, 6):
        seen = [j for j in range(6) if mask[b, j] and (not causal or j <= i) and (window is None or j > i - window)]
        q, keys = found["q"][b, h, i], found["k"][b, h // 3]
        added = by_hand(encoding, spec.scale, weights["contextual_position.weight"], q, keys[seen])
        expected = [float(q @ keys[j]) * spec.scale + more for j, more in zip(seen, added, strict=True)]
        np.testing.assert_allclose(found["scores"][b, h, i, seen], expected, rtol=0, atol=1e-12)


def test_open_gates_count_tokens(weights_of):
    """Where every gate is open, the position of key j is the number of keys from it to the query."""
    spec = AttentionSpec(**SIZES, bias=(CopeEncoding(rows=5, scaled_gates=False),))
    weights = weights_of(spec)
    weights |= {"q_proj.weight": weights["q_proj.weight"] * 0, "k_proj.weight": weights["k_proj.weight"] * 0}
    weights["q_proj.weight"][::4, 0] = weights["k_proj.weight"][::4, 0] = 1.0  # each head's first channel
    x = torch.zeros(1, 7, 20, dtype=torch.float64)
    x[..., 0] = 40.0  # q . k is 1600, and its sigmoid 1
    scores = Attention(spec, dtype=torch.float64).load(weights).stages(x)["scores"][0, 0]
    first = 40.0 * weights["contextual_position.weight"][:, 0]
    for i in range(7):
        for j in range(i + 1):
            assert scores[i, j] == pytest.approx(1600 * 0.4 + first[min(i - j + 1, 4)], abs=1e-9)


def test_chunks_and_steps_equal_the_whole(weights_of, states):
    """A cache holds all that the positions are made of."""
    spec = AttentionSpec(**SIZES, bias=(CopeEncoding(rows=4),))
    block = Attention(spec, dtype=torch.float64).load(weights_of(spec))
    x = states(spec, 2, 9)
    whole = block(x).output
    key = value = None
    for part in (slice(0, 4), slice(4, 8), slice(8, 9)):
        found = block(x[:, part], past_key=key, past_value=value)
        torch.testing.assert_close(found.output, whole[:, part], rtol=0, atol=1e-12)
        key, value = found.present_key, found.present_value


def test_tabulate_has_no_numbers_of_it():
    assert portpe.tabulate(AttentionSpec(**SIZES, bias=(CopeEncoding(rows=4),)), [0, 5]) == {}
