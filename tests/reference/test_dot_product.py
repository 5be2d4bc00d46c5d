"""Layer: tests. Softmax with masks, sinks and softcap, by hand and against torch's own attention."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portpe.layer_parts import ProjectionBiases
from portpe.reference import Attention
from portpe.reference.dot_product import mix, probabilities, scores, softcap
from portpe.spec import AttentionSpec

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def test_softcap_stands_before_the_mask(weights_of):
    """K02: capped after the mask, minus infinity would become -2 and a masked key would keep a share."""
    capped = softcap(torch.zeros(1, 1, 1, 4).double(), 2.0)
    seen = torch.tensor([[[[True, True, False, False]]]])
    assert probabilities(capped, seen, None).tolist() == [[[[0.5, 0.5, 0.0, 0.0]]]]

    spec = AttentionSpec(hidden_size=6, num_heads=2, num_kv_heads=1, head_dim=4, v_head_dim=3, scale=0.5, softcap=2.0)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 6)))
    stages = Attention(spec, dtype=torch.float64).load(weights_of(spec)).stages(x)
    assert stages["scores"].abs().max() < 2
    assert (stages["probs"].triu(1) == 0).all()
    assert (stages["probs"].tril() > 0).sum() == 2 * 2 * 10


def test_softcap_by_hand():
    assert softcap(torch.tensor([3.0, -100.0]).double(), 2.0).tolist() == [2 * math.tanh(1.5), -2.0]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_row_without_keys_is_zero_and_not_nan(dtype):
    """X07, K05: no finite sentinel that float16 would turn into an infinity, no mean of the values, no NaN."""
    x = torch.full((1, 1, 2, 4), 5.0, dtype=dtype)
    seen = torch.tensor([[[[False] * 4, [True] * 4]]])
    probs = probabilities(x, seen, None)
    assert probs.tolist() == [[[[0.0] * 4, [0.25] * 4]]]
    assert mix(probs, torch.eye(4, dtype=dtype)[None, None]).tolist() == [[[[0.0] * 4, [0.25] * 4]]]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sinks", [False, True])
def test_the_output_of_a_row_without_keys_is_the_bias_of_the_projection(dtype, sinks, weights_of):
    """X07 through the block: a left pad sees itself alone, which is masked."""
    spec = AttentionSpec(
        hidden_size=6,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        v_head_dim=3,
        scale=0.5,
        sinks=sinks,
        biases=ProjectionBiases(q=True, k=True, v=True, o=True),
    )
    attention = Attention(spec, dtype=dtype).load(weights_of(spec))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 6))).to(dtype)
    stages = attention.stages(x, attention_mask=torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]))
    for rows in (stages["output"][0, :2], stages["output"][1]):
        assert torch.equal(rows, attention.o_proj.bias.expand_as(rows))
    assert (stages["context"][1] == 0).all()
    assert stages["output"].isfinite().all()


def test_scores_far_apart_do_not_overflow():
    """exp(200000) is no number; only differences from the largest visible score may be exponentiated."""
    x = torch.tensor([[[[2e5, 2e5 - 1.0, 3e5]]]])
    seen = torch.tensor([[[[True, True, False]]]])
    share = 1 / (1 + math.exp(-1))
    assert probabilities(x, seen, None)[0, 0, 0].tolist() == pytest.approx([share, 1 - share, 0.0], rel=1e-6)


def test_a_sink_joins_the_denominator_and_takes_no_value():
    """exp(s) / (exp(s_1) + exp(s_2) + exp(sink)), head by head; a sink whose exponential overflows too."""
    x = torch.tensor([1.0, -0.5]).double().expand(1, 2, 1, 2)
    found = probabilities(x, torch.ones(1, 1, 1, 2).bool(), torch.tensor([0.25, 720.0]).double())
    total = math.exp(1) + math.exp(-0.5) + math.exp(0.25)
    assert found[0, 0, 0].tolist() == pytest.approx([math.exp(1) / total, math.exp(-0.5) / total], rel=1e-14)
    assert found[0, 1, 0].tolist() == pytest.approx([math.exp(-719), math.exp(-720.5)], rel=1e-9, abs=0)


def test_no_sink_is_a_sink_of_minus_infinity():
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3, 4, 5)))
    seen = torch.from_numpy(np.random.default_rng(2).random((2, 1, 4, 5)) < 0.6)
    without = probabilities(x, seen, None)
    torch.testing.assert_close(probabilities(x, seen, torch.full((3,), -torch.inf).double()), without)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_groups_read_their_own_keys_and_values(kv_heads):
    """Against torch's attention in float64, with the keys repeated (enable_gqa), and a mask with no pattern."""
    rng = np.random.default_rng(3)
    q = torch.from_numpy(rng.standard_normal((2, 6, 3, 8))) * 2
    k = torch.from_numpy(rng.standard_normal((2, kv_heads, 5, 8))) * 2
    v = torch.from_numpy(rng.standard_normal((2, kv_heads, 5, 7)))
    seen = torch.from_numpy(rng.random((2, 1, 3, 5)) < 0.7)
    seen[..., 0] = True  # torch gives no answer for a row without keys that it promises
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.7, enable_gqa=True)
    found = mix(probabilities(scores(q, k, 0.7), seen, None), v)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
