"""Stacks whose attention is joined with something else: what is read of them, and what is said to be missing."""

import pytest

import portpe
from portpe.config import load_spec, read, read_layers
from portpe.errors import SpecError
from portpe.layer_parts import Norm

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(
    ("family", "beyond"),
    [
        ("t5gemma2_decoder", "keys and values of the encoder beside its own"),
        ("diffusion_gemma_text", "two stacks on one set of weights"),
        ("unlimited_ocr_text", "a window that shows the prompt besides"),
        ("deepseek_ocr2_encoder", "patches that see each other both ways"),
        ("zaya", "queries and keys of a convolution over tokens"),
        ("dory", "trained scales of its cosines and of its gate"),
    ],
)
def test_positions_are_read_and_the_rest_is_said(family, beyond, tmp_path):
    reading = read({"model_type": family})
    assert reading.spec.rotary is not None
    assert reading.beyond.startswith(beyond)
    with pytest.raises(SpecError, match=f"the layer's attention has {beyond}.*which no block carries"):
        portpe.export({"model_type": family}, tmp_path / "out")


def test_an_uneven_window_is_said_and_an_even_reach_is_read():
    """T5Gemma 2's encoder: (w + 1) // 2 - 1 back and w // 2 ahead, so 2 and 2 for 5 but 1 and 2 for 4."""
    config = {"model_type": "t5gemma2_text", "sliding_window": 5}
    reading = read(config)
    assert (reading.beyond, reading.spec.causal, reading.spec.window_radius) == (None, False, 2)
    assert read(config | {"sliding_window": 4}).beyond == "a window that reaches one token farther ahead than back"
    assert read(config | {"sliding_window": 4}, layer=5).beyond is None  # a full layer
    with pytest.raises(SpecError, match="attn_logit_softcapping must be left out for model_type 't5gemma2_text'"):
        read(config | {"attn_logit_softcapping": 50.0})


def test_full_layers_of_diffusion_gemma_have_heads_of_their_own():
    config = {"model_type": "diffusion_gemma_text", "num_global_key_value_heads": 2}
    sliding, full = (load_spec(config, layer=layer) for layer in (0, 5))
    assert (sliding.num_kv_heads, sliding.head_dim) == (4, 256)
    assert (full.num_kv_heads, full.head_dim) == (2, 512)
    assert full.v_norm == Norm(kind="rms", eps=1e-6, affine=False)
    assert load_spec({"model_type": "diffusion_gemma_text"}, layer=5).num_kv_heads == 4


def test_layers_of_dory_by_pairs_of_blocks():
    """A saved config lists attention and MLP as separate blocks, and counts both."""
    kinds = ["sliding_attention", "mlp", "full_attention", "mlp", "full_attention", "mlp"]
    config = {"model_type": "dory", "layer_types": kinds, "num_hidden_layers": 6, "sliding_window": 7}
    readings = read_layers(config)
    assert [reading.spec.window for reading in readings] == [7, None, None]
    assert [reading.spec.rotary.schedule.rope_theta for reading in readings] == [1e4, 1e7, 1e7]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"layer_types": ["hybrid", "full_attention"]}, r"layer_types\[1\] must be 'hybrid' or 'hybrid_sliding'"),
        ({"layer_types": ["hybrid"]}, "layer_types must list one for each of the 2 layers"),
        ({"layer_types": ["hybrid", "hybrid_sliding"]}, "sliding_window is required and missing: layer 1"),
        ({"rope_parameters": {"hybrid_sliding": {}}}, "rope_parameters must hold a block for 'hybrid'"),
        ({"rope_parameters": {"hybrid": {}, "theta": 3.0}}, "rope_parameters must hold a block for 'hybrid'"),
    ],
)
def test_kinds_of_zaya_that_do_not_fit(more, message):
    with pytest.raises(SpecError, match=message):
        read({"model_type": "zaya", "num_hidden_layers": 2, **more}, layer=0 if "rope_parameters" in more else 1)


def test_zaya_has_a_base_for_each_kind_and_a_stray_key():
    blocks = {
        "hybrid": {"rope_theta": 3e4, "partial_rotary_factor": 0.25},
        "hybrid_sliding": {},
        "rope_type": "default",
    }
    config = {"model_type": "zaya", "num_hidden_layers": 2, "layer_types": ["hybrid", "hybrid_sliding"]}
    specs = [load_spec(config | {"sliding_window": 5, "rope_parameters": blocks}, layer=layer) for layer in (0, 1)]
    assert [(spec.rotary.schedule.rope_theta, spec.rotary.width, spec.window) for spec in specs] == [
        (3e4, 32, None),
        (1e4, 64, 5),
    ]
