"""Vectors for offsets of rows and of columns: what the attention of ViTDet, SAM and others adds for random queries."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import portpe
from portpe.reference.bias import BIASES, ScoreInputs
from tests.walk.relative_rows import drawn, no_projection
from tests.walk.row import Case, Row

HEAD_DIM, SAMPLED = 4, 31
Attention = Callable[[Case, Any, int], torch.nn.Module]


def vectors(attention: Attention) -> Callable[[Case], None]:
    """``attention`` (case, config, window, 0 for none) makes a module of one narrow head. All of its grid are keys, and
    some of it queries.
    """

    def check(case: Case) -> None:
        config = copy.deepcopy(case.config)
        config.hidden_size, config.num_attention_heads = HEAD_DIM, 1
        for _, reading in case.layers():
            if not reading.spec.bias:
                assert not config.use_relative_position_embeddings
                continue
            (encoding,) = reading.spec.bias
            height, width = encoding.position_ends
            module = drawn(attention(case, config, 0 if (height, width) == patches_of(config) else height))
            random = np.random.default_rng(5)
            q = torch.from_numpy(random.standard_normal((1, 1, height * width, HEAD_DIM)))
            some = torch.from_numpy(random.choice(height * width, SAMPLED, replace=height * width < SAMPLED))
            theirs = added(module, q[0], height, width)[0, some]
            spec = reading.spec.model_copy(update={"num_heads": 1, "num_kv_heads": 1, "head_dim": HEAD_DIM})
            cells = torch.from_numpy(np.indices((height, width)).reshape(2, 1, -1))
            names = encoding.weight_shapes(spec)
            weights = dict(zip(names, (module.rel_pos_h.detach(), module.rel_pos_w.detach()), strict=True))
            seen = torch.ones(1, 1, 1, 1).bool()
            inputs = ScoreInputs(q, q[:, :, some], q, cells[..., some], cells, seen, weights, no_projection)
            ours = BIASES[encoding.kind](encoding, spec, None, torch.float64)(inputs)[0, 0]
            assert theirs.std() > 0.1
            assert (ours - theirs).abs().max() <= 2**-48 * theirs.abs().max()

    return check


def patches_of(config: Any) -> tuple[int, int]:
    size = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return height // config.patch_size, width // config.patch_size


def added(module: torch.nn.Module, q: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """(heads, cells, cells) by the module's own function, which has heads among the batch."""
    sizes = ((height, width), (height, width))
    nothing = torch.zeros(len(q), height * width, height * width, dtype=torch.float64)
    tables = module.rel_pos_h, module.rel_pos_w
    with torch.no_grad():
        if hasattr(module, "get_decomposed_rel_pos"):
            return module.get_decomposed_rel_pos(q, *tables, *sizes).reshape_as(nothing)
        if hasattr(module, "add_decomposed_rel_pos"):
            return module.add_decomposed_rel_pos(nothing, q, *tables, *sizes)
        return sys.modules[type(module).__module__].add_decomposed_relative_positions(nothing, q, *tables, *sizes)


def sam(model_type: str, name: str, **more: Any) -> Row:
    windows = {"window_size": 5, "image_size": 96, "num_hidden_layers": 4, "global_attn_indexes": [1, 3]}
    check = vectors(lambda case, config, window: getattr(case.modeling, f"{name}Attention")(config, window))
    return Row(
        model_type, check, {"windows of 5": windows, "no windows": {"window_size": 0, "image_size": 160}}, **more
    )


def vitdet_attention(case: Case, config: Any, window: int) -> torch.nn.Module:
    return case.modeling.VitDetAttention(config, (window, window) if window else patches_of(config))


def vitdet(case: Case) -> None:
    """The vectors, and the table over the picture of pretraining without its first row, resized to other pictures."""
    vectors(vitdet_attention)(case)
    spec = next(case.layers())[1].spec
    if spec.embedding is None:
        return
    config = copy.deepcopy(case.config)
    config.hidden_size = 8
    module = case.modeling.VitDetEmbeddings(config).double()
    table = torch.randn(module.position_embeddings.shape, generator=torch.Generator().manual_seed(2)).double()
    spec = spec.model_copy(update={"hidden_size": 8, "embedding": spec.embedding.model_copy(update={"width": 8})})
    for rows, columns in (spec.embedding.grid, (5, 9), (spec.embedding.grid[0] + 3, 2)):
        theirs = module.get_absolute_positions(table, True, rows, columns).reshape(-1, 8).numpy()
        cells = np.indices((rows, columns)).reshape(2, -1)
        weights = {"position_embedding.weight": table[0, 1:].numpy()}
        ours = portpe.tabulate(spec.model_copy(update={"bias": ()}), cells, weights=weights)["embedding"]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


SAMS = (
    sam("sam_vision_model", "SamVision"),
    sam("sam_hq_vision_model", "SamHQVision"),
    sam("got_ocr2_vision", "GotOcr2Vision"),
    sam("deepseek_ocr2_sam_vision_model", "DeepseekOcr2SamVision"),
    sam("unlimited_ocr_sam_vision_model", "UnlimitedOcrSamVision"),
    sam("slanext_vision", "SLANeXtVision"),
    sam("pp_formulanet_vision", "PPFormulaNetVision"),
    Row(
        "vitdet",
        vitdet,
        {
            "vectors": {"use_relative_position_embeddings": True, "pretrain_image_size": 160},
            "windows": {
                "use_relative_position_embeddings": True,
                "window_size": 5,
                "window_block_indices": [0, 2],
                "image_size": (96, 128),
            },
        },
    ),
    Row(
        "seggpt",
        vectors(lambda case, config, _window: case.modeling.SegGptAttention(config)),
        {"other pictures": {"image_size": (160, 96)}},
    ),
)
