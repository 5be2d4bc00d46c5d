"""Resampled grids against torch's interpolate, in float64: every filter, growing, shrinking and mixed, not square."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portpe import addends, grids
from portpe.encodings import LearnedGridEncoding, SinusoidalGridEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate

WIDTH = 3
FILTERS = {
    "bicubic": {"resize": "bicubic"},
    "bilinear": {"resize": "bilinear"},
    "bicubic antialiased": {"resize": "bicubic", "antialias": True},
    "bilinear antialiased": {"resize": "bilinear", "antialias": True},
    "bicubic corners": {"resize": "bicubic", "align_corners": True},
    "bilinear corners": {"resize": "bilinear", "align_corners": True},
}
IMAGES = [(3, 5), (7, 9), (2, 3), (2, 11), (6, 1), (1, 1), (13, 4), (37, 23)]


def layer(**keys):
    encoding = LearnedGridEncoding(width=WIDTH, **keys)
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 3, "v_head_dim": 3, "scale": 0.5}
    return AttentionSpec(hidden_size=WIDTH, **sizes, causal=False, embedding=encoding)


def raster(rows, columns):
    """Positions (2, rows * columns) of a whole image, row by row."""
    return np.stack(np.divmod(np.arange(rows * columns), columns))


def interpolated(table, grid, image, resize, antialias=False, align_corners=False):
    """torch's own: (rows * columns, width)."""
    square = torch.from_numpy(table).reshape(1, *grid, WIDTH).permute(0, 3, 1, 2)
    found = F.interpolate(square, size=image, mode=resize, antialias=antialias, align_corners=align_corners)
    return found.permute(0, 2, 3, 1).reshape(-1, WIDTH).numpy()


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("grid", [(3, 5), (8, 6)])
def test_every_filter_is_torch_s(name, image, grid):
    table = np.random.default_rng(3).standard_normal((grid[0] * grid[1], WIDTH))
    spec = layer(grid=grid, **FILTERS[name])
    found = tabulate(spec, raster(*image), weights={"position_embedding.weight": table})["embedding"]
    np.testing.assert_allclose(found, interpolated(table, grid, image, **FILTERS[name]), rtol=0, atol=2e-13)


@pytest.mark.parametrize("name", FILTERS)
def test_an_image_of_the_table_s_own_grid_takes_its_rows_bit_for_bit(name):
    table = np.random.default_rng(4).standard_normal((15, WIDTH))
    spec = layer(grid=(3, 5), **FILTERS[name])
    found = tabulate(spec, raster(3, 5), weights={"position_embedding.weight": table})["embedding"]
    assert np.array_equal(found, table)


def test_prefix_tokens_take_the_first_rows_and_plain_ones_none():
    table = np.random.default_rng(5).standard_normal((2 + 15, WIDTH))
    spec = layer(grid=(3, 5), prefix_tokens=2, plain_tokens=3)
    places = np.concatenate([np.zeros((2, 5), dtype=int), raster(4, 2)], axis=1)
    found = tabulate(spec, places, weights={"position_embedding.weight": table})["embedding"]
    assert np.array_equal(found[:2], table[:2])
    assert not found[2:5].any()
    np.testing.assert_allclose(found[5:], interpolated(table[2:], (3, 5), (4, 2), "bicubic"), rtol=0, atol=1e-13)


def test_each_sequence_of_a_batch_has_a_grid_of_its_own():
    """Images of 2 x 3 and 4 x 1 patches, the second padded with positions (0, 0)."""
    encoding = LearnedGridEncoding(grid=(3, 5), width=WIDTH)
    table = np.random.default_rng(6).standard_normal((15, WIDTH))
    padded = np.concatenate([raster(4, 1), np.zeros((2, 2), dtype=int)], axis=1)
    found = grids.table_weights(encoding, np.stack([raster(2, 3), padded], axis=1)) @ table
    np.testing.assert_allclose(found[0], interpolated(table, (3, 5), (2, 3), "bicubic"), rtol=0, atol=1e-13)
    np.testing.assert_allclose(found[1, :4], interpolated(table, (3, 5), (4, 1), "bicubic"), rtol=0, atol=1e-13)


def test_coordinates_far_out_lose_nothing():
    """A million columns: torch's float32 coordinates are off by a tenth of a column there, whole numbers by none."""
    encoding = LearnedGridEncoding(grid=(2, 1000), width=WIDTH, resize="bilinear")
    places = np.array([[0, 1, 1], [0, 499_999, 999_999]])
    weights = grids.table_weights(encoding, places).reshape(3, 2, 1000)[1, 1]
    column = (499_999 + 0.5) * 1000 / 1_000_000 - 0.5  # 499.4995
    assert weights[499] == pytest.approx(1 - (column - 499), abs=1e-13)
    assert weights[500] == pytest.approx(column - 499, abs=1e-13)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("grid", [(3, 5), (8, 6)])
def test_the_nearest_row_is_that_of_the_patch_s_share_of_the_image(image, grid):
    """Whole numbers alone: patch p of n reads row p * rows // n."""
    table = np.random.default_rng(3).standard_normal((grid[0] * grid[1], WIDTH))
    found = tabulate(layer(grid=grid, resize="nearest"), raster(*image), weights={"position_embedding.weight": table})
    rows, columns = (place * count // size for place, count, size in zip(raster(*image), grid, image, strict=True))
    assert np.array_equal(found["embedding"], table[rows * grid[1] + columns])


def test_transformers_reads_the_row_before_where_a_patch_begins_on_one():
    """25 patches over 5 rows: patch 5 begins on row 1. Fractions and boundaries in float32 put it on row 0.

    MiniCPM's fractions are quotients, rounded once; even 19 patches over as many rows go wrong.
    """
    from transformers import Idefics2VisionConfig
    from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionEmbeddings
    from transformers.vision_utils import get_vision_nearest_position_ids

    config = Idefics2VisionConfig(hidden_size=12, num_attention_heads=2, image_size=10, patch_size=2)
    module, seen = Idefics2VisionEmbeddings(config), []
    module.position_embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    module(torch.zeros(1, 3, 50, 2), torch.ones(1, 25, 1, dtype=torch.bool))
    idefics = seen[0][0].numpy() // 5
    assert np.flatnonzero(idefics != np.arange(25) // 5).tolist() == [5, 10, 15, 20]
    assert idefics[5] == 0
    minicpm = get_vision_nearest_position_ids(torch.tensor([[19, 1]]), 19).numpy() // 19
    assert np.flatnonzero(minicpm != np.arange(19)).tolist() == [12]
    assert minicpm[12] == 11


def test_an_image_can_count_as_a_part_of_a_square():
    """As torch's own for a square of the longer side, cut to the image."""
    table = np.random.default_rng(3).standard_normal((12, WIDTH))
    for rows, columns in ((5, 2), (2, 7), (1, 1), (4, 4)):
        side = max(rows, columns)
        whole = interpolated(table, (3, 4), (side, side), "bilinear").reshape(side, side, WIDTH)
        spec = layer(grid=(3, 4), resize="bilinear", square=True)
        found = tabulate(spec, raster(rows, columns), weights={"position_embedding.weight": table})["embedding"]
        np.testing.assert_allclose(found, whole[:rows, :columns].reshape(-1, WIDTH), rtol=0, atol=1e-13)


def test_what_a_grid_refuses():
    for name in ("antialias", "align_corners"):
        with pytest.raises(SpecError, match=f"{name} must be false with resize nearest, got true"):
            LearnedGridEncoding(grid=(3, 5), width=4, resize="nearest", **{name: True})
    with pytest.raises(SpecError, match="align_corners must be false with antialias, got true"):
        LearnedGridEncoding(grid=(3, 5), width=4, antialias=True, align_corners=True)
    spec = layer(grid=(3, 5))
    with pytest.raises(SpecError, match="embedding needs causal false where it takes a sequence as a whole"):
        AttentionSpec(**(spec.to_dict() | {"causal": True}))
    with pytest.raises(SpecError, match=r"position_embedding.weight must have shape \(15, 3\), got \(14, 3\)"):
        tabulate(spec, raster(2, 2), weights={"position_embedding.weight": np.zeros((14, 3))})
    with pytest.raises(SpecError, match="weights must hold the learned table"):
        tabulate(spec, raster(2, 2))


def pair(positions, **keys):
    encoding = SinusoidalGridEncoding(width=24, **keys)
    return addends.addend(encoding, positions, {})


def test_rows_and_columns_of_rt_detr_and_aimv2():
    from transformers.models.aimv2.modeling_aimv2 import build_2d_sinusoidal_position_embedding as aimv2
    from transformers.models.rt_detr.modeling_rt_detr import build_2d_sinusoidal_position_embedding as rt_detr

    for theirs in (aimv2, rt_detr):
        expected = theirs(5, 7, embed_dim=24, temperature=300.0, dtype=torch.float64).numpy()
        np.testing.assert_allclose(pair(raster(5, 7), order="sin_cos", base=300.0), expected, rtol=0, atol=1e-13)


def test_class_tokens_of_vit_mae_get_nothing():
    from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

    expected = build_2d_sinusoidal_position_embedding(3, 4, embed_dim=24, cls_token=True, dtype=torch.float64).numpy()
    places = np.pad(raster(3, 4), ((0, 0), (1, 0)))
    np.testing.assert_allclose(pair(places, order="sin_cos", plain_tokens=1), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("normalize", [False, True])
def test_detr_counts_from_one(normalize):
    """Columns of DETR's map come as (1, width, H, W)."""
    from transformers.models.detr.modeling_detr import DetrSinePositionEmbedding

    made = DetrSinePositionEmbedding.build_sine_position_embedding(
        torch.Size((1, 8, 5, 7)), "cpu", torch.float64, 12, normalize, 2 * np.pi, 500
    )
    expected = made[0].flatten(1).T.numpy()
    places = raster(5, 7) if normalize else raster(5, 7) + 1
    np.testing.assert_allclose(pair(places, normalize=normalize, base=500.0), expected, rtol=0, atol=1e-13)


def test_centred_coordinates_and_the_column_first_by_hand():
    places = raster(2, 3)
    found = pair(places, normalize=True, centred=True, first="column")
    for token, (row, column) in enumerate(places.T):
        for half, (coordinate, size) in enumerate(((column, 3), (row, 2))):
            angle = 2 * np.pi * (coordinate + 0.5) / (size + 1e-6) / 10000 ** (4 * np.arange(6) / 24)
            assert found[token, 12 * half : 12 * half + 12 : 2] == pytest.approx(np.sin(angle), abs=1e-13)
            assert found[token, 12 * half + 1 : 12 * half + 12 : 2] == pytest.approx(np.cos(angle), abs=1e-13)


def test_what_sinusoids_over_a_grid_refuse():
    with pytest.raises(SpecError, match="width must be a multiple of 4, got 10"):
        SinusoidalGridEncoding(width=10)
    with pytest.raises(SpecError, match="centred needs normalize true, got false"):
        SinusoidalGridEncoding(width=8, centred=True)
