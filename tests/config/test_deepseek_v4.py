"""DeepSeek V4's two layouts of rope keys, by hand: older ones scale the layers with compressed keys alone."""

import pytest

import portpe
from portpe.config import read
from portpe.errors import SpecError

SIZES = {
    "model_type": "deepseek_v4",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}
YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 256, "beta_fast": 32, "beta_slow": 1}
OLDER = SIZES | {
    "qk_rope_head_dim": 8,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": YARN,
    "compress_ratios": [0, 0, 4, 128],
    "index_topk": 512,
    "num_hash_layers": 1,
}


@pytest.mark.filterwarnings("ignore:.*has .*values that are its keys.*")
def test_older_keys():
    layers = portpe.load_layers(OLDER)
    assert [layer.rotary.schedule.kind for layer in layers] == ["default", "default", "yarn", "yarn"]
    assert [layer.rotary.schedule.rope_theta for layer in layers] == [10000, 10000, 160000, 160000]
    for layer in layers:
        assert (layer.rotary.width, layer.rotary.channels, layer.rotary.pairing) == (8, "last", "interleaved")
        assert layer.rotary.magnitude == 1.0  # its yarn leaves cos and sin as long as they are
        assert layer.window == 128
    assert layers[2].rotary.schedule.factor == 16


@pytest.mark.filterwarnings("ignore:.*has .*values that are its keys.*")
def test_newer_keys_and_the_default_order_of_layers():
    main = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25}
    compress = {"rope_type": "linear", "factor": 2.0, "rope_theta": 7000.0, "partial_rotary_factor": 0.5}
    source = SIZES | {"rope_parameters": {"main": main, "compress": compress}}
    assert [layer.rotary.width for layer in portpe.load_layers(source)] == [16] * 4
    sliding = portpe.load_spec(source | {"layer_types": ["sliding_attention"] * 4}, layer=3)
    assert (sliding.rotary.width, sliding.rotary.schedule.rope_theta) == (8, 5000.0)


def test_what_else_it_has_is_named():
    assert "compressed keys" in read(OLDER, layer=2).beyond
    assert (
        read(OLDER, layer=0).beyond == "values that are its keys and are turned back, and a grouped output projection"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 0, 8, 128]}, "layer 2 must be of type sliding_attention, compressed_sparse_attention"),
        ({"compress_ratios": [0]}, "compress_ratios must list one for each of the 4 layers"),
        ({"rope_scaling": {**YARN, "nonsense": 1}}, "nonsense is not a key that portpe knows"),
        ({"qk_rope_head_dim": 7}, "the rotary width must be even, got 7"),
    ],
)
def test_configs_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        portpe.load_spec(OLDER | changes, layer=2)
