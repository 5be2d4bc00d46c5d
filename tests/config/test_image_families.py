"""Encoders of images: the grid of a table from sizes in pixels, class tokens, registers, and what is refused."""

import pytest
import transformers

from portpe.config import load_spec, read
from portpe.encodings import LearnedGridEncoding, SinusoidalEncoding
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()

# (grid, tokens with rows before it, tokens without, filter, antialiased, norms before attention, biases)
DEFAULTS = {
    "vit": ((14, 14), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "deit": ((14, 14), 2, 0, "bicubic", False, "input_norm", "qkvo"),
    "vit_mae": ((14, 14), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "vit_msn": ((14, 14), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "ijepa": ((14, 14), 0, 0, "bicubic", False, "input_norm", "qkvo"),
    "dinov2": ((16, 16), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "dinov2_with_registers": ((14, 14), 1, 4, "bicubic", True, "input_norm", "qkvo"),
    "pixio": ((16, 16), 8, 0, "bicubic", False, "input_norm", "qkvo"),
    "flava_image_model": ((14, 14), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "tipsv2_vision_model": ((32, 32), 1, 1, "bilinear", True, "input_norm", "qkvo"),
    "siglip_vision_model": ((14, 14), 0, 0, "bicubic", False, "input_norm", "qkvo"),
    "siglip2_vision_model": ((16, 16), 0, 0, "bilinear", True, "input_norm", "qkvo"),
    "clip_vision_model": ((7, 7), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "clipseg_vision_model": ((7, 7), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "metaclip_2_vision_model": ((7, 7), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "chinese_clip_vision_model": ((7, 7), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "altclip_vision_model": ((7, 7), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "git_vision_model": ((14, 14), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "kosmos_2_vision_model": ((16, 16), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "owlvit_vision_model": ((24, 24), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "owlv2_vision_model": ((48, 48), 1, 0, "bicubic", False, "embedding_norm input_norm", "qkvo"),
    "blip_vision_model": ((24, 24), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "blip_2_vision_model": ((16, 16), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "instructblip_vision_model": ((16, 16), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "instructblipvideo_vision_model": ((16, 16), 1, 0, "bicubic", False, "input_norm", "qkvo"),
    "cosmos3_edge_vision": ((16, 16), 0, 0, "bilinear", True, "input_norm", "qkvo"),
    "granite_docling_vision": ((32, 32), 0, 0, "bicubic", False, "input_norm", "qkvo"),
    "glm_image_vision": ((128, 128), 0, 0, "bilinear", False, "input_norm", "qkvo"),
    "hunyuan_vl_vision": ((128, 128), 0, 0, "bilinear", False, "input_norm", "qkvo"),
    "unlimited_ocr_vision_encoder": ((16, 16), 1, 0, "bicubic", True, "embedding_norm input_norm", "qkvo"),
    "aimv2_vision_model": ((16, 16), 0, 0, "bicubic", False, "input_norm", ""),
}


@pytest.mark.parametrize("model_type", DEFAULTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_default_configs(model_type):
    config = transformers.CONFIG_MAPPING[model_type]()
    spec = load_spec(config)
    table = spec.embedding
    assert isinstance(table, LearnedGridEncoding)
    biases = "".join(name for name in "qkvo" if getattr(spec.biases, name))
    resampling = (table.grid, table.prefix_tokens, table.plain_tokens, table.resize, table.antialias)
    assert (*resampling, " ".join(spec.input_norms), biases) == DEFAULTS[model_type]
    assert not spec.causal
    assert load_spec({"model_type": model_type}) == spec, "defaults differ"
    later = load_spec(config, layer=1)
    assert later.embedding is later.embedding_norm is None


def test_videomae_adds_sinusoids_over_tubes():
    config = {"model_type": "videomae", "num_frames": 8, "tubelet_size": 2, "image_size": [32, 48], "patch_size": 16}
    spec = load_spec(config)
    assert isinstance(spec.embedding, SinusoidalEncoding)
    assert (spec.embedding.order, spec.embedding.rows) == ("interleaved", 4 * 2 * 3)
    assert not spec.biases.k
    assert load_spec(config | {"qv_bias": False}).biases.model_dump() == {"q": False, "k": False, "v": False, "o": True}


def test_an_image_need_not_be_square():
    spec = load_spec({"model_type": "vit", "image_size": [96, 160], "patch_size": [16, 32]})
    assert spec.embedding.grid == (6, 5)
    assert spec.embedding.table_shape == (31, 768)


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("vit", {"image_size": [96]}, r"image_size must be an integer >= 1 or two of them, got \[96\]"),
        ("vit", {"image_size": "224"}, "image_size must be an integer >= 1, got '224'"),
        ("vit", {"image_size": 12}, "image_size must hold a patch of 16 x 16, got 12 x 12"),
        ("siglip2_vision_model", {"num_patches": 250}, "num_patches must be a square, got 250"),
        ("dinov2_with_registers", {"num_register_tokens": -1}, "num_register_tokens must be an integer >= 1, got -1"),
    ],
)
def test_what_is_refused(model_type, keys, message):
    with pytest.raises(SpecError, match=message):
        load_spec({"model_type": model_type, **keys})


def test_towers_of_one_model_are_parts():
    config = transformers.SiglipConfig()
    vision, text = (read(config, part=part) for part in ("vision", "text"))
    assert vision.spec == load_spec(config.vision_config)
    assert text.spec == load_spec(config.text_config)
    with pytest.raises(SpecError, match="part must be 'text' or 'vision' for model_type 'siglip', got None"):
        load_spec(config)
