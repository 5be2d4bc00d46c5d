"""Layer: tests. Positions that were not given, and those that cannot be."""

import pytest
import torch

from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.reference.positions import slot_positions

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def test_a_pad_gets_zero_and_a_token_the_tokens_before_it():
    """S01, S14, S15: pads on the left, on the right, between, and everywhere."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]]).bool()
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [0, 0, 1, 0, 2], [0] * 5]
    assert slot_positions(mask, 4, 5, CPU).tolist() == expected
    assert slot_positions(None, 2, 3, CPU).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_left_padded_batch_equals_its_rows_alone(causal_variant, weights_of, states):
    """S01, S02 in every variant: prefill and one step of decode, rows of 6, 3 and 1 tokens."""
    attention = Attention(causal_variant, dtype=torch.float64).load(weights_of(causal_variant))
    x, lengths = states(causal_variant, 3, 7), [6, 3, 1]
    mask = torch.tensor([[0] * (6 - n) + [1] * n for n in lengths])
    prefill = attention(x[:, :6], attention_mask=mask)
    step = attention(
        x[:, 6:],
        attention_mask=torch.cat((mask, torch.ones(3, 1).long()), 1),
        past_key=prefill.present_key,
        past_value=prefill.present_value,
    )
    for row, length in enumerate(lengths):
        alone = attention(x[row : row + 1, 6 - length : 6])
        torch.testing.assert_close(prefill.output[row, 6 - length :], alone.output[0], **CLOSE)
        after = attention(x[row : row + 1, 6:], past_key=alone.present_key, past_value=alone.present_value)
        torch.testing.assert_close(step.output[row], after.output[0], **CLOSE)


def test_given_positions_go_before_those_of_the_mask(spec_of, weights_of, states):
    spec = spec_of("learned")
    attention, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 1, 3)
    mask = torch.tensor([[0, 1, 1]])
    own = attention.stages(x, torch.tensor([[5, 6, 9]]), mask)["embedded"]
    table = attention.position_embedding.weight
    torch.testing.assert_close(own[0], 3 * x[0] + table[[7, 8, 11]])


def test_decode_takes_the_position_after_the_past(spec_of, weights_of, states):
    spec = spec_of("learned")
    attention, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 2, 6)
    first = attention(x[:, :4])
    step = attention.stages(x[:, 4:], past_key=first.present_key, past_value=first.present_value)
    table = attention.position_embedding.weight
    torch.testing.assert_close(step["embedded"], 3 * x[:, 4:] + table[[6, 7]])


def alibi_with_a_past(spec_of, weights_of, states):
    spec = spec_of("alibi")
    attention, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 2, 5)
    first = attention(x[:, :3], torch.tensor([[10, 11, 12]] * 2))
    return attention, x, {"past_key": first.present_key, "past_value": first.present_value}


def test_keys_at_positions_of_their_own_must_be_told(spec_of, weights_of, states):
    """The cache does not know that its keys stood at 10, 11 and 12; taking 0, 1, 2 would be a silent fault."""
    attention, x, cache = alibi_with_a_past(spec_of, weights_of, states)
    own = torch.tensor([[13, 14]] * 2)
    with pytest.raises(SpecError, match="key_position_ids are required"):
        attention(x[:, 3:], own, **cache)
    keys = torch.tensor([[10, 11, 12, 13, 14]] * 2)
    told = attention(x[:, 3:], own, key_position_ids=keys, **cache)
    whole = attention(x, keys)
    torch.testing.assert_close(told.output, whole.output[:, 3:], **CLOSE)
    with pytest.raises(SpecError, match="key_position_ids must be >= 0, got -1"):
        attention(x[:, 3:], own, key_position_ids=keys - 11, **cache)


def test_positions_that_the_mask_would_give_need_no_keys_positions(spec_of, weights_of, states):
    attention, x, cache = alibi_with_a_past(spec_of, weights_of, states)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    given = attention(x[:, 3:], torch.tensor([[2, 3], [3, 4]]), mask, **cache)
    assert torch.equal(given.output, attention(x[:, 3:], attention_mask=mask, **cache).output)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64], ids=str)
def test_any_integer_type_will_do(spec_of, weights_of, states, dtype):
    spec = spec_of("everything")
    attention, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 2, 3)
    ids, mask = torch.tensor([[3, 4, 9], [1, 0, 30]]), torch.tensor([[1, 0, 1], [1, 1, 1]])
    found = attention(x, ids.to(dtype), mask.to(dtype), key_position_ids=ids.to(dtype))
    assert torch.equal(found.output, attention(x, ids, mask, key_position_ids=ids).output)
