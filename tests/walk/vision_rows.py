"""Towers that turn by row and column, and by frame: one row a model_type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from portpe import hf_tables
from portpe.encodings import RotaryEncoding
from portpe.reference.rotary import Rotation, rotate
from tests.walk.row import Case, Row

# (axes, tokens): no arange, short and far, and no two coordinates alike.
CELLS = np.array([[0, 7, 3, 1023, 64], [5, 0, 2, 77, 2048], [1, 4, 0, 900, 33]])
Apply = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Any]


def by_token(module: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """q and k (tokens, heads, head_dim)."""
    found = module.apply_rotary_pos_emb_vision(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
    return [part.transpose(0, 1)[None] for part in found]


def in_a_batch(module: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """q and k (1, tokens, heads, head_dim)."""
    found = module.apply_rotary_pos_emb_vision(q.transpose(1, 2), k.transpose(1, 2), cos[None], sin[None])
    return [part.transpose(1, 2) for part in found]


def pixtrals(module: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    return module.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)


def minimaxs(module: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    found = module.apply_rotary_pos_emb_vision(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
    return [part.transpose(0, 1)[None] for part in found]


def paired(module: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """SAM's: q and k (1, heads, tokens, head_dim), a function by the name that the family has for it."""
    names = ("apply_rotary_pos_emb_2d", "apply_rotary_pos_emb_2d_self_attn")
    function = next(getattr(module, name) for name in names if hasattr(module, name))
    return function(q, k, cos=cos, sin=sin)


def gemma4s(module: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    cells = torch.from_numpy(CELLS[:2].T)[None]
    turned = (module.apply_multidimensional_rope(x.transpose(1, 2), cos, sin, cells) for x in (q, k))
    return [x.transpose(1, 2) for x in turned]


def grid(
    name: str,
    apply: Apply = by_token,
    *,
    batched: bool = False,
    told: Callable[[torch.Tensor], torch.Tensor] = lambda cells: cells,
) -> Callable[[Case], None]:
    """A rotary class that is called with the cells (tokens, axes); ``batched``: (1, tokens, axes).

    ``told``: what a tower makes of the cells before it calls the class.
    """

    def check(case: Case) -> None:
        ((_, reading),) = case.layers()
        encoding = reading.spec.rotary
        assert encoding is not None
        cells = CELLS[: encoding.position_axes]
        given = told(torch.from_numpy(cells.T))
        cos, sin = getattr(case.modeling, name)(case.config)(torch.zeros(1), given[None] if batched else given)
        ours = hf_tables.cos_sin(encoding, cells)
        for mine, theirs in zip(ours, (cos, sin), strict=True):
            assert np.array_equal(_spread(encoding, mine), theirs.reshape(cells.shape[1], -1).numpy())
        _assert_same_rotation(case, encoding, apply, ours, (cos, sin))

    return check


def _spread(encoding: RotaryEncoding, part: np.ndarray) -> np.ndarray:
    """(tokens, pairs) as (tokens, width): a pair's number at both of its channels."""
    if encoding.pairing == "interleaved":
        return np.repeat(part, 2, -1)
    blocks = part.reshape(len(part), encoding.blocks, -1)
    return np.concatenate([blocks, blocks], axis=-1).reshape(len(part), -1)


def _assert_same_rotation(case: Case, encoding: RotaryEncoding, apply: Apply, ours: Any, theirs: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    tokens, width = CELLS.shape[1], case.config.to_dict().get("head_dim") or encoding.width
    q, k = (torch.randn(1, heads, tokens, width, generator=generator) for heads in (3, 2))
    cos, sin = (torch.from_numpy(part)[None] for part in ours)
    members = encoding.angles_of_pairs == 2
    rotation = Rotation(cos, sin, encoding.pairing, "first", members, encoding.written, encoding.blocks)
    for given, found in zip((q, k), apply(case.modeling, q, k, *theirs), strict=True):
        expected = rotate(given, rotation)
        assert (found - expected).abs().max() <= 2e-7 * 2 * given.abs().max()
        assert (given - expected).abs().max() > 0.1 * given.abs().max()


def llama4s(case: Case) -> None:
    """One complex table of a square grid, its class token last; patches row by row."""
    ((_, reading),) = case.layers()
    encoding = reading.spec.rotary
    assert encoding is not None
    side = case.config.image_size // case.config.patch_size
    turns = case.modeling.Llama4VisionRotaryEmbedding(case.config)(torch.zeros(1))
    cos, sin = hf_tables.cos_sin(encoding, np.indices((side, side)).reshape(2, -1))
    assert np.array_equal(turns[:-1, 0].real.numpy(), cos)
    assert np.array_equal(turns[:-1, 0].imag.numpy(), sin)
    assert torch.equal(turns[-1], torch.ones_like(turns[-1]))
    assert (encoding.suffix_tokens, encoding.prefix_tokens) == (1, 0)
    q, k = torch.randn(2, 1, side * side, 3, encoding.width, generator=torch.Generator().manual_seed(3))
    found = case.modeling.vision_apply_rotary_emb(q, k, turns[:-1])
    rotation = Rotation(torch.from_numpy(cos)[None], torch.from_numpy(sin)[None], "interleaved", "first")
    for given, turned in zip((q, k), found, strict=True):
        expected = rotate(given.transpose(1, 2), rotation).transpose(1, 2)
        assert (turned - expected).abs().max() <= 2e-7 * 2 * given.abs().max()


_CENTRED = {
    "dinov3_vit": "DINOv3ViTRopePositionEmbedding",
    "eomt_dinov3": "EomtDinov3RotaryEmbedding",
    "sapiens2": "Sapiens2RopePositionEmbedding",
}


def counted_from_1(cells: torch.Tensor) -> torch.Tensor:
    """Muse: columns first, both from 1."""
    return cells.flip(-1) + 1


def joined_late(case: Case) -> None:
    """EoMT: queries stand before the picture in its last blocks, and only there."""
    first = 1 + case.config.num_register_tokens
    blocks = case.config.num_hidden_layers - case.config.num_blocks
    found = [one.spec.rotary.prefix_tokens for one in case.readings() if one.spec.rotary is not None]
    assert found == [first] * blocks + [first + case.config.num_queries] * case.config.num_blocks
    dinov3s(case)


def dinov3s(case: Case) -> None:
    """Called with a picture, that is no square."""
    for _, reading in case.layers():
        _as_dinov3(case, reading.spec.rotary)


def _as_dinov3(case: Case, encoding: RotaryEncoding | None) -> None:
    assert encoding is not None
    patch = case.config.patch_size
    module = getattr(case.modeling, _CENTRED[case.row.model_type])(case.config).eval()
    theirs = module(torch.zeros(1, 3, 3 * patch, 5 * patch))
    ours = hf_tables.cos_sin(encoding, np.indices((3, 5)).reshape(2, -1))
    for mine, found in zip(ours, theirs, strict=True):
        assert np.array_equal(_spread(encoding, mine), found.numpy())
    assert encoding.prefix_tokens - 1 - case.config.num_register_tokens in (0, getattr(case.config, "num_queries", 0))
    q, k = torch.randn(2, 1, 3, encoding.prefix_tokens + 15, encoding.width, generator=torch.Generator().manual_seed(3))
    rotation = Rotation(*(torch.from_numpy(part)[None] for part in ours), "half", "first")
    for given, turned in zip((q, k), case.modeling.apply_rotary_pos_emb(q, k, *theirs), strict=True):
        first = encoding.prefix_tokens
        assert torch.equal(turned[:, :, :first], given[:, :, :first])
        expected = rotate(given[:, :, first:], rotation)
        assert (turned[:, :, first:] - expected).abs().max() <= 2e-7 * 2 * given.abs().max()


def sam3s(case: Case) -> None:
    """The cells that a layer makes for itself: a window's, or the whole picture's, as wide as a window."""
    layer, module = case.modeling.Sam3ViTLayer, case.modeling.Sam3ViTRotaryEmbedding(case.config)
    windows = set()
    for index, reading in case.layers():
        encoding = reading.spec.rotary
        assert encoding is not None
        window = 0 if index in case.config.global_attn_indexes else case.config.window_size
        windows.add(window > 0)
        given = layer.precompute_positions(case.config, window)
        side = round(len(given) ** 0.5)
        theirs = module(torch.zeros(1), given)
        cos, sin = hf_tables.cos_sin(encoding, np.indices((side, side)).reshape(2, -1))
        for mine, found in zip((cos, sin), theirs, strict=True):
            assert np.array_equal(np.repeat(mine, 2, -1), found[0].numpy())
        x = torch.randn(1, 3, side * side, encoding.width, generator=torch.Generator().manual_seed(3))
        found, _ = case.modeling.apply_rotary_pos_emb_2d(x, x, *theirs)
        rotation = Rotation(torch.from_numpy(cos)[None], torch.from_numpy(sin)[None], "interleaved", "first")
        assert (found - rotate(x, rotation)).abs().max() <= 2e-7 * 2 * x.abs().max()
    assert windows == {True, False}


def vjepa2s(case: Case) -> None:
    """A method of its attention turns queries and keys, three coordinates one after the other."""
    ((_, reading),) = case.layers()
    encoding = reading.spec.rotary
    assert encoding is not None
    config = case.config
    attention = case.modeling.VJEPA2RopeAttention(config, config.hidden_size, config.num_attention_heads)
    head_dim = config.hidden_size // config.num_attention_heads
    x = torch.randn(1, 3, CELLS.shape[1], head_dim, generator=torch.Generator().manual_seed(3))
    found = attention.apply_rotary_embeddings(x, [torch.from_numpy(axis) for axis in CELLS])
    cos, sin = (torch.from_numpy(part)[None] for part in hf_tables.cos_sin(encoding, CELLS))
    expected = rotate(x, Rotation(cos, sin, "interleaved", "first", by_members=True))
    assert (found - expected).abs().max() <= 2e-7 * 2 * x.abs().max()
    assert torch.equal(found[..., encoding.width :], x[..., encoding.width :])
    assert (found - x).abs().max() > 0.1


BASE: dict[str, Any] = {"base": {"rope_parameters": {"rope_type": "axial", "rope_theta": 3000.0}}}


def _tower(model_type: str, name: str, apply: Apply = by_token, heads: str = "num_heads", **more: Any) -> Row:
    """The base varied, and the width of a head."""
    return Row(model_type, grid(name, apply), {**BASE, "heads": {heads: 8}}, **more)


VISION = (
    _tower("qwen2_vl_vision", "Qwen2VLVisionRotaryEmbedding"),
    _tower("qwen2_5_vl_vision", "Qwen2_5_VLVisionRotaryEmbedding"),
    _tower("qwen2_5_omni_vision_encoder", "Qwen2_5OmniVisionRotaryEmbedding"),
    _tower("qwen3_vl_vision", "Qwen3VLVisionRotaryEmbedding"),
    _tower("qwen3_vl_moe_vision", "Qwen3VLMoeVisionRotaryEmbedding"),
    _tower("qwen3_5_vision", "Qwen3_5VisionRotaryEmbedding"),
    _tower("qwen3_5_moe_vision", "Qwen3_5MoeVisionRotaryEmbedding"),
    _tower("qwen3_omni_moe_vision_encoder", "Qwen3OmniMoeVisionRotaryEmbedding"),
    _tower("cohere_compass_vision", "CohereCompassVisionRotaryEmbedding"),
    _tower("glm4v_vision", "Glm4vVisionRotaryEmbedding"),
    _tower("glm4v_moe_vision", "Glm4vMoeVisionRotaryEmbedding"),
    _tower("glm_ocr_vision", "GlmOcrVisionRotaryEmbedding"),
    _tower("glm5_next_vision", "Glm5NextVisionRotaryEmbedding"),
    _tower("qwen4_exp_vision", "Qwen4ExpVisionRotaryEmbedding"),
    _tower("exaone4_5_vision", "Exaone4_5_VisionRotaryEmbedding"),
    _tower("lfm3_vl_vision", "Lfm3VlVisionRotaryEmbedding", heads="num_attention_heads"),
    _tower("dots3_note_vision_encoder", "Dots3NoteVisionRotaryEmbedding", heads="num_attention_heads"),
    *(
        Row(
            f"{family}_vision",
            grid(name, told=counted_from_1),
            {**BASE, "heads": {"num_attention_heads": 8}},
        )
        for family, name in (
            ("muse_spark", "MuseSparkVisionRotaryEmbedding"),
            ("muse_glimmer", "MuseGlimmerVisionRotaryEmbedding"),
        )
    ),
    Row(
        "inkling2_vision",
        grid("Inkling2VisionRotaryEmbedding", told=lambda cells: cells + 1),
        {**BASE, "heads": {"num_attention_heads": 8}},
    ),
    _tower("ernie4_5_vl_moe_vision", "Ernie4_5_VLMoeVisionRotaryEmbedding"),
    _tower("video_llama_3_vision", "VideoLlama3VisionRotaryEmbedding", heads="num_attention_heads"),
    _tower("paddleocr_vl_vision", "PaddleOCRVisionRotaryEmbedding", heads="num_attention_heads"),
    _tower("step3p5_vision", "Step3p7VisionRotaryEmbedding", heads="num_attention_heads"),
    _tower("kimi_k25_vision", "Kimi_K25VisionRotaryEmbedding", heads="num_attention_heads"),
    _tower("mlcd_vision_model", "MLCDRotaryEmbedding", in_a_batch, heads="num_attention_heads"),
    _tower("mlcd", "MLCDRotaryEmbedding", in_a_batch, heads="num_attention_heads"),
    Row("pixtral", grid("PixtralVisionRotaryEmbedding", pixtrals), BASE),
    _tower("minimax_m3_vl_vision", "MiniMaxM3VLVisionRotaryEmbedding", minimaxs, heads="num_attention_heads"),
    Row(
        "gemma4_vision",
        grid("Gemma4VisionRotaryEmbedding", gemma4s, batched=True, told=lambda cells: cells.flip(-1)),  # (x, y)
        {**BASE, "heads": {"head_dim": 32}},
    ),
    Row(
        "llama4_vision_model",
        llama4s,
        {
            "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 3000.0}},
            "grid": {"num_attention_heads": 8},
        },
    ),
    Row("dinov3_vit", dinov3s, {"base": {"rope_theta": 30.0}, "registers": {"num_register_tokens": 4}}),
    *(
        Row(
            family,
            grid(name, paired, told=lambda cells: cells.flip(-1)),
            {**BASE, "heads": {"memory_attention_num_attention_heads": 2}},
        )
        for family, name in (
            ("sam2_video", "Sam2VideoVisionRotaryEmbedding"),
            ("edgetam_video", "EdgeTamVideoVisionRotaryEmbedding"),
            ("sam3_tracker_video", "Sam3TrackerVideoVisionRotaryEmbedding"),
        )
    ),
    Row("sam3_vit_model", sam3s, {**BASE, "larger": {"image_size": 700}, "wider windows": {"window_size": 30}}),
    Row(
        "eomt_dinov3",
        joined_late,
        {
            "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
            "queries": {"num_queries": 7, "num_blocks": 3},
        },
    ),
    Row(
        "sapiens2",
        dinov3s,
        {"base": {"rope_theta": 30.0}, "registers": {"num_register_tokens": 2}, "heads": {"num_attention_heads": 8}},
    ),
    Row("vjepa2", vjepa2s, {"heads": {"num_attention_heads": 8}, "width": {"hidden_size": 768}}, part="encoder"),
)
