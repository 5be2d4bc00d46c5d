"""Encoders of images: a table over patches, resized by the model's own function to images of other sizes."""

from __future__ import annotations

import numpy as np
import torch

import portpe
from tests.walk.row import Case, Row
from tests.walk.site_checks import assert_within_ulps, sinusoids

# Where a model resizes in float32 whatever its type, a coordinate c is off by c * 2 ** -23: times the slope of a cubic
# through values of about 1 and up to 4, for each row of the table.
IN_FLOAT32 = 5e-7


def _positions(rows: int, columns: int, prefix: int) -> np.ndarray:
    patches = np.stack(np.divmod(np.arange(rows * columns), columns))
    return np.pad(patches, ((0, 0), (prefix, 0)))


def _ours(case: Case, table: torch.Tensor, rows: int, columns: int) -> np.ndarray:
    _, reading = next(case.layers())
    encoding = reading.spec.embedding
    prefix = encoding.prefix_tokens + encoding.plain_tokens
    weights = {"position_embedding.weight": table.detach().numpy().reshape(encoding.table_shape)}
    found = portpe.tabulate(reading.spec, _positions(rows, columns, prefix), weights=weights)["embedding"]
    return np.delete(found, np.arange(encoding.prefix_tokens, prefix), axis=0)  # registers join after the table


def _module(case: Case, name: str):
    module = getattr(case.modeling, name)(case.config).double()
    (table,) = (
        p
        for n, p in module.named_parameters()
        if n in ("position_embeddings", "position_embedding", "position_embedding.weight")
    )
    with torch.no_grad():
        table.normal_(generator=torch.Generator().manual_seed(2))
    return module, table


def resized(name: str, *, in_float32: bool = False):
    """The embeddings' ``interpolate_pos_encoding`` at the table's own size (bit for bit) and at two others."""

    def check(case: Case) -> None:
        module, table = _module(case, name)
        _, reading = next(case.layers())
        encoding = reading.spec.embedding
        size = case.config.patch_size
        patch = size if isinstance(size, int) else size[0]
        for rows, columns in (encoding.grid, (5, 9), (encoding.grid[0] + 3, 2)):
            tokens = torch.zeros(1, encoding.prefix_tokens + rows * columns, encoding.width).double()
            with torch.no_grad():
                theirs = module.interpolate_pos_encoding(tokens, rows * patch, columns * patch)[0].numpy()
            ours = _ours(case, table, rows, columns)
            if (rows, columns) == encoding.grid:
                assert np.array_equal(ours, theirs)
            else:
                np.testing.assert_allclose(
                    ours, theirs, rtol=0, atol=IN_FLOAT32 * max(encoding.grid) if in_float32 else 1e-12
                )

    return check


def siglip2(case: Case) -> None:
    module, table = _module(case, "Siglip2VisionEmbeddings")
    _, reading = next(case.layers())
    grid = reading.spec.embedding.grid
    square = table.reshape(*grid, -1)
    for rows, columns in ((5, 9), (grid[0] + 3, 2)):
        shapes = torch.tensor([[rows, columns]])
        with torch.no_grad():
            theirs = module.resize_positional_embeddings(square, shapes, max_length=rows * columns)[0].numpy()
        np.testing.assert_allclose(_ours(case, table, rows, columns), theirs, rtol=0, atol=IN_FLOAT32 * max(grid))


def unresized(name: str):
    """A table that is added whole."""

    def check(case: Case) -> None:
        module, table = _module(case, name)
        _, reading = next(case.layers())
        rows = module.position_embedding(module.position_ids)[0].detach().float().numpy()
        assert_within_ulps(_ours(case, table, *reading.spec.embedding.grid).astype(np.float32), rows, ulps=0)

    return check


def cosmos3(case: Case) -> None:
    """Cosmos 3 Edge: as SigLIP 2, but for the order of patches, which a merge of 1 leaves as it is."""
    module, table = _module(case, "Cosmos3EdgeVisionEmbeddings")
    _, reading = next(case.layers())
    grid = reading.spec.embedding.grid
    for rows, columns in ((5, 9), (grid[0] + 3, 2)):
        with torch.no_grad():
            theirs = module.resize_positional_embeddings(
                table.reshape(*grid, -1), torch.tensor([[1, rows, columns]]), spatial_merge_size=1
            ).numpy()
        np.testing.assert_allclose(_ours(case, table, rows, columns), theirs, rtol=0, atol=IN_FLOAT32 * max(grid))


def hunyuan(case: Case) -> None:
    """HunYuan-VL: the table's first row is read by nobody; resized in float32."""
    module, table = _module(case, "HunYuanVLVisionPatchEmbed")
    _, reading = next(case.layers())
    grid = reading.spec.embedding.grid
    for rows, columns in ((3, 2), (5, 9)):  # not its own size, which is 128 x 128
        with torch.no_grad():
            theirs = module.interpolate_pos_encoding(torch.zeros(1).double(), rows, columns)[0].numpy()
        ours = _ours(case, table[1:], rows, columns)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=IN_FLOAT32 * max(grid))


def glm_image(case: Case) -> None:
    """GLM-Image: sampled by the patches' own coordinates."""
    module, table = _module(case, "GlmImageVisionEmbeddings")
    _, reading = next(case.layers())
    grid = reading.spec.embedding.grid
    for rows, columns in ((5, 9), (3, 2)):  # not its own size, which is 128 x 128
        cells = _positions(rows, columns, 0)
        with torch.no_grad():
            theirs = module(
                torch.zeros(rows * columns, case.config.hidden_size).double(),
                [rows * columns],
                torch.tensor([[1, rows, columns]]),
                *torch.from_numpy(cells),
            ).numpy()
        ours = _ours(case, table, rows, columns)
        # its coordinates pass through -1 .. 1: they are off by the size of the table times 2 ** -23, four times over
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * IN_FLOAT32 * max(grid))


def molmo2(case: Case) -> None:
    """Molmo 2: a row a patch of a crop, added whole."""
    config = type(case.config)(**{**case.config.to_dict(), "num_hidden_layers": 1})
    module = case.modeling.Molmo2VisionModel(config).eval()
    _, reading = next(case.layers())
    table = module.positional_embedding.normal_(generator=torch.Generator().manual_seed(2))
    told = []
    module.layers[0].register_forward_pre_hook(lambda _, args: told.append(args[0][0]))
    size = config.num_channels * config.patch_size**2
    plain = module.patch_embedding(torch.zeros(1, size))
    module(torch.zeros(1, config.num_position_embeddings, size))
    rows = np.arange(config.num_position_embeddings)
    ours = portpe.tabulate(reading.spec, rows, weights={"position_embedding.weight": table.numpy()})["embedding"]
    assert_within_ulps((torch.from_numpy(ours).float() + plain).numpy(), told[0].numpy(), ulps=1)


def rows_and_columns(name: str):
    """Patches of which the first two numbers are the row and the column, counted from 1."""
    return lambda case: _added_up(case, getattr(case.modeling, name)(case.config).double().eval())


def _added_up(case: Case, module: torch.nn.Module) -> None:
    _, reading = next(case.layers())
    tables = module.row_embedder.weight, module.column_embedder.weight
    cells = np.stack([[4, 0, 17, 2], [1, 6, 0, 30]])
    patches = torch.zeros(1, 4, 2 + case.config.patch_embed_hidden_size).double()
    patches[0, :, :2] = torch.from_numpy(cells.T + 1)
    with torch.no_grad():
        for table in tables:
            table.normal_()
        theirs = (module(patches) - module.patch_projection(patches[..., 2:]))[0].numpy()
    weights = {f"position_embedding.axis_{axis}.weight": table.detach().numpy() for axis, table in enumerate(tables)}
    ours = portpe.tabulate(reading.spec, cells, weights=weights)["embedding"]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)


LARGER = {"larger": {"image_size": 256}}


def image(model_type: str, name: str, configs=LARGER, **more) -> Row:
    return Row(model_type, resized(name, **more), configs)


IMAGES = (
    image("vit", "ViTEmbeddings"),
    image("deit", "DeiTEmbeddings"),
    image("vit_mae", "ViTMAEEmbeddings"),
    image("vit_msn", "ViTMSNEmbeddings"),
    image("ijepa", "IJepaEmbeddings"),
    image("dinov2", "Dinov2Embeddings", {"larger": {"image_size": 518}}, in_float32=True),
    image(
        "dinov2_with_registers", "Dinov2WithRegistersEmbeddings", {"more": {"num_register_tokens": 2}}, in_float32=True
    ),
    image("pixio", "PixioEmbeddings", {"fewer": {"n_cls_tokens": 1}}, in_float32=True),
    image("flava_image_model", "FlavaImageEmbeddings"),
    image("tipsv2_vision_model", "Tipsv2VisionEmbeddings", {"smaller": {"image_size": 224}}, in_float32=True),
    image("siglip_vision_model", "SiglipVisionEmbeddings"),
    Row("siglip2_vision_model", siglip2, {"smaller": {"num_patches": 81}}),
    Row("cosmos3_edge_vision", cosmos3, {"smaller": {"num_patches": 81}}),
    image("granite_docling_vision", "GraniteDoclingVisionEmbeddings", {"larger": {"image_size": 640}}),
    Row("hunyuan_vl_vision", hunyuan, {"smaller": {"max_image_size": 320}, "bicubic": {"interpolate_mode": "bicubic"}}),
    Row("glm_image_vision", glm_image, {"smaller": {"image_size": 320}}),
    Row("molmo2_vision", torch.no_grad()(molmo2), {"other crops": {"image_size": [56, 84]}}),
    image(
        "unlimited_ocr_vision_encoder",
        "UnlimitedOcrVisionEmbeddings",
        {"larger": {"image_size": 336}},
        in_float32=True,
    ),
    image("clip_vision_model", "CLIPVisionEmbeddings"),
    image("clipseg_vision_model", "CLIPSegVisionEmbeddings"),
    image("metaclip_2_vision_model", "MetaClip2VisionEmbeddings"),
    image("chinese_clip_vision_model", "ChineseCLIPVisionEmbeddings"),
    image("altclip_vision_model", "AltCLIPVisionEmbeddings"),
    image("git_vision_model", "GitVisionEmbeddings"),
    image("kosmos_2_vision_model", "Kosmos2VisionEmbeddings", {"larger": {"image_size": 336}}),
    image("owlvit_vision_model", "OwlViTVisionEmbeddings"),
    image("owlv2_vision_model", "Owlv2VisionEmbeddings"),
    image("blip_vision_model", "BlipVisionEmbeddings"),
    image("blip_2_vision_model", "Blip2VisionEmbeddings", {"larger": {"image_size": 364}}),
    image("instructblip_vision_model", "InstructBlipVisionEmbeddings", {"larger": {"image_size": 364}}),
    image("instructblipvideo_vision_model", "InstructBlipVideoVisionEmbeddings", {"larger": {"image_size": 364}}),
    Row("pix2struct_vision_model", rows_and_columns("Pix2StructVisionEmbeddings"), {"short": {"seq_len": 100}}),
    Row("aimv2_vision_model", unresized("Aimv2VisionEmbeddings"), {"larger": {"image_size": 448}}),
    Row(
        "videomae",
        sinusoids(lambda case: case.modeling.get_sinusoid_encoding_table(40, case.config.hidden_size)[0]),
        {"longer": {"num_frames": 32}},
    ),
)
