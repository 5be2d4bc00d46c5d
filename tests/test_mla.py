"""Multi-head latent attention: what the configs say, worked by hand, and the forms that it may take."""

import math

import numpy as np
import pytest
import torch

import portpe
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 42,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "q_lora_rank": 14,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "max_position_embeddings": 163840,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}


def config(**changes):
    return {**DEEPSEEK, **changes}


def scaled(mscale, **changes):
    return config(rope_scaling={**YARN, "mscale": mscale, "mscale_all_dim": mscale}, **changes)


def stages_of(spec, tokens=7, seed=0):
    block = Attention(spec, dtype=torch.float64).load(random_weights(spec, seed))
    x = torch.from_numpy(np.random.default_rng(5).standard_normal((2, tokens, spec.hidden_size)))
    return block, block.stages(x, torch.tensor([[3, 0, 70000, 12, 9, 5, 4096][:tokens]]).expand(2, -1))


@pytest.mark.parametrize(("mscale", "multiplier"), [(1.0, 1.8738542070926265), (0.707, 1.5896261651208736)])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_yarn_multiplies_the_scores_and_leaves_cos_and_sin(mscale, multiplier, model_type):
    """g(mscale)^2 = (0.1 mscale ln 40 + 1)^2 stands in the scale; g(mscale) / g(mscale_all_dim) = 1 in the tables."""
    spec = portpe.load_spec(scaled(mscale, model_type=model_type))
    numbers = portpe.tabulate(spec, [0, 5, 100000])
    assert numbers["attention_factor"] == 1.0
    assert numbers["softmax_scale_multiplier"] == multiplier
    assert np.allclose(numbers["cos"] ** 2 + numbers["sin"] ** 2, 1, rtol=0, atol=1e-15)
    assert spec.scale == pytest.approx(18**-0.5 * multiplier, rel=1e-15)


def test_the_multiplier_is_seen_with_two_keys_and_not_with_one():
    plain, spec = portpe.load_spec(config()), portpe.load_spec(scaled(1.0))
    rotary = spec.rotary.model_copy(update={"schedule": plain.rotary.schedule})
    spec = spec.model_copy(update={"rotary": rotary})  # the multiplier alone
    weights = random_weights(plain, 0)
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((1, 2, 42)))
    probs = [Attention(s, dtype=torch.float64).load(weights).stages(x)["probs"][0] for s in (plain, spec)]
    assert torch.equal(probs[0][:, 0], probs[1][:, 0])
    logits = [(p[:, 1, 1] / p[:, 1, 0]).log() for p in probs]
    assert torch.allclose(logits[1], logits[0] * 1.8738542070926265, rtol=1e-12, atol=0)


def test_the_scale_is_that_of_a_head_and_not_of_the_absorbed_latent():
    """192 + 64 channels: 1 / 16. The absorbed form multiplies 512 + 64 channels, and 1 / 24 would be wrong."""
    spec = portpe.load_spec(config(qk_nope_head_dim=192, qk_rope_head_dim=64, kv_lora_rank=512))
    assert spec.scale == 0.0625


def test_absorbing_a_matrix_into_the_queries_changes_no_score():
    """q . (W c) = (W^T q) . c, with the scale of the head."""
    spec = portpe.load_spec(scaled(1.0))
    block, stages = stages_of(spec)
    weights = random_weights(spec, 0)
    x = np.random.default_rng(5).standard_normal((2, 7, 42))
    latent = x @ weights["kv_a_proj_with_mqa.weight"].astype(float).T[:, :20]
    latent = latent / np.sqrt(np.square(latent).mean(-1, keepdims=True) + 1e-6)
    latent = latent * weights["kv_a_layernorm.weight"]
    up = weights["kv_b_proj.weight"].astype(float).reshape(6, 22, 20)[:, :10]
    q, k = stages["q_rotated"].numpy(), stages["k_rotated"].numpy()
    absorbed = np.einsum("bhsn,hnr->bhsr", q[..., :10], up)
    scores = np.einsum("bhsr,btr->bhst", absorbed, latent) + np.einsum("bhsr,btr->bhst", q[..., 10:], k[:, 0, :, 10:])
    assert np.allclose(scores * spec.scale, stages["scores"].numpy(), rtol=1e-10, atol=1e-10)
    assert torch.equal(stages["k_rotated"][:, 0, :, 10:], stages["k_rotated"][:, 5, :, 10:])  # one part for all heads
    assert block.spec.num_kv_heads == 6


def test_the_last_channels_are_turned_and_the_layout_of_the_family_is_cached():
    """V2 leaves pairs as neighbours, V3 writes halves: the same scores from other cached keys."""
    second, third = (portpe.load_spec(config(model_type=name)) for name in ("deepseek_v2", "deepseek_v3"))
    weights = random_weights(second, 0)
    found = []
    x = torch.from_numpy(np.random.default_rng(5).standard_normal((2, 7, 42)))
    positions = torch.tensor([[3, 0, 70000, 12, 9, 5, 4096], [1, 2, 3, 5, 8, 13, 21]])
    for spec in (second, third):
        found.append(Attention(spec, dtype=torch.float64).load(weights).stages(x, positions))
    keys = [stages["present_key"] for stages in found]
    neighbours = keys[0][..., 10:].unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2)
    assert torch.equal(neighbours, keys[1][..., 10:])
    assert not torch.equal(keys[0], keys[1])
    assert torch.equal(keys[0][..., :10], found[0]["k"][..., :10])
    assert torch.allclose(found[0]["scores"], found[1]["scores"], rtol=1e-12, atol=1e-12)
    angle = 70000 * 10000.0 ** (-2 / 8)  # pair 1 at position 70000, by hand
    a, b = found[0]["k"][0, 2, 2, 12:14].tolist()
    turned = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    assert keys[0][0, 2, 2, 12:14].tolist() == pytest.approx(turned, rel=1e-9)
    assert keys[1][0, 2, 2, [11, 15]].tolist() == pytest.approx(turned, rel=1e-9)


def test_weights_have_the_names_and_shapes_of_deepseeks_checkpoints():
    spec = portpe.load_spec(config(attention_bias=True))
    assert weight_shapes(spec) == {
        "q_a_proj.weight": (14, 42),
        "q_a_proj.bias": (14,),
        "kv_a_proj_with_mqa.weight": (28, 42),
        "kv_a_proj_with_mqa.bias": (28,),
        "q_a_layernorm.weight": (14,),
        "q_b_proj.weight": (108, 14),
        "kv_a_layernorm.weight": (20,),
        "kv_b_proj.weight": (132, 20),
        "o_proj.weight": (42, 72),
        "o_proj.bias": (42,),
    }
    direct = weight_shapes(portpe.load_spec(config(q_lora_rank=None)))
    assert direct["q_proj.weight"] == (108, 42)
    assert not {"q_a_proj.weight", "q_b_proj.weight", "q_a_layernorm.weight"} & set(direct)


def test_random_scores_are_several_units_wide():
    for spec in (portpe.load_spec(scaled(1.0)), portpe.load_spec(config(q_lora_rank=None))):
        _, stages = stages_of(spec)
        assert 2 < stages["scores"].std() < 4.5
        assert 0.6 < stages["v"].std() < 1.6


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"])
def test_an_odd_rotated_width_is_an_error(model_type):
    with pytest.raises(SpecError, match=r"^qk_rope_head_dim must be even, got 7; channels are rotated in pairs$"):
        portpe.load_spec(config(model_type=model_type, qk_rope_head_dim=7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {**YARN, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor must leave qk_rope_head_dim = 8",
        ),
        ({"qk_head_dim": 20}, "qk_head_dim must be qk_nope_head_dim \\+ qk_rope_head_dim = 18, got 20"),
        ({"head_dim": 18}, "head_dim must be qk_rope_head_dim = 8 for this model_type, got 18"),
        ({"model_type": "youtu", "head_dim": 2}, "head_dim must be qk_rope_head_dim = 8 for this model_type, got 2"),
        ({"model_type": "axk1", "head_dim": 64}, "head_dim must be qk_rope_head_dim = 8 for this model_type, got 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must equal the 6 query heads"),
        ({"q_lora_rank": 0}, "q_lora_rank must be an integer >= 1, got 0"),
        ({"qk_rope_head_dim": "8"}, "qk_rope_head_dim must be an integer >= 1, got '8'"),
        ({"model_type": "axk1", "q_lora_rank": None}, "q_lora_rank must be an integer >= 1 for this model_type"),
        ({"model_type": "longcat_flash", "mla_scale_q_lora": False}, "mla_scale_q_lora must be True"),
        ({"model_type": "kimi_linear", "layer_types": ["linear_attention"] * 2}, "layer 0 has no attention"),
    ],
)
def test_configs_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(SpecError, match=message) as error:
        portpe.load_spec(config(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projection": "standard"}, "mla must be given exactly with projection 'mla', got one with 'standard'"),
        ({"mla": None}, "mla must be given exactly with projection 'mla', got none with 'mla'"),
        ({"num_kv_heads": 2}, "num_kv_heads must be num_heads = 6 with mla, got 2"),
        ({"head_dim": 8}, "mla.qk_rope_head_dim must be < head_dim = 8, got 8"),
        ({"clip_qkv": 2.0}, "must be left out with mla"),
        ({"biases": {"k": True}}, "biases must be of o alone with mla"),
    ],
)
def test_specs_that_do_not_fit_are_refused(changes, message):
    spec = portpe.load_spec(config()).to_dict()
    with pytest.raises(SpecError, match=message):
        AttentionSpec.from_dict(spec | changes)


@pytest.mark.parametrize("change", [{"width": 6}, {"channels": "first"}])
def test_the_rotation_must_be_that_of_the_shared_channels(change):
    spec = portpe.load_spec(config()).to_dict()
    with pytest.raises(SpecError, match=r"rotary must turn the last 8 channels, mla\.qk_rope_head_dim"):
        AttentionSpec.from_dict(spec | {"rotary": spec["rotary"] | change})


def test_a_spec_goes_through_json_and_a_standard_one_needs_no_word_of_mla():
    spec = portpe.load_spec(scaled(0.707))
    assert AttentionSpec.from_dict(spec.to_dict()) == spec
    plain = portpe.load_spec("llama-3.2-1b").to_dict()
    for absent in ("projection", "mla"):
        del plain[absent]
    assert AttentionSpec.from_dict(plain).projection == "standard"


def test_an_indexer_that_would_have_to_choose_is_not_exported_and_may_be_let_pass(tmp_path):
    source = config(model_type="deepseek_v32", index_topk=2048)
    with pytest.warns(UserWarning, match="has an indexer that chooses 2048 keys, which a spec cannot say"):
        found = portpe.load_spec(source)
    assert found == portpe.load_spec(config()).model_copy(update={"beyond": "an indexer that chooses 2048 keys"})
    with pytest.raises(SpecError, match="has an indexer that chooses 2048 keys, which no block carries"):
        portpe.export(source, tmp_path / "bundle")
    with pytest.warns(UserWarning, match="every key is seen, as in the model while there are at most 2048"):
        spec = portpe.load_spec(source, ignore_keys=["index_topk"])
    assert spec == portpe.load_spec(config())
    assert portpe.load_spec(source | {"index_topk": 163840}) == spec


def test_names_of_one_model():
    """Kimi K2 and Sarvam's MLA models are deepseek_v3 under another name (and yarn under another one)."""
    spec = portpe.load_spec(scaled(1.0))
    assert portpe.load_spec(scaled(1.0, model_type="kimi_k2")) == spec
    sarvam = scaled(1.0, model_type="sarvam_mla")
    sarvam["rope_scaling"]["type"] = "deepseek_yarn"
    assert portpe.load_spec(sarvam) == spec


def test_longcat_scales_by_the_roots_of_hidden_over_rank_and_attends_twice_a_layer():
    layers = portpe.load_layers(config(model_type="longcat_flash", num_layers=2))
    assert len(layers) == 4
    assert layers[0].mla.q_scale == math.sqrt(3)
    assert layers[0].mla.kv_scale == math.sqrt(42 / 20)


def test_kimi_linear_has_no_rotation_and_names_its_layers_from_one():
    linear = {"full_attn_layers": [2, 4], "kda_layers": [1, 3]}
    source = config(
        model_type="kimi_linear", num_hidden_layers=4, linear_attn_config=linear, max_position_embeddings=900
    )
    spec = portpe.load_spec(source, layer=1)
    assert spec.rotary is None
    assert spec.mla.qk_rope_head_dim == 8
    assert spec.max_position_embeddings == 900
    with pytest.raises(SpecError, match="layer 2 has no attention: it is of type 'linear_attention'"):
        portpe.load_spec(source, layer=2)
