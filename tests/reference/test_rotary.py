"""Layer: tests. The rotation: values by hand, three equal views, layouts, and the block's use of it."""

import math

import numpy as np
import pytest
import torch

from portpe.encodings import DefaultSchedule, ProportionalSchedule, RotaryEncoding, YarnSchedule
from portpe.reference import Attention
from portpe.reference.rotary import ROTATIONS, Rotation, rotate
from portpe.spec import AttentionSpec
from portpe.tables import table_set

THETA = DefaultSchedule(rope_theta=10000.0)


def turn(encoding, x, positions, dtype=torch.float64, tables=None):
    """x (B, heads, S, head_dim) turned at positions (B, S)."""
    rotation = ROTATIONS[encoding.kind](encoding, tables, dtype)(torch.tensor(positions))
    return rotate(torch.as_tensor(x).to(dtype), rotation)


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairing", "expected"),
    [
        # pairs (1, 3) and (2, 4) at angles 1 and 0.01: 1 cos 1 - 3 sin 1, 2 cos .01 - 4 sin .01, ...
        ("half", [-1.98411065, 1.95990067, 2.4623779, 4.01979967]),  # R01
        # pairs (1, 2) and (3, 4)
        ("interleaved", [-1.14263966, 1.9220756, 2.95985067, 4.0297995]),  # R02
    ],
)
def test_one_vector_at_position_one(pairing, expected):
    encoding = RotaryEncoding(width=4, pairing=pairing, schedule=THETA)
    found = turn(encoding, [[[[1.0, 2.0, 3.0, 4.0]]]], [[1]])
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=5e-9, rtol=0)


def test_proportional_turns_two_pairs_of_four():
    """R06: frequencies 1 and 0.1 (exponents over head_dim), pairs (i, i + 4), the rest untouched."""
    schedule = ProportionalSchedule(rope_theta=10000.0, partial_rotary_factor=0.5)
    encoding = RotaryEncoding(width=8, schedule=schedule)
    found = turn(encoding, [[[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]]], [[1]])
    expected = [-3.66705262, 1.39100783, 3, 4, 3.54298251, 6.16969182, 7, 8]
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=5e-9, rtol=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("channels", ["first", "last"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("width", [4, 8])
def test_partial_rotations_pass_the_other_channels(width, pairing, channels, sign, rotated_by_hand):
    encoding = RotaryEncoding(width=width, pairing=pairing, channels=channels, sign=sign, schedule=THETA)
    x = np.random.default_rng(3).standard_normal((2, 3, 4, 8))
    positions = np.array([[5, 0, 70, 2], [131072, 1, 9, 30]])
    found = turn(encoding, x, positions).numpy()
    for b, h, s in np.ndindex(2, 3, 4):
        expected = rotated_by_hand(encoding, x[b, h, s], int(positions[b, s]))
        np.testing.assert_allclose(found[b, h, s], expected, rtol=0, atol=1e-10)
    rest = slice(width, 8) if channels == "first" else slice(0, 8 - width)
    assert np.array_equal(found[..., rest], x[..., rest])
    moved = slice(0, width) if channels == "first" else slice(8 - width, 8)
    assert (np.abs(found - x)[0, :, 2, moved] > 1e-3).any(axis=0).all()


def test_attention_factor_scales_the_turned_channels():
    """YaRN by four: 0.1 ln 4 + 1."""
    schedule = YarnSchedule(rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
    encoding = RotaryEncoding(width=4, schedule=schedule)
    x = np.random.default_rng(4).standard_normal((1, 2, 3, 6))
    found = turn(encoding, x, [[9, 100, 4]])
    gain = np.linalg.norm(found[..., :4], axis=-1) / np.linalg.norm(x[..., :4], axis=-1)
    np.testing.assert_allclose(gain, 0.1 * math.log(4) + 1, rtol=1e-14)


# --- three views of one rotation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_matrix_complex_and_rotate_half_views_agree(pairing):
    encoding = RotaryEncoding(width=6, pairing=pairing, schedule=THETA)
    x = torch.from_numpy(np.random.default_rng(5).standard_normal((2, 3, 4, 6)))
    positions = torch.tensor([[4, 1, 900, 17], [0, 3, 2, 65537]])
    angles = positions[:, None, :, None] * torch.tensor(
        [10000.0 ** (-2 * i / 6) for i in range(3)], dtype=torch.float64
    )
    cos, sin = angles.cos(), angles.sin()

    pairs = x.reshape(2, 3, 4, 3, 2) if pairing == "interleaved" else x.reshape(2, 3, 4, 2, 3).transpose(-1, -2)
    blocks = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)
    matrix = (blocks @ pairs[..., None])[..., 0]
    product = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    )

    if pairing == "half":
        half = x * torch.cat((cos, cos), -1) + torch.cat((-x[..., 3:], x[..., :3]), -1) * torch.cat((sin, sin), -1)
        matrix, product = (view.transpose(-1, -2) for view in (matrix, product))
    else:
        swapped = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        half = x * cos.repeat_interleave(2, -1) + swapped * sin.repeat_interleave(2, -1)
    found = turn(encoding, x, positions.tolist())
    for view in (matrix.flatten(-2), product.flatten(-2), half):
        torch.testing.assert_close(found, view, rtol=0, atol=1e-10)


# --- shapes and axes ---------------------------------------------------------------------------------------------


def test_one_position_a_batch_row_keeps_the_shape():
    """S08: offsets 5 and 9 of two rows of one token each."""
    x = np.random.default_rng(6).standard_normal((2, 32, 1, 128))
    encoding = RotaryEncoding(width=128, schedule=THETA)
    found = turn(encoding, x, [[5], [9]])
    assert found.shape == (2, 32, 1, 128)
    for row, position in enumerate((5, 9)):
        assert torch.equal(found[row : row + 1], turn(encoding, x[row : row + 1], [[position]]))


def test_the_rotation_varies_along_the_sequence_and_not_along_heads():
    """R11: with as many heads as positions no shape would tell."""
    found = turn(RotaryEncoding(width=8, schedule=THETA), np.ones((1, 3, 3, 8)), [[0, 1, 2]])
    assert torch.equal(found[:, :1].expand_as(found), found)
    steps = (found[0, 0, 1:] - found[0, 0, :-1]).abs()
    assert (steps.amax(-1) > 0.1).all()


# --- layouts of weights ------------------------------------------------------------------------------------------


def interleaved_to_half(head_dim):
    """Row order that brings an interleaved projection into the half layout: even rows, then odd ones."""
    return [*range(0, head_dim, 2), *range(1, head_dim, 2)]


def test_permuted_weights_in_the_other_layout_give_the_same_scores(weights_of, states):
    """R04: q by its 2 heads and k by its 1 head; k permuted as if it had q's count is another model."""
    order = interleaved_to_half(8)
    assert order == [0, 2, 4, 6, 1, 3, 5, 7]
    sizes = {"hidden_size": 20, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8, "scale": 0.4}
    meta, hf = (
        AttentionSpec(**sizes, rotary=RotaryEncoding(width=8, pairing=pairing, schedule=THETA))
        for pairing in ("interleaved", "half")
    )
    weights, x, positions = weights_of(meta), states(meta, 2, 5), torch.tensor([[0, 4, 9, 2, 30], [3, 1, 8, 5, 6]])

    def permuted(array, row_order):
        return array.reshape(-1, len(row_order), 20)[:, row_order].reshape(array.shape)

    turned = weights | {name: permuted(weights[name], order) for name in ("q_proj.weight", "k_proj.weight")}
    expected = Attention(meta, dtype=torch.float64).load(weights).stages(x, positions)
    found = Attention(hf, dtype=torch.float64).load(turned).stages(x, positions)
    torch.testing.assert_close(found["scores"], expected["scores"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["output"], expected["output"], rtol=1e-12, atol=1e-12)

    # as if k had two heads of 4: within each, even rows before odd ones
    wrong = turned | {"k_proj.weight": weights["k_proj.weight"][[0, 2, 1, 3, 4, 6, 5, 7]]}
    found = Attention(hf, dtype=torch.float64).load(wrong).stages(x, positions)
    assert (found["scores"] - expected["scores"]).abs().max() > 0.1


# --- precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_rotations_round_the_difference_once(dtype):
    """(1 + 2^-7) (0.5 - (0.5 - 2^-8)): were the second product rounded alone, it would be 0.5, and the result 2^-8."""
    cos, sin = (torch.full((1, 1, 1), value, dtype=dtype) for value in (0.5, 0.5 - 2.0**-8))
    x = torch.full((1, 1, 1, 2), 1 + 2.0**-7, dtype=dtype)
    assert rotate(x, Rotation(cos, sin, "half", "first"))[0, 0, 0, 0] == (1 + 2.0**-7) * 2.0**-8


@pytest.mark.parametrize("position", [1000, 131071, 1_000_000])
def test_float32_angles_do_not_degrade_with_position(position):
    """Half a unit of float32 in cos and sin each, wherever the position stands."""
    encoding = RotaryEncoding(width=64, schedule=DefaultSchedule(rope_theta=500000.0))
    rotation = ROTATIONS["rotary"](encoding, None, torch.float32)(torch.tensor([[position]]))
    angles = np.array([position * 500000.0 ** (-2 * i / 64) for i in range(32)])
    assert rotation.cos.dtype == torch.float32
    assert np.abs(rotation.cos[0, 0].double().numpy() - np.cos(angles)).max() < 2.0**-25 + 1e-9
    assert np.abs(rotation.sin[0, 0].double().numpy() - np.sin(angles)).max() < 2.0**-25 + 1e-9


# --- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_two_level_tables_give_the_angles_of_the_position(sign):
    """Positions on both sides of a step of the coarse table, and its last one."""
    schedule = YarnSchedule(rope_theta=10000.0, factor=4.0, original_max_position_embeddings=1024)
    encoding = RotaryEncoding(width=8, sign=sign, schedule=schedule)
    spec = AttentionSpec(
        hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8, scale=1.0, rotary=encoding
    )
    tables = table_set(spec, 4096)
    x = np.random.default_rng(7).standard_normal((1, 2, 6, 8))
    positions = [[0, 1023, 1024, 3071, 2048, 4095]]
    found = turn(encoding, x, positions, torch.float32, tables)
    expected = turn(encoding, x, positions)
    size = np.abs(x).max() * encoding.attention_factor
    assert (found.double() - expected).abs().max() < 6e-7 * size
    assert (found.double() - expected).abs().max() > 0


def test_a_full_table_is_looked_up_as_it_is():
    """Rows 3, 4 and 9 of a table of arbitrary numbers (S11), never rows 0, 1 and 2."""
    cos, sin = np.random.default_rng(8).standard_normal((2, 12, 2)).astype(np.float32)
    rotation = ROTATIONS["rotary"](RotaryEncoding(width=4, schedule=THETA), {"cos": cos, "sin": sin}, torch.float64)(
        torch.tensor([[3, 4, 9]])
    )
    assert np.array_equal(rotation.cos[0], cos[[3, 4, 9]].astype(np.float64))
    assert np.array_equal(rotation.sin[0], sin[[3, 4, 9]].astype(np.float64))
