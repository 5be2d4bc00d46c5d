"""Where transformers reads a config in another way than its documentation says: rows of the ledger of divergences."""

import pytest
import torch
import transformers
from transformers.models.cohere2_moe import modeling_cohere2_moe

from portpe import schedules
from portpe.config import load_spec, read

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)

SIZES = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": 7,
    "pad_token_id": 0,
}


def test_phi3_default_length_goes_before_the_one_in_the_block():
    factors = {"short_factor": [1.0] * 12, "long_factor": [2.0] * 12}
    block = {"rope_type": "longrope", "original_max_position_embeddings": 64, **factors}
    config = transformers.Phi3Config(**SIZES, max_position_embeddings=640, rope_parameters=dict(block))
    assert config.rope_parameters["original_max_position_embeddings"] == 4096  # the class's default
    given = {"model_type": "phi3", **SIZES, "max_position_embeddings": 640, "rope_parameters": block}
    assert load_spec(given).rotary.schedule.original_max_position_embeddings == 64
    # what transformers then saves states 4096 at the top as well, and is read so
    assert load_spec(config).rotary.schedule.original_max_position_embeddings == 4096


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_rope_type_that_does_not_exist_is_taken(model_type):
    block = {"rope_type": "foo", "factor": 2.0}
    config = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[model_type]
    assert config(**SIZES, rope_parameters=dict(block)).rope_parameters["rope_type"] == "foo"
    with pytest.raises(ValueError, match="must be one of"):
        read({"model_type": model_type, **SIZES, "rope_parameters": block})


@pytest.mark.parametrize(("name", "attention"), [("Gemma", "sdpa"), ("Gemma", "eager"), ("Gemma2", "eager")])
def test_gemma_bidirectional_attention_is_causal_once_there_is_a_mask(name, attention):
    config = getattr(transformers, f"{name}Config")(**SIZES, head_dim=24, use_bidirectional_attention=True)
    model = getattr(transformers, f"{name}Model")._from_config(config, attn_implementation=attention).double().eval()
    ids = torch.tensor([[3, 4, 5, 6], [3, 4, 5, 2]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    later = ids.clone()
    later[0, -1] = 1

    def first_row(tokens, **more):
        with torch.no_grad():
            return model(input_ids=tokens, use_cache=False, **more).last_hidden_state[0, 0]

    # without a mask the first token sees the last by scaled_dot_product_attention, and never by eager attention
    assert torch.equal(first_row(ids), first_row(later)) is (attention == "eager")
    masked = [first_row(tokens, attention_mask=mask) for tokens in (ids, later)]
    assert torch.equal(*masked)  # with one, it does not
    assert load_spec(config).causal is False


def test_olmo_3_base_at_the_top_reaches_full_layers_alone():
    config = transformers.Olmo3Config(**SIZES, layer_types=["sliding_attention"], rope_theta=20000.0)
    bases = {kind: block["rope_theta"] for kind, block in config.rope_parameters.items()}
    assert bases == {"full_attention": 20000.0, "sliding_attention": 500000.0}
    given = {"model_type": "olmo3", **SIZES, "layer_types": ["sliding_attention"], "rope_theta": 20000.0}
    assert load_spec(given).rotary.schedule.rope_theta == 20000.0


def test_gemma_3_never_applies_its_softcap():
    outputs = []
    for cap in (None, 0.1):
        config = transformers.Gemma3TextConfig(**SIZES, head_dim=24, attn_logit_softcapping=cap)
        torch.manual_seed(0)
        model = transformers.Gemma3TextModel._from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            outputs.append(model(input_ids=torch.tensor([[3, 4, 5, 6]])).last_hidden_state)
    assert torch.equal(*outputs)
    assert load_spec(config).softcap == 0.1


def test_dbrx_base_in_its_attn_config_is_not_read():
    attention = {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 500000.0}
    config = transformers.DbrxConfig(d_model=48, n_heads=4, n_layers=1, attn_config=attention)
    assert config.rope_parameters["rope_theta"] == 10000.0
    given = {"model_type": "dbrx", "d_model": 48, "n_heads": 4, "n_layers": 1, "attn_config": attention}
    assert load_spec(given).rotary.schedule.rope_theta == 500000.0


@pytest.mark.parametrize("name", ["Mixtral", "Ministral", "MiniMax"])
def test_yarn_takes_a_null_head_dim_for_a_number(name):
    from importlib import import_module

    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**SIZES, max_position_embeddings=256, rope_parameters=block)
    module = import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    with pytest.raises(TypeError, match="NoneType"):
        getattr(module, f"{name}RotaryEmbedding")(config)
    assert load_spec(config).rotary.width == 24


def test_jetmoe_norms_ignore_their_epsilon():
    config = transformers.JetMoeConfig(num_hidden_layers=1, rms_norm_eps=1e-2)
    with torch.device("meta"):
        layer = import_jetmoe().JetMoeDecoderLayer(config, 0)
    assert layer.input_layernorm.variance_epsilon == 1e-6
    assert read(config, input_norm=True).spec.input_norm.eps == 1e-2


def import_jetmoe():
    from transformers.models.jetmoe import modeling_jetmoe

    return modeling_jetmoe


def test_minimax_m3_does_not_read_its_rotary_dim():
    config = transformers.models.minimax_m3_vl.MiniMaxM3VLTextConfig(**SIZES, head_dim=24, rotary_dim=8)
    module = transformers.models.minimax_m3_vl.modeling_minimax_m3_vl.MiniMaxM3VLRotaryEmbedding(config)
    assert len(module.inv_freq) == 12  # the whole head
    assert load_spec(config).rotary.width == 8
    config.rope_parameters["partial_rotary_factor"] = 0.5  # what published configs state besides
    assert load_spec(config).rotary.width == 12


@pytest.mark.parametrize("family", ["muse_spark", "muse_glimmer"])
def test_muse_listed_bases_do_not_override_the_one_in_the_block(family):
    module = getattr(transformers.models, family)
    stem = {"muse_spark": "MuseSpark", "muse_glimmer": "MuseGlimmer"}[family]
    config = getattr(module, f"{stem}TextConfig")(**SIZES, head_dim=24, layer_rope_theta=[500.0])
    modeling = getattr(module, f"modeling_{family}")
    frequencies = getattr(modeling, f"{stem}TextRotaryEmbedding")(config).inv_freq
    base = config.rope_parameters["rope_theta"]
    assert base != 500.0
    assert torch.allclose(frequencies, base ** (-torch.arange(12) / 12), rtol=1e-6)
    assert load_spec(config).rotary.schedule.rope_theta == 500.0


DEFAULT_BASES = {
    "apertus": 12000000.0,
    "apertus1p5_text": 12000000.0,
    "cwm": 1000000.0,
    "higgs_audio_v2": 500000.0,
    "ministral3": 1000000.0,
    "mistral4": 10000.0,
}


@pytest.mark.parametrize("model_type", DEFAULT_BASES)
def test_a_base_at_the_top_is_lost_where_a_class_has_a_default_block(model_type):
    base = DEFAULT_BASES[model_type]
    sizes = SIZES | {"max_position_embeddings": 640}
    there = transformers.CONFIG_MAPPING[model_type](**sizes, rope_theta=30000.0)
    assert there.rope_parameters["rope_theta"] == base
    reading = read({"model_type": model_type, **sizes, "rope_theta": 30000.0})
    assert reading.spec.rotary.schedule.rope_theta == 30000.0
    assert reading.spec.rotary.schedule.kind == there.rope_parameters["rope_type"]  # scaled as the block says
    said = [line for line in reading.warnings if "honoured" in line]
    assert [
        line.startswith("rope_theta = 30000.0 is honoured as documented: transformers' own class") for line in said
    ] == [True]
    # of one value there is nothing to say, and a block of the config's own goes before the top in both
    assert not [
        line for line in read({"model_type": model_type, **sizes, "rope_theta": base}).warnings if "honoured" in line
    ]
    temperature = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
    of_queries = temperature if model_type in ("ministral3", "mistral4") else {}
    block = {"rope_type": "default", "rope_theta": 20000.0, **of_queries}
    assert (
        transformers.CONFIG_MAPPING[model_type](**sizes, rope_parameters=dict(block)).rope_parameters["rope_theta"]
        == 20000
    )
    both = {"model_type": model_type, **sizes, "rope_parameters": block, "rope_theta": 30000.0}
    assert load_spec(both).rotary.schedule.rope_theta == 20000.0


def test_cohere2_moe_does_not_read_its_rope_scaling():
    scaling = {"rope_type": "linear", "factor": 4.0}
    sizes = SIZES | {"head_dim": 24, "max_position_embeddings": 640, "rope_theta": 30000.0}
    there = transformers.Cohere2MoeConfig(**sizes, rope_scaling=dict(scaling))
    rotation = modeling_cohere2_moe.Cohere2MoeRotaryEmbedding(there)
    plain = torch.tensor([30000.0 ** (-i / 12) for i in range(12)])
    assert torch.allclose(rotation.inv_freq, plain, rtol=1e-6, atol=0)
    for config in ({"model_type": "cohere2_moe", **sizes, "rope_scaling": scaling}, there):
        reading = read(config)
        assert schedules.inv_freq(reading.spec.rotary) == pytest.approx(
            [30000.0 ** (-i / 12) / 4 for i in range(12)], rel=1e-12
        )
        assert reading.warnings[0].startswith(
            "rope_scaling is honoured as documented: transformers' own class for this"
        )
    # what transformers saves holds both, and they do say different things
    assert there.to_dict()["rope_parameters"] == {"rope_type": "default", "rope_theta": 30000.0}
    assert reading.warnings[1] == "rope_scaling replaces rope_parameters, which says something else"
    unscaled = read(transformers.Cohere2MoeConfig(**sizes))
    assert (unscaled.warnings, unscaled.spec.rotary.schedule.kind) == ((), "default")
