"""Norms of values, keys that serve as values, cosines scaled by a trained number: what configs and checkpoints say."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from portpe.checkpoint import load_layer
from portpe.config import load_spec, read
from portpe.errors import SpecError
from portpe.layer_parts import Norm
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SIZES = {
    "hidden_size": 20,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "global_head_dim": 8,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text", "gemma4_unified_text", "embedding_gemma2_text"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_values_are_normed_without_a_weight(family):
    reading = read({"model_type": family, "rms_norm_eps": 1e-3})
    assert reading.spec.v_norm == Norm(kind="rms", eps=1e-3, affine=False)
    assert reading.beyond is None


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({"model_type": "gemma3n_text"}, 20),  # 35 layers, of which 15 share
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 0}, 35),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 3}, 32),
        ({"model_type": "gemma4_text"}, 30),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 7}, 23),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_last_layers_take_keys_of_an_earlier_one(config, first):
    layers = 35 if config["model_type"] == "gemma3n_text" else 30
    for layer in {0, first - 1, first, layers - 1} - {layers}:
        beyond = read(config, layer=layer).beyond
        assert beyond == (None if layer < first else "keys and values of an earlier layer"), layer


def test_keys_serve_as_values_where_the_config_says_so(tmp_path):
    """Full layers of the larger Gemma 4: no v_proj, and k_proj projects both."""
    config = SIZES | {"model_type": "gemma4_text", "attention_k_eq_v": True, "num_global_key_value_heads": 3}
    spec = load_spec(config, layer=1)
    assert (spec.num_kv_heads, spec.head_dim) == (3, 8)
    tensors = {
        f"model.layers.1.self_attn.{name}": np.full(shape, number, np.float32)
        for number, (name, shape) in enumerate(weight_shapes(spec).items())
        if name != "v_proj.weight"
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_layer(tmp_path, spec, model_type="gemma4_text", layer=1)
    np.testing.assert_array_equal(weights["v_proj.weight"], weights["k_proj.weight"])
    (tmp_path / "config.json").write_text(json.dumps(config | {"attention_k_eq_v": False}))
    with pytest.raises(SpecError, match=r"checkpoint has no tensor model\.layers\.1\.self_attn\.v_proj\.weight"):
        load_layer(tmp_path, spec, model_type="gemma4_text", layer=1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_scales_of_cosines_are_stored_as_logarithms(tmp_path, dtype):
    """Swin v2: exp(min(stored, ln 100)), for each channel of its head, in float32 at least."""
    config = {"model_type": "swinv2", "embed_dim": 12, "depths": [1], "num_heads": [3], "window_size": 4}
    config |= {"pretrained_window_sizes": [0], "image_size": 16, "patch_size": 2}
    spec = load_spec(config)
    block = "swinv2.encoder.layers.0.blocks.0.attention"
    names = {"q_proj": "self.query", "k_proj": "self.key", "v_proj": "self.value", "o_proj": "output.dense"}
    names |= {"grid_in": "self.continuous_position_bias_mlp.0", "grid_out": "self.continuous_position_bias_mlp.2"}
    tensors = {}
    for name, shape in weight_shapes(spec).items():
        module, _, ending = name.partition(".")
        if module in names:
            tensors[f"{block}.{names[module]}.{ending}"] = np.ones(shape, dtype)
    tensors[f"{block}.self.logit_scale"] = np.array([0.5, -1.0, 6.0], dtype).reshape(3, 1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_layer(tmp_path, spec, model_type="swinv2", layer=0)["q_norm.weight"]
    assert found.dtype == (np.float64 if dtype == np.float64 else np.float32)
    expected = np.repeat([[math.exp(0.5)], [math.exp(-1.0)], [100.0]], 4, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-15 if dtype == np.float64 else 2.0**-23)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"v_norm": {"kind": "rms", "eps": 1e-6, "when": "after"}}, "v_norm.when must be before: nothing rotates"),
        (
            {
                "v_norm": {"kind": "rms", "eps": 1e-6},
                "projection": "mla",
                "num_kv_heads": 6,
                "mla": {"kv_lora_rank": 7, "qk_rope_head_dim": 2},
            },
            "q_norm, k_norm, v_norm and clip_qkv must be left out with mla",
        ),
    ],
)
def test_norms_of_values_that_mean_nothing(changes, message):
    spec = {"portpe_spec": 1, "hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 4}
    with pytest.raises(SpecError, match=message):
        AttentionSpec.from_dict({**spec, "scale": 0.5, **changes})


@pytest.mark.parametrize(("given", "scale"), [({}, 0.707), ({"attention_value_scale": 0.5}, 0.5)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_values_of_mimo_have_a_width_and_a_scale(given, scale):
    spec = load_spec({"model_type": "mimo_v2_flash", "v_head_dim": 96, **given})
    assert (spec.head_dim, spec.v_head_dim, spec.value_scale, spec.sinks) == (192, 96, scale, False)
    assert load_spec({"model_type": "mimo_v2_flash"}, layer=1).sinks
    assert load_spec({"model_type": "mimo_v2_flash", "attention_value_scale": None}).value_scale == 1


def test_latents_have_a_scale_of_their_own():
    spec = {"portpe_spec": 1, "hidden_size": 20, "num_heads": 6, "num_kv_heads": 6, "head_dim": 4, "v_head_dim": 4}
    mla = {"projection": "mla", "mla": {"kv_lora_rank": 7, "qk_rope_head_dim": 2}}
    with pytest.raises(SpecError, match=r"value_scale must be 1 with mla, which has mla\.kv_scale, got 2"):
        AttentionSpec.from_dict({**spec, **mla, "scale": 0.5, "value_scale": 2.0})
