"""FoX's forgetting bias against its formula, number by number, and the laws that hold for it."""

import math

import numpy as np
import pytest
import torch

from portpe.encodings import DefaultSchedule, ForgetEncoding, RotaryEncoding
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 3, "scale": 0.4}
ROPE = RotaryEncoding(width=4, schedule=DefaultSchedule(rope_theta=300.0))
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5], [9, 3, 70, 4, 31, 8]])


def forget(**changes):
    return AttentionSpec(**SIZES, bias=(ForgetEncoding(),), **changes)


def by_hand(weights, x, mask, head, query, key):
    """Lin 2025, equation 5, one gate at a time: those behind the key up to the query, pads left out."""
    total = 0.0
    for token in range(key + 1, query + 1):
        if mask[token]:
            logit = sum(float(w * h) for w, h in zip(weights["fgate_proj.weight"][head], x[token], strict=True))
            total += math.log(1 / (1 + math.exp(-logit - float(weights["fgate_proj.bias"][head]))))
    return total


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("rotary", [None, ROPE])
def test_scores_are_the_formula(window, rotary, weights_of, states):
    spec = forget(window=window, rotary=rotary)
    weights = weights_of(spec)
    weights["fgate_proj.bias"] = np.array([-4.0, -1.0, 0.0, 2.0, 5.0, 9.0])
    block, x = Attention(spec, dtype=torch.float64).load(weights), states(spec, 2, 6)
    mask = torch.tensor([[1] * 6, [0, 1, 1, 0, 1, 1]])
    found = {name: stage.numpy() for name, stage in block.stages(x, POSITIONS, mask).items()}
    q, k = (found.get(f"{part}_rotated", found[part]) for part in ("q", "k"))
    for b, h, i in np.ndindex(2, 6, 6):
        for j in range(i + 1):
            if mask[b, j] and (window is None or j > i - window):
                added = by_hand(weights, x[b].numpy(), mask[b], h, i, j)
                expected = float(q[b, h, i] @ k[b, h // 3, j]) * 0.4 + added
                assert found["scores"][b, h, i, j] == pytest.approx(expected, abs=1e-12)


def test_the_cache_holds_log_f_of_each_token(weights_of, states):
    spec = forget()
    weights, x = weights_of(spec), states(spec, 2, 5)
    result = Attention(spec, dtype=torch.float64).load(weights)(x)
    assert result.present_states.keys() == {"gate"}
    for b, h, token in np.ndindex(2, 6, 5):
        one = by_hand(weights, x[b].numpy(), [1] * 5, h, token, token - 1)
        assert float(result.present_states["gate"][b, h, token]) == pytest.approx(one, abs=1e-13)


def test_open_gates_add_nothing_and_shut_ones_hide_the_past(weights_of, states):
    spec = forget()
    weights, x = weights_of(spec), states(spec, 1, 5)
    weights["fgate_proj.weight"] = weights["fgate_proj.weight"] * 0
    plain = {name: array for name, array in weights.items() if not name.startswith("fgate")}
    without = Attention(spec.model_copy(update={"bias": ()}), dtype=torch.float64).load(plain)(x).output
    opened = Attention(spec, dtype=torch.float64).load(weights | {"fgate_proj.bias": np.full(6, 60.0)})(x).output
    torch.testing.assert_close(opened, without, rtol=0, atol=1e-12)
    shut = Attention(spec, dtype=torch.float64).load(weights | {"fgate_proj.bias": np.full(6, -900.0)}).stages(x)
    torch.testing.assert_close(shut["probs"], torch.eye(5, dtype=torch.float64).expand(1, 6, 5, 5), rtol=0, atol=1e-12)


def test_positions_are_not_read(weights_of, states):
    spec = forget()
    block, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 2, 6)
    torch.testing.assert_close(block(x, POSITIONS).output, block(x).output, rtol=0, atol=0)


def test_a_pad_adds_nothing(weights_of, states):
    """Whatever a pad's gates are, and wherever it stands, the row is that of the text without it."""
    spec = forget(rotary=ROPE)
    block, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 1, 7)
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1]])
    places = torch.tensor([[0, 0, 4, 5, 0, 9, 12]])
    kept = mask[0] == 1
    padded = block(x, places, mask).output[:, kept]
    torch.testing.assert_close(padded, block(x[:, kept], places[:, kept]).output, rtol=0, atol=1e-12)
    assert (block(x, places).output[:, kept] - padded).abs().max() > 1e-3


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("parts", [[1] * 9, [4, 4, 1], [2, 7]])
def test_steps_and_chunks_equal_the_whole(parts, window, weights_of, states):
    spec = forget(window=window, rotary=ROPE)
    block, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 2, 9)
    mask = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    whole = block(x, attention_mask=mask).output
    past, start = {}, 0
    for count in parts:
        end = start + count
        found = block(x[:, start:end], attention_mask=mask[:, :end], **past)
        torch.testing.assert_close(found.output, whole[:, start:end], rtol=0, atol=1e-12)
        past = {name: getattr(found, f"present_{name[5:]}") for name in ("past_key", "past_value", "past_states")}
        start = end


def test_a_cache_without_gates_is_refused(weights_of, states):
    spec = forget()
    block, x = Attention(spec, dtype=torch.float64).load(weights_of(spec)), states(spec, 2, 5)
    found = block(x[:, :4])
    past = {"past_key": found.present_key, "past_value": found.present_value}
    with pytest.raises(
        SpecError, match=r"^past_states must hold gate \(2, 6, 4\), which an earlier call gave, got none$"
    ):
        block(x[:, 4:], **past)
    short = {"gate": found.present_states["gate"][:, :, :3]}
    with pytest.raises(SpecError, match=r"^past_states\.gate must have shape \(2, 6, 4\), got \(2, 6, 3\)$"):
        block(x[:, 4:], **past, past_states=short)
    with pytest.raises(
        SpecError, match=r"^past_states\.gate must have the block's type torch\.float64, got torch\.float32$"
    ):
        block(x[:, 4:], **past, past_states={"gate": found.present_states["gate"].float()})
