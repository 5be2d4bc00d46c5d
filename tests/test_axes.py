"""Positions with several coordinates: which one each pair reads, by hand and against transformers' own modules."""

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

from portpe.axes import deal
from portpe.encodings import (
    AlternatingAxes,
    AxialAxes,
    DefaultSchedule,
    InterleavedAxes,
    RotaryEncoding,
    SectionedAxes,
    YarnSchedule,
)
from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.tables import combine, cos_sin, table_set
from portpe.tabulating import tabulate

PLAIN = DefaultSchedule()
SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "v_head_dim": 7, "scale": 0.3}


def rotary(width, axes, pairing="half", **more):
    return RotaryEncoding(width=width, schedule=PLAIN, axes=axes, pairing=pairing, **more)


def letters(encoding, names="THW"):
    return "".join(names[axis] for axis in deal(encoding).axes)


def angles(encoding, positions):
    cos, sin = cos_sin(encoding, np.array(positions)[:, None])
    return np.arctan2(sin, cos)[0]


def test_sections_in_thirds_leave_the_rest_to_the_first():
    """Sections 24, 20, 20 of 64 pairs: twenty turns of T, H, W, and T alone in the last four."""
    assert letters(rotary(128, InterleavedAxes(sections=(24, 20, 20)))) == "THW" * 20 + "TTTT"


def test_sections_in_thirds_may_end_apart():
    """11, 11, 10 of 32 pairs: H has one pair more than W, the last."""
    assert letters(rotary(64, InterleavedAxes(sections=(11, 11, 10)))) == "THW" * 10 + "TH"


def test_sections_stand_one_after_the_other():
    assert letters(rotary(128, SectionedAxes(sections=(16, 24, 24)))) == "T" * 16 + "H" * 24 + "W" * 24


def test_rows_and_columns_alternate_before_time():
    layout = AlternatingAxes(sections=(22, 22, 20), order=(1, 2, 0))
    assert letters(rotary(128, layout, "interleaved")) == "HW" * 22 + "T" * 20


def test_angles_of_a_token_of_three_coordinates():
    """Position (0, 1, 2), theta 10000, frequencies 1, 0.1, 0.01, 0.001."""
    by_thirds, in_chunks = (rotary(8, kind(sections=(2, 1, 1))) for kind in (InterleavedAxes, SectionedAxes))
    np.testing.assert_allclose(angles(by_thirds, (0, 1, 2)), [0, 0.1, 0.02, 0], atol=1e-16)
    np.testing.assert_allclose(angles(in_chunks, (0, 1, 2)), [0, 0, 0.01, 0.002], atol=1e-16)


def test_sections_over_channels_give_the_members_of_a_pair_other_angles():
    """1, 1, 2 doubled over 8 channels: T T H H W W W W; pair i is channels i and i + 4."""
    encoding = rotary(8, SectionedAxes(sections=(1, 1, 2), over="channels"))
    assert letters(encoding) == "TTHHWWWW"
    expected = [5, 0.5, 0.07, 0.007, 3, 0.3, 0.03, 0.003]
    np.testing.assert_allclose(angles(encoding, (5, 7, 3)) % (2 * np.pi), expected, atol=1e-15)


@pytest.mark.parametrize(
    ("layout", "axes", "frequencies"),
    [
        (AxialAxes(), [0, 0, 1, 1], [1, 0.01, 1, 0.01]),  # frequencies of a rotation of four channels, twice
        (AxialAxes(order=(1, 0)), [1, 1, 0, 0], [1, 0.01, 1, 0.01]),
        (AxialAxes(arrangement="interleaved", order=(1, 0)), [1, 0, 1, 0], [1, 1, 0.01, 0.01]),
        (AxialAxes(frequencies="shared"), [0, 0, 1, 1], [1, 0.01, 0.1, 0.001]),
        (AxialAxes(frequencies="shared", arrangement="interleaved"), [0, 1, 0, 1], [1, 0.1, 0.01, 0.001]),
    ],
)
def test_axial_layouts(layout, axes, frequencies):
    encoding = rotary(8, layout)
    np.testing.assert_array_equal(deal(encoding).axes, axes)
    spec = AttentionSpec(**SIZES, head_dim=8, rotary=encoding)
    np.testing.assert_allclose(tabulate(spec, [3])["inv_freq"], frequencies, rtol=1e-15)


def test_a_tiled_coordinate_turns_the_members_of_a_pair_by_neighbouring_angles():
    """Eight channels for each of two coordinates, frequencies 1, 0.1, 0.01, 0.001: channel c has frequency c mod 4."""
    encoding = rotary(16, AxialAxes(tiled=True), "interleaved")
    first, second = np.split(angles(encoding, (2, 3)), 2)
    np.testing.assert_allclose(first, [2, 0.02, 2, 0.02, 3, 0.03, 3, 0.03], atol=1e-15)
    np.testing.assert_allclose(second, [0.2, 0.002, 0.2, 0.002, 0.3, 0.003, 0.3, 0.003], atol=1e-15)


LAYOUTS = {
    "sections": (SectionedAxes(sections=(3, 5, 4)), "half"),
    "over channels": (SectionedAxes(sections=(3, 5, 4), over="channels"), "half"),
    "thirds": (InterleavedAxes(sections=(4, 4, 4)), "interleaved"),
    "alternating": (AlternatingAxes(sections=(5, 5, 2), order=(1, 2, 0)), "interleaved"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_text_is_a_rotation_of_one_coordinate(name):
    """Positions that are alike on every axis give, bit for bit, the cos and sin of the encoding without axes."""
    layout, pairing = LAYOUTS[name]
    positions = np.array([0, 7, 1, 131_071, 1_000_003])
    several, one = rotary(24, layout, pairing), rotary(24, None, pairing)
    for got, expected in zip(cos_sin(several, np.stack([positions] * 3)), cos_sin(one, positions), strict=True):
        assert np.array_equal(got[..., :12], expected)
        assert np.array_equal(got[..., -12:], expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_tables_hold_the_same_numbers(name):
    """Both levels combined at positions that no two axes share, each column from its own, against 50 digits."""
    layout, pairing = LAYOUTS[name]
    schedule = YarnSchedule(factor=4.0, original_max_position_embeddings=64, truncate=False)
    encoding = RotaryEncoding(width=24, pairing=pairing, schedule=schedule, axes=layout)
    spec = AttentionSpec(**SIZES, head_dim=24, rotary=encoding)
    positions = np.array([[[5, 131_071]], [[1024, 77]], [[2047, 999_999]]])
    dealt = deal(encoding)
    numbers = tabulate(spec, positions[:, 0])
    for name, part in zip(("cos", "sin"), combine(table_set(spec), positions), strict=True):
        assert part.shape == (3, 1, 2, len(dealt.axes))
        with mp.workdps(50):
            function = getattr(mp, name)
            exact = [
                [function(int(positions[axis, 0, p]) * mpf(f)) * mpf(encoding.magnitude) for axis, f in columns]
                for p in range(2)
                for columns in [list(zip(dealt.axes, numbers["inv_freq"], strict=True))]
            ]
        expected = np.array(exact, dtype=np.float64)
        np.testing.assert_allclose(numbers[name], expected, atol=3e-10)
        np.testing.assert_allclose(dealt.select(part)[0], expected, atol=2e-7 * encoding.magnitude)


@pytest.mark.parametrize(
    ("width", "layout", "pairing", "message"),
    [
        (128, InterleavedAxes(sections=(8, 28, 28)), "half", r"axes.sections must fit every 3th of 64 pairs, got 28"),
        (16, InterleavedAxes(sections=(1, 1, 1)), "half", r"axes.sections must sum to width / 2 = 8, got 3"),
        (16, SectionedAxes(sections=(4, 3)), "half", r"axes.sections must sum to width / 2 = 8, got 7"),
        (18, AxialAxes(), "half", r"width must be a multiple of 4, a pair for each of 2 coordinates, got 18"),
        (16, SectionedAxes(sections=(4, 4), over="channels"), "interleaved", "pairing must be half for axes.over"),
        (16, AxialAxes(tiled=True), "half", "pairing must be interleaved for axes.tiled"),
    ],
)
def test_pairs_that_cannot_be_dealt_are_refused(width, layout, pairing, message):
    with pytest.raises(SpecError, match=message):
        rotary(width, layout, pairing)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AlternatingAxes(sections=(3, 2, 1), order=(1, 2, 0)), "sections must be equal but for the last"),
        (lambda: AlternatingAxes(sections=(2, 2, 1), order=(1, 2, 3)), "order must name each of the coordinates 0..2"),
        (lambda: AxialAxes(order=(0, 0)), "order must name each of the coordinates 0..1 once"),
        (lambda: AxialAxes(tiled=True, arrangement="interleaved"), "tiled needs arrangement blocks"),
        (lambda: SectionedAxes(sections=(4,)), "sections"),
        (lambda: SectionedAxes(sections=(4, 0)), "sections.1"),
    ],
)
def test_layouts_are_checked(make, message):
    with pytest.raises(SpecError, match=message):
        make()


def test_positions_need_as_many_coordinates():
    encoding = rotary(8, SectionedAxes(sections=(2, 1, 1)))
    with pytest.raises(SpecError, match=r"positions must be \(3, ...\), one a coordinate, got shape \(2, 5\)"):
        cos_sin(encoding, np.zeros((2, 5), int))


def test_the_reference_takes_three_rows_as_coordinates_and_not_as_sequences():
    """position_ids (3, 1, 256) belong to one sequence of 256 tokens; (3, 256) to no call of it."""
    from portpe.random_weights import random_weights
    from portpe.reference import Attention

    spec = AttentionSpec(**SIZES, head_dim=8, rotary=rotary(8, SectionedAxes(sections=(2, 1, 1))))
    block = Attention(spec, dtype=torch.float64).load(random_weights(spec, 1))
    hidden = torch.randn(1, 256, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.arange(256), torch.arange(256) // 7, torch.arange(256) % 7])[:, None]
    stages = block.stages(hidden, positions)
    text = block.stages(hidden)
    assert torch.equal(text["q_rotated"][..., [0, 1]], stages["q_rotated"][..., [0, 1]])  # the first members of T's
    assert (stages["output"] - text["output"]).abs().max() > 0.1
    with pytest.raises(SpecError, match=r"position_ids must have shape \(3, 1, 256\), got \(3, 256\)"):
        block.stages(hidden, positions[:, 0])


def test_centred_coordinates_run_from_the_first_cells_centre_to_the_last_ones():
    """Four rows and two columns: centres -3/4, -1/4, 1/4, 3/4 and -1/2, 1/2; angles are 2 pi f times them."""
    encoding = rotary(8, AxialAxes(), coordinates="centred")
    grid = np.indices((4, 2)).reshape(2, -1)
    cos, sin = cos_sin(encoding, grid)
    rows, columns = np.repeat([-0.75, -0.25, 0.25, 0.75], 2), np.tile([-0.5, 0.5], 4)
    expected = 2 * np.pi * np.stack([rows, rows * 0.01, columns, columns * 0.01], axis=-1)
    np.testing.assert_allclose(cos, np.cos(expected), atol=1e-15)
    np.testing.assert_allclose(sin, np.sin(expected), atol=1e-15)


def test_each_row_of_a_batch_is_centred_on_its_own_grid():
    encoding = rotary(4, None, coordinates="centred")
    _, sin = cos_sin(encoding, np.array([[0, 1, 0], [0, 1, 2]]))
    np.testing.assert_allclose(
        sin[:, :, 0], np.sin(2 * np.pi * np.array([[-0.5, 0.5, -0.5], [-2 / 3, 0, 2 / 3]])), atol=1e-15
    )


def test_centred_coordinates_are_dinov3s():
    from transformers import DINOv3ViTConfig
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding

    from portpe import hf_tables

    config = DINOv3ViTConfig(hidden_size=96, num_attention_heads=4, image_size=(48, 80), patch_size=16)
    cos, sin = DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 48, 80))
    encoding = RotaryEncoding(
        width=24, schedule=DefaultSchedule(rope_theta=100.0), axes=AxialAxes(), coordinates="centred"
    )
    grid = np.indices((3, 5)).reshape(2, -1)
    for ours, exact, theirs in zip(hf_tables.cos_sin(encoding, grid), cos_sin(encoding, grid), (cos, sin), strict=True):
        assert np.array_equal(np.concatenate([ours, ours], -1), theirs.numpy())
        np.testing.assert_allclose(np.concatenate([exact, exact], -1), theirs.numpy(), atol=1e-6)


def test_an_offset_is_added_to_every_coordinate():
    encoding, plain = rotary(8, AxialAxes(), offset=3), rotary(8, AxialAxes())
    positions = np.array([[0, 5, 131_071], [9, 0, 2]])
    np.testing.assert_array_equal(cos_sin(encoding, positions), cos_sin(plain, positions + 3))
    spec = AttentionSpec(**SIZES, head_dim=8, rotary=encoding)
    for part, exact in zip(combine(table_set(spec), positions), cos_sin(encoding, positions), strict=True):
        np.testing.assert_allclose(deal(encoding).select(part), exact, atol=2e-7)


def test_blocks_turn_halves_of_their_own():
    """Eight channels in two blocks: pairs (0, 2), (1, 3), (4, 6), (5, 7), each by its own angle."""
    from portpe.reference.rotary import Rotation, rotate

    cos, sin = (f(torch.tensor([[[0.1, 0.2, 0.3, 0.4]]], dtype=torch.float64)) for f in (torch.cos, torch.sin))
    x = torch.arange(1.0, 9.0, dtype=torch.float64).reshape(1, 1, 1, 8)
    turned = rotate(x, Rotation(cos, sin, "half", "first", blocks=2))[0, 0, 0]
    for angle, (a, b) in zip((0.1, 0.2, 0.3, 0.4), ((0, 2), (1, 3), (4, 6), (5, 7)), strict=True):
        assert turned[a].item() == pytest.approx((a + 1) * np.cos(angle) - (b + 1) * np.sin(angle), rel=1e-14)
        assert turned[b].item() == pytest.approx((b + 1) * np.cos(angle) + (a + 1) * np.sin(angle), rel=1e-14)


def test_tokens_that_are_not_turned_pass_bit_for_bit():
    from portpe.random_weights import random_weights
    from portpe.reference import Attention

    encoding = rotary(8, AxialAxes(), offset=1, prefix_tokens=2, suffix_tokens=1)
    spec = AttentionSpec(**SIZES, head_dim=8, causal=False, rotary=encoding)
    block = Attention(spec).load(random_weights(spec, 1))
    hidden = torch.randn(1, 9, 20, generator=torch.Generator().manual_seed(1))
    positions = torch.zeros(2, 1, 9, dtype=torch.long)
    positions[:, 0, 2:8] = torch.from_numpy(np.indices((2, 3)).reshape(2, -1))
    stages = block.stages(hidden, positions)
    kept = [0, 1, 8]
    assert torch.equal(stages["k_rotated"][:, :, kept], stages["k"][:, :, kept])
    assert (stages["k_rotated"] - stages["k"])[:, :, 2:8].abs().amax(-1).min() > 0.01  # also the cell (0, 0)
    with pytest.raises(SpecError, match="position_ids must be 0 for the first 2 and the last 1 tokens, got others"):
        block.stages(hidden, positions + 1)
    with pytest.raises(SpecError, match="position_ids are required for a grid or for tokens that are not turned"):
        block.stages(hidden)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"blocks": 3}, "blocks must be 1, or divide width / 2 = 4 with pairing half, got 3 with half"),
        ({"blocks": 2, "pairing": "interleaved"}, "blocks must be 1, .* got 2 with interleaved"),
        ({"offset": 1, "coordinates": "centred"}, "offset must be 0 for centred coordinates, got 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(more, message):
    with pytest.raises(SpecError, match=message):
        rotary(8, AxialAxes(), **more)


def test_a_grid_has_no_order_of_time():
    with pytest.raises(SpecError, match="prefix_tokens, suffix_tokens and centred coordinates need causal false"):
        AttentionSpec(**SIZES, head_dim=8, rotary=rotary(8, AxialAxes(), prefix_tokens=1))


def test_centred_coordinates_have_no_tables_of_transformers(tmp_path):
    from portpe.exporting import export

    encoding = rotary(8, AxialAxes(), coordinates="centred")
    spec = AttentionSpec(**SIZES, head_dim=8, causal=False, rotary=encoding)
    assert table_set(spec) == {}
    with pytest.raises(SpecError, match="precision must be exact for tables of centred coordinates, got hf"):
        export(spec.model_copy(update={"max_position_embeddings": 9}), tmp_path / "b", precision="hf")
