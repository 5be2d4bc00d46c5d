"""Towers with tables over patches: what the default config of transformers' class means, layer by layer."""

import pytest
import transformers

from portpe.config import load_layers, load_spec, read, read_layers
from portpe.config.patch_families import PATCH_FAMILIES
from portpe.config.staged_families import STAGED_FAMILIES
from portpe.config.video_families import VIDEO_FAMILIES
from portpe.encodings import LearnedAxesEncoding, LearnedGridEncoding
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()

# layers with a table and what it is, norms before the first attention, biases, what the first layer has besides
DEFAULTS = {
    "bridgetower_vision_model": ({0: "18x18 bicubic 1+0"}, "embedding_norm input_norm", "qkvo", None),
    "xclip_vision_model": ({0: "7x7 bicubic 1+0"}, "embedding_norm input_norm", "qkvo", "a message between frames"),
    "groupvit_vision_model": ({0: "14x14 bicubic 0+0"}, "input_norm", "qkvo", "group tokens behind its patches"),
    "vivit": ({0: "3137 rows"}, "input_norm", "qkvo", None),
    "timesformer": ({0: "1569 rows"}, "input_norm", "qkvo", "attention over frames"),
    "videoprism_vision_model": (
        {0: "16x16 bilinear antialiased 0+0", 12: "16x1 bilinear antialiased 0+0"},
        "input_norm",
        "qkvo",
        None,
    ),
    "eomt": ({0: "40x40 bicubic 0+5"}, "input_norm", "qkvo", None),
    "videomt": ({0: "40x40 bicubic 0+5"}, "input_norm", "qkvo", None),
    "idefics2_vision": ({0: "7x7 nearest 0+0"}, "input_norm", "qkvo", None),
    "idefics3_vision": ({0: "7x7 nearest 0+0"}, "input_norm", "qkvo", None),
    "smolvlm_vision": ({0: "7x7 nearest 0+0"}, "input_norm", "qkvo", None),
    "minicpmv4_6_vision": ({0: "14x14 nearest 0+0"}, "input_norm", "qkvo", None),
    "minicpmv4_7_vision": ({0: "14x14 nearest 0+0"}, "input_norm", "qkvo", None),
    "minicpm_ocr_vision": ({0: "14x14 nearest 0+0"}, "input_norm", "qkvo", None),
    "internvl_vision": ({0: "32x32 bicubic 1+0"}, "input_norm", "o", None),
    "qianfan_ocr_vision": ({0: "32x32 bicubic 1+0"}, "input_norm", "qkvo", None),
    "janus_vision_model": ({0: "24x24 bicubic 0+0"}, "input_norm", "qkvo", None),
    "ovis2_vision": ({0: "16x16 bicubic 0+0"}, "input_norm", "", None),
    "radio": ({0: "128x128 bilinear squared 0+10"}, "input_norm", "qkvo", None),
    "rf_detr_dinov2": ({0: "16x16 bicubic antialiased 1+0"}, "input_norm", "qkvo", "windows, each with a class token"),
    "lw_detr_vit": ({0: "14x14 bicubic 0+0"}, "input_norm", "qvo", None),
    "kosmos_2_5_vision_model": ({0: "4096 + 4096 rows from 1"}, "input_norm", "", None),
    "vitpose_backbone": ({0: "16x12 bicubic 0+0"}, "input_norm", "qkvo", None),
    "mgp-str": ({0: "8x32 bicubic 1+0"}, "input_norm", "qkvo", None),
    "hiera": ({0: "56x56 bicubic 0+0"}, "input_norm", "qkvo", "units of cells"),
    "pvt": (
        {
            0: "56x56 bicubic 0+0",
            2: "28x28 bicubic 0+0",
            4: "14x14 bicubic 0+0",
            6: "7x7 bicubic 1+0",
        },
        "input_norm",
        "qkvo",
        "keys of fewer patches",
    ),
    "pvt_v2": ({}, "", "qkvo", "keys of fewer patches"),
    "segformer": ({}, "", "qkvo", "keys of fewer patches"),
    "glpn": ({}, "", "qkvo", "keys of fewer patches"),
    "mobilevit": ({}, "", "qkvo", None),
}


def told(table):
    if isinstance(table, LearnedAxesEncoding):
        return f"{' + '.join(map(str, table.rows))} rows from {table.offset}"
    if not isinstance(table, LearnedGridEncoding):
        return f"{table.rows} rows"
    words = [f"{table.grid[0]}x{table.grid[1]}", table.resize]
    words += ["antialiased"] * table.antialias + ["squared"] * table.square
    return " ".join([*words, f"{table.prefix_tokens}+{table.plain_tokens}"])


@pytest.mark.parametrize("model_type", DEFAULTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_default_configs(model_type):
    layers = read_layers(transformers.CONFIG_MAPPING[model_type]())
    first = layers[0].spec
    tables, norms, biases, beyond = DEFAULTS[model_type]
    assert {one.layer: told(one.spec.embedding) for one in layers if one.spec.embedding} == tables
    assert " ".join(first.input_norms) == norms
    assert "".join(name for name in "qkvo" if getattr(first.biases, name)) == biases
    assert (layers[0].beyond or "").startswith(beyond or "")
    assert (layers[0].beyond is None) == (beyond is None)
    assert not any(one.spec.causal for one in layers)
    assert load_layers({"model_type": model_type}) == [one.spec for one in layers], "defaults differ"


def test_every_family_of_this_kind_is_listed():
    families = (*PATCH_FAMILIES, *VIDEO_FAMILIES, *STAGED_FAMILIES)
    assert {family.model_type for family in families} == set(DEFAULTS)


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("vivit", {"tubelet_size": [2, 16]}, r"tubelet_size must be three integers >= 1, got \[2, 16\]"),
        ("vivit", {"num_frames": 1}, "num_frames must be >= 2, its part of tubelet_size, got 1"),
        (
            "timesformer",
            {"attention_type": "time_only"},
            "attention_type must be one of divided_space_time, .*",
        ),
        ("radio", {"max_img_size": 8}, "max_img_size must be >= patch_size = 16, got 8"),
        ("lw_detr_vit", {"pretrain_image_size": [224, 160]}, "pretrain_image_size must be square, got 14 x 10 patches"),
        ("lw_detr_vit", {"window_block_indices": "0"}, "window_block_indices must list numbers of layers, got '0'"),
        ("internvl_vision", {"norm_type": "batch"}, "norm_type must be 'layer_norm' or 'rms_norm', got 'batch'"),
        ("janus_vision_model", {"use_qk_norm": True}, "use_qk_norm must be False for model_type 'janus_vision_model'"),
        ("mgp-str", {"distilled": True}, "distilled must be False for model_type 'mgp-str', got True"),
        ("pvt_v2", {"linear_attention": True}, "linear_attention must be False for model_type 'pvt_v2', got True"),
        ("pvt", {"image_size": 3}, "image_size must leave a patch of 4 to stage 0, got 3"),
        ("hiera", {"image_size": [2, 224]}, r"image_size must be >= patch_stride, got \(2, 224\) with \(4, 4\)"),
        ("mobilevit", {"hidden_sizes": [144, 192]}, r"hidden_sizes must be three integers, got \[144, 192\]"),
        ("segformer", {"num_attention_heads": [1, 2]}, "num_attention_heads must have an entry for each of 4 depths"),
    ],
)
def test_what_is_refused(model_type, keys, message):
    with pytest.raises(SpecError, match=message):
        load_spec({"model_type": model_type, **keys})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_windows_of_lw_detr_are_of_the_listed_layers():
    config = {"model_type": "lw_detr_vit", "window_block_indices": [1]}
    assert read(config, layer=0).beyond is None
    assert read(config, layer=1).beyond == "windows, in each of which a token sees its own"
    assert read({"model_type": "rf_detr_dinov2", "num_windows": 1}).beyond is None
    assert read({"model_type": "timesformer", "attention_type": "joint_space_time"}).beyond is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_table_can_be_switched_off():
    for model_type in ("internvl_vision", "lw_detr_vit"):
        assert load_spec({"model_type": model_type, "use_absolute_position_embeddings": False}).embedding is None
