"""Families with relative biases of their own kinds: what default configs of transformers mean, and what is refused."""

import pytest
import transformers

import portpe
from portpe.config import load_layers, read
from portpe.encodings import (
    AxisBucketsEncoding,
    DebertaEncoding,
    DistanceBankEncoding,
    DistanceBuckets,
    GridVectorsEncoding,
    LearnedAxesEncoding,
    LearnedGridEncoding,
    LogarithmicTemperature,
    ShawEncoding,
    TransformerXlEncoding,
)
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def config_of(model_type, **changes):
    return transformers.CONFIG_MAPPING[model_type](**changes).to_dict()


@pytest.mark.parametrize(
    ("model_type", "scale", "biases"),
    [("layoutlmv2", 1.0, "qvo"), ("layoutxlm", 1.0, "qvo"), ("layoutlmv3", 0.125, "qkvo")],
)
def test_layouts(model_type, scale, biases):
    boxes = DistanceBuckets(num_buckets=64, max_distance=256)
    for spec in load_layers(config_of(model_type)):
        assert spec.bias == (AxisBucketsEncoding(axes=(DistanceBuckets(), boxes, boxes), scale=scale),)
        assert (spec.position_axes, spec.causal, spec.scale, spec.embedding) == (3, False, 0.125, None)
        assert "".join(name for name, has in spec.biases.model_dump().items() if has) == biases
    assert any("hidden_states" in line for line in read(config_of(model_type)).warnings)


def test_inkling():
    readings = [read(config_of("inkling_text", log_scaling_n_floor=1000), layer=layer) for layer in (4, 5)]
    sliding, full = (reading.spec for reading in readings)
    assert sliding.bias == (DistanceBankEncoding(extent=512, width=16),)
    assert full.bias == (DistanceBankEncoding(extent=1024, width=16, tempered=True),)
    assert (sliding.window, full.window) == (512, None)
    assert (sliding.num_kv_heads, full.num_kv_heads) == (16, 8)
    assert (sliding.query_scale, full.query_scale) == (None, LogarithmicTemperature(interval=1000, offset=1, beta=0.1))
    assert {spec.scale for spec in (sliding, full)} == {1 / 128}
    assert all("short convolutions" in reading.beyond for reading in readings)
    assert full.rotary is None


def test_inkling_2_clips_what_mixes_the_bank():
    for model_type, floor in (("inkling2_text", 128000), ("inkling2_loop_text", 8192)):
        full = read(config_of(model_type), layer=5).spec
        assert full.bias == (DistanceBankEncoding(extent=1024, width=16, clip=8.0, tempered=True),)
        assert full.query_scale == LogarithmicTemperature(interval=floor, offset=1, beta=0.1)


@pytest.mark.parametrize(("model_type", "side"), [("sam_vision_model", 64), ("slanext_vision", 32)])
def test_windows_and_whole_pictures(model_type, side):
    specs = load_layers(config_of(model_type))
    for layer, spec in enumerate(specs):
        width = side if layer in (2, 5, 8, 11) else 14
        assert spec.bias == (GridVectorsEncoding(height=width, width=width),)
        assert spec.embedding is None
    assert [spec.bias for spec in load_layers(config_of(model_type, use_rel_pos=False))] == [()] * 12


def test_vitdet_has_the_table_of_its_pretraining():
    config = config_of("vitdet", use_relative_position_embeddings=True, image_size=(96, 128), pretrain_image_size=160)
    first, second = load_layers(config)[:2]
    assert first.embedding == LearnedGridEncoding(grid=(10, 10), width=768)
    assert first.bias == second.bias == (GridVectorsEncoding(height=6, width=8),)
    assert second.embedding is None
    windowed = load_layers({**config, "window_size": 5, "window_block_indices": [0]})[0]
    assert (windowed.embedding, windowed.bias) == (None, (GridVectorsEncoding(height=5, width=5),))


def test_speech():
    def bias(model_type, part=None, **changes):
        return portpe.load_spec({**config_of(model_type), **changes}, part=part).bias

    assert bias("vits") == (ShawEncoding(left=4, right=4, values=True, beyond="nothing"),)
    assert bias("seamless_m4t", "speech") == (TransformerXlEncoding(order="interleaved", contract="conformer"),)
    assert bias("seamless_m4t_v2", "speech") == (ShawEncoding(left=64, right=8),)
    assert bias("seamless_m4t_v2", "speech", position_embeddings_type=None) == ()
    for model_type in ("granite_speech_encoder", "granite_speech_plus_encoder", "granite_speech5_encoder"):
        assert bias(model_type) == (ShawEncoding(left=512, right=512, descending=True),)
    assert bias("sew-d") == (DebertaEncoding(span=256, max_distance=512, share_projections=True, norm_eps=1e-7),)


def test_pix2struct_counts_its_patches_from_1():
    first, second = load_layers(config_of("pix2struct_vision_model"))[:2]
    assert first.embedding == LearnedAxesEncoding(rows=(4096, 4096), width=768, offset=1)
    assert (first.scale, second.embedding) == (1.0, None)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("layoutlmv3", {"rel_pos_bins": 3}, "num_buckets must be >= 4 for bidirectional buckets, got 3"),
        ("inkling_text", {"local_layer_ids": 3}, "local_layer_ids must be a list of integers, got 3"),
        ("inkling_text", {"log_scaling_n_floor": 0}, "log_scaling_n_floor must be an integer >= 1, got 0"),
        ("inkling_text", {"rotary_dim": 8}, "rotary_dim is not a key that portpe knows"),
        ("sam_vision_model", {"global_attn_indexes": [1, "2"]}, "global_attn_indexes must be a list of integers"),
        ("sam_vision_model", {"image_size": 9}, "image_size must hold a patch of 16 x 16, got 9 x 9"),
        ("vitdet", {"pretrain_image_size": 9}, "pretrain_image_size must hold a patch of 16 x 16, got 9 x 9"),
        ("vits", {"window_size": 0}, "window_size must be an integer >= 1, got 0"),
        ("sew-d", {"pos_att_type": ["p2p"]}, "pos_att_type must hold c2p and p2c at most, once each"),
        ("pix2struct_vision_model", {"seq_len": 1}, "rows must be > offset = 1"),
    ],
)
def test_refusals(model_type, changes, message):
    with pytest.raises(SpecError, match=message):
        portpe.load_spec({**config_of(model_type), "layer_types": None, **changes})


def test_the_speech_encoder_of_seamless_is_a_part():
    with pytest.raises(
        SpecError, match="part must be 'encoder' or 'decoder' or 'speech' for model_type 'seamless_m4t'"
    ):
        portpe.load_spec(config_of("seamless_m4t"))
    with pytest.raises(SpecError, match="position_embeddings_type 'rotary' turns hidden states"):
        portpe.load_spec(config_of("seamless_m4t", position_embeddings_type="rotary"), part="speech")
