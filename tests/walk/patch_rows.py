"""Encoders of images and video with tables read in ways of their own, and those without positions in attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import portpe
from tests.walk.image_rows import IN_FLOAT32, image, resized, rows_and_columns
from tests.walk.row import Case, Row
from tests.walk.site_checks import learned

SIZES = ((5, 9), (13, 2))
Places = Callable[[Case, torch.nn.Module, int, int], torch.Tensor]


def _tabulated(reading: Any, table: torch.Tensor, rows: int, columns: int) -> np.ndarray:
    """The rows of the patches alone."""
    encoding = reading.spec.embedding
    first = encoding.prefix_tokens + encoding.plain_tokens
    places = np.pad(np.indices((rows, columns)).reshape(2, -1), ((0, 0), (first, 0)))
    weights = {"position_embedding.weight": table.detach().numpy().reshape(encoding.table_shape)}
    found = portpe.tabulate(reading.spec, places, weights=weights)["embedding"]
    assert not found[encoding.prefix_tokens : first].any()
    return found[first:]


def over_grids(name: str, table: str, rows_of: Places, *, atol: float = 0.0, others: bool = True):
    """``rows_of`` (case, module, rows, columns) gives what the class ``name`` adds to patches of such a picture.

    ``others``: pictures of other sizes too.
    """

    def check(case: Case) -> None:
        _, reading = next(case.layers())
        module = getattr(case.modeling, name)(case.config).double().eval()
        with torch.no_grad():
            weight = module.get_parameter(table).normal_(generator=torch.Generator().manual_seed(2))
            encoding = reading.spec.embedding
            for rows, columns in (encoding.grid, *(SIZES if others else ())):
                theirs = rows_of(case, module, rows, columns).reshape(rows * columns, -1).numpy()
                ours = _tabulated(reading, weight, rows, columns)
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol * max(encoding.grid))

    return check


def added_whole(module: torch.nn.Module, config: Any, rows: int, columns: int) -> torch.Tensor:
    """What a class adds to a blank picture: parameters but the table's are 0 where they are added to it."""
    for name, parameter in module.named_parameters():
        if "position" not in name and "pos_embed" not in name:
            parameter.zero_()
    size = config.patch_size
    patch = (size, size) if isinstance(size, int) else size
    found = module(torch.zeros(1, 3, rows * patch[0], columns * patch[1], dtype=torch.float64))
    found = found[0] if isinstance(found, tuple) else found
    return found.reshape(-1, found.shape[-1])[-rows * columns :]


def whole(name: str, table: str, **more: Any):
    return over_grids(name, table, lambda case, module, *size: added_whole(module, case.config, *size), **more)


def navit(name: str):
    """A picture of the shape, all of it kept; MiniCPM's take its shape instead."""

    def rows_of(case: Case, module: torch.nn.Module, rows: int, columns: int) -> torch.Tensor:
        for key in ("weight", "bias"):
            module.get_parameter(f"patch_embedding.{key}").zero_()
        patch = case.config.patch_size
        pixels = torch.zeros(1, 3, rows * patch, columns * patch, dtype=torch.float64)
        if "MiniCPM" in name:
            return module(pixels, target_sizes=torch.tensor([[rows, columns]]))
        return module(pixels, patch_attention_mask=torch.ones(1, rows, columns, dtype=torch.bool))

    return over_grids(name, "position_embedding.weight", rows_of)


def radio(case: Case, module: torch.nn.Module, rows: int, columns: int) -> torch.Tensor:
    return module._interpolate_position_embedding((rows, columns), torch.float64)


def lw_detr(case: Case) -> None:
    """Its table has a row for a class token, that stands first and is not read."""
    _, reading = next(case.layers())
    module = case.modeling.LwDetrViTEmbeddings(case.config).double()
    with torch.no_grad():
        table = module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
        for rows, columns in (reading.spec.embedding.grid, *SIZES):
            theirs = module.get_absolute_positions(table, True, rows, columns).flatten(0, 2).numpy()
            np.testing.assert_allclose(_tabulated(reading, table[:, 1:], rows, columns), theirs, rtol=0, atol=1e-12)


def vitpose(case: Case) -> None:
    """The class token's row is a part of hidden_states: it is the same for all patches."""
    _, reading = next(case.layers())
    module = case.modeling.VitPoseBackboneEmbeddings(case.config).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        table = module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
        rows, columns = reading.spec.embedding.grid
        patch = case.config.patch_size
        found = module(torch.zeros(1, 3, rows * patch[0], columns * patch[1], dtype=torch.float64))[0]
        ours = torch.from_numpy(_tabulated(reading, table[:, 1:], rows, columns))
        assert torch.equal(found, ours + table[0, :1])


def hiera(case: Case, module: torch.nn.Module, rows: int, columns: int) -> torch.Tensor:
    height, width = (n * s for n, s in zip((rows, columns), case.config.patch_stride, strict=True))
    tokens = torch.zeros(1, rows * columns, case.config.embed_dim, dtype=torch.float64)
    return module.get_position_embedding(tokens, height, width, interpolate_pos_encoding=True)


def vivit(case: Case, positions: torch.Tensor):
    """A blank video."""
    module = case.modeling.VivitEmbeddings(case.config).eval()
    for parameter in module.parameters():
        parameter.zero_()
    table = module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
    side = case.config.image_size
    return table[0], module(torch.zeros(1, case.config.num_frames, 3, side, side))[0, positions]


def timesformer(case: Case, positions: torch.Tensor):
    """A blank video: patches, and each patch's frames in their order, behind the class token."""
    config = case.config
    module = case.modeling.TimesformerEmbeddings(config).eval()
    for parameter in module.parameters():
        parameter.zero_()
    generator = torch.Generator().manual_seed(2)
    space = module.position_embeddings.normal_(generator=generator)[0]
    table, frames = space, 1
    if config.attention_type != "space_only":
        time, frames = module.time_embeddings.normal_(generator=generator)[0], config.num_frames
        table = torch.cat([space[:1], (space[1:, None] + time).flatten(0, 1)])
    video = torch.zeros(1, frames, 3, config.image_size, config.image_size)
    return table, module(video)[0, positions]


def videoprism(case: Case) -> None:
    """Patches before the first layer, frames before the first of those over time; each is stretched by itself."""
    tables = [reading for _, reading in case.layers() if reading.spec.embedding is not None]
    (space, time), config = tables, case.config
    patch, layers = config.tubelet_size[1], [reading.layer for reading in tables]
    assert layers == [0, config.num_spatial_layers]
    modules = (case.modeling.VideoPrismSpatialEmbeddings, case.modeling.VideoPrismTemporalEmbeddings)
    of_space, of_time = (module(config).double() for module in modules)
    with torch.no_grad():
        for module in (of_space, of_time):
            module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
        for rows, columns in (space.spec.embedding.grid, *SIZES):
            tokens = torch.zeros(1, rows * columns, config.hidden_size, dtype=torch.float64)
            theirs = of_space.interpolate_pos_encoding(tokens, rows * patch, columns * patch)[0].numpy()
            ours = _tabulated(space, of_space.position_embeddings, rows, columns)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
        for frames in (config.num_frames, 7, config.num_frames + 5):
            tokens = torch.zeros(1, frames, config.hidden_size, dtype=torch.float64)
            theirs = of_time.interpolate_pos_encoding(tokens)[0].numpy()
            ours = _tabulated(time, of_time.position_embeddings, frames, 1)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def pvt(case: Case) -> None:
    """The table of each stage, laid over its own picture; the last one's class token first."""
    config = case.config
    model = case.modeling.PvtEncoder(config).eval()
    found = {reading.layer: reading for reading in case.readings() if reading.spec.embedding is not None}
    starts = [sum(config.depths[:stage]) for stage in range(len(config.depths))]
    assert list(found) == starts
    for start, module in zip(starts, model.patch_embeddings, strict=True):
        encoding = found[start].spec.embedding
        (rows, columns), first = encoding.grid, encoding.prefix_tokens
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name != "position_embeddings":
                    parameter.zero_()
            table = module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
            side = rows * module.patch_size[0]
            theirs, height, width = module(torch.zeros(1, module.num_channels, side, side))
            theirs = theirs[0].numpy()
        assert (height, width) == (rows, columns)
        places = np.pad(np.indices((rows, columns)).reshape(2, -1), ((0, 0), (first, 0)))
        weights = {"position_embedding.weight": table[0].detach().numpy()}
        ours = portpe.tabulate(found[start].spec, places, weights=weights)["embedding"]
        assert np.array_equal(ours.astype(np.float32), theirs)


def without_positions(make: Callable[[Case], Callable[[torch.Tensor], torch.Tensor]]):
    """``make`` gives attention without reduced keys, of 24 channels: it commutes with permutations."""

    def check(case: Case) -> None:
        for _, reading in case.layers():
            assert (reading.spec.embedding, reading.spec.rotary, reading.spec.bias) == (None, None, ())
        generator = torch.Generator().manual_seed(5)
        states, order = torch.randn(1, 6, 24, generator=generator), torch.tensor([3, 0, 4, 2, 5, 1])
        with torch.no_grad():
            attend = make(case)
            first, second = (attend(x) for x in (states, states[:, order]))
        assert first.std(1).mean() > 0.05
        assert torch.allclose(first[:, order], second, rtol=0, atol=1e-5)

    return check


def _efficient(name: str):
    """Attention of a stage whose keys are not reduced."""

    def make(case: Case) -> Callable[[torch.Tensor], torch.Tensor]:
        module = getattr(case.modeling, name)(case.config, 24, 3, 1).eval()
        for parameter in module.parameters():
            parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(2))
        return lambda x: module(x, 2, 3)[0]

    return make


def _mobilevit(case: Case) -> Callable[[torch.Tensor], torch.Tensor]:
    return case.modeling.MobileViTSelfAttention(case.config, 24).eval()


_NAVIT = "tests/test_grids.py::test_transformers_reads_the_row_before_where_a_patch_begins_on_one"
SMALLER = {"smaller": {"image_size": 160}}
HEADS = {"heads": {"num_attention_heads": [2, 2, 5, 8]}}

PATCHES = (
    image("bridgetower_vision_model", "BridgeTowerVisionEmbeddings", {"larger": {"image_size": 320}}),
    image("xclip_vision_model", "XCLIPVisionEmbeddings"),
    image("groupvit_vision_model", "GroupViTVisionEmbeddings"),
    image("janus_vision_model", "JanusVisionEmbeddings"),
    image("rf_detr_dinov2", "RfDetrDinov2Embeddings", {"larger": {"image_size": 518}}, in_float32=True),
    Row("internvl_vision", resized("InternVLVisionEmbeddings"), {"larger": {"image_size": [560, 560]}}),
    Row("qianfan_ocr_vision", resized("QianfanOCRVisionEmbeddings"), {"smaller": {"image_size": 224}}),
    Row("vivit", learned(vivit), {"shorter": {"num_frames": 8, "image_size": 64}}),
    Row(
        "timesformer",
        learned(timesformer),
        {"pictures": {"attention_type": "space_only", "image_size": 64}, "longer": {"num_frames": 11}},
    ),
    Row("videoprism_vision_model", videoprism, {"smaller": {"image_size": 144, "num_frames": 8}}),
    *(
        Row(name, whole(f"{cls}Embeddings", "position_embeddings.weight", others=False), SMALLER)
        for name, cls in (("eomt", "Eomt"), ("videomt", "Videomt"))
    ),
    *(
        Row(name, navit(f"{cls}VisionEmbeddings"), {"larger": {"image_size": 352}}, wrong=_NAVIT)
        for name, cls in (
            ("idefics2_vision", "Idefics2"),
            ("idefics3_vision", "Idefics3"),
            ("smolvlm_vision", "SmolVLM"),
            ("minicpmv4_6_vision", "MiniCPMV4_6"),
            ("minicpmv4_7_vision", "MiniCPMV4_7"),
            ("minicpm_ocr_vision", "MiniCPMOcr"),
        )
    ),
    Row(
        "phi4_multimodal_vision",
        navit("Phi4MultimodalVisionEmbeddings"),
        {"smaller": {"image_size": 224}},
        wrong=_NAVIT,
    ),
    Row(
        "ovis2_vision",
        whole("Ovis2VisionEmbeddings", "position_embedding.weight", others=False),
        {"larger": {"image_size": 448}},
    ),
    Row(
        "radio",
        over_grids("RadioPatchEmbeddings", "position_embedding", radio, atol=IN_FLOAT32),
        {"smaller": {"max_img_size": 160}},
        {"max_img_size": 512, "hidden_size": 64},
        because="its table has 16384 rows",
    ),
    Row("lw_detr_vit", lw_detr, {"smaller": {"pretrain_image_size": 160}}),
    Row("vitpose_backbone", vitpose, {"larger": {"image_size": [384, 288]}}),
    Row("mgp-str", whole("MgpstrEmbeddings", "pos_embed", others=False), {"larger": {"image_size": [64, 128]}}),
    Row("hiera", over_grids("HieraEmbeddings", "position_embeddings", hiera, atol=1e-13), {"w": {"embed_dim": 64}}),
    Row(
        "kosmos_2_5_vision_model",
        rows_and_columns("Kosmos2_5VisionEmbeddings"),
        {"short": {"max_num_patches": 100}},
    ),
    Row("pvt", pvt, SMALLER),
    Row("pvt_v2", without_positions(_efficient("PvtV2SelfAttention")), HEADS),
    Row("segformer", without_positions(_efficient("SegformerAttention")), HEADS),
    Row("glpn", without_positions(_efficient("GLPNEfficientSelfAttention")), HEADS),
    Row("mobilevit", without_positions(_mobilevit), {"heads": {"num_attention_heads": 8}}),
)
