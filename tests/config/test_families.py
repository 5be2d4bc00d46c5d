"""Every family: transformers' own config class, its saved config.json and a config of the older layout by hand.

The expected fields are worked out from transformers' modelling code, by reading it.
"""

import json

import pytest
import transformers

from portpe.config import load_layers, load_spec, read
from portpe.encodings import (
    LearnedEncoding,
    SinusoidalEncoding,
)
from portpe.errors import SpecError
from portpe.layer_parts import Norm, ProjectionBiases
from tests.config.family_rows import ABSOLUTE, ALIBI, RMS, ROTARY, spec
from tests.config.latent_rows import LATENT_ROWS

transformers.utils.logging.set_verbosity_error()

ROWS = ROTARY | ABSOLUTE | ALIBI | LATENT_ROWS


@pytest.mark.parametrize("name", ROWS)
def test_three_ways_to_give_a_config_give_the_spec_worked_out_by_hand(name, tmp_path):
    cls, keywords, older, expected = ROWS[name]
    config = getattr(transformers, cls)(**keywords)
    assert load_spec(config) == expected
    config.save_pretrained(tmp_path)
    assert load_spec(tmp_path) == expected
    assert load_spec(tmp_path / "config.json") == expected
    (tmp_path / "older.json").write_text(json.dumps(older | {"model_type": config.model_type}))
    assert load_spec(tmp_path / "older.json") == expected


@pytest.mark.parametrize("name", ROWS)
def test_every_key_of_transformers_is_understood_or_listed(name):
    cls, keywords, *_ = ROWS[name]
    config = getattr(transformers, cls)(**keywords)
    reading = read(config)
    assert reading.model_type == config.model_type
    assert reading.num_layers == 4
    for key in ("hidden_size", "d_model", "n_embd", "rope_parameters", "max_position_embeddings", "n_positions"):
        assert key not in reading.ignored
    assert "vocab_size" in reading.ignored


@pytest.mark.parametrize("name", ABSOLUTE)
def test_embeddings_stand_before_layer_0_alone(name):
    cls, keywords, *_ = ABSOLUTE[name]
    for spec_of_layer in load_layers(getattr(transformers, cls)(**keywords))[1:]:
        assert spec_of_layer.embedding is None
        assert spec_of_layer.embedding_projection is None
        assert spec_of_layer.input_norm is None


# The norm that transformers' decoder layer applies before attention, by reading the class.
INPUT_NORMS = {
    "llama": Norm(kind="rms", eps=1e-6),
    "mistral": Norm(kind="rms", eps=1e-6),
    "qwen2": Norm(kind="rms", eps=1e-6),
    "qwen3": RMS,
    "phi": Norm(kind="layer", eps=2e-5, bias=True),
    "phi3": Norm(kind="rms", eps=1e-5),
    "gemma": Norm(kind="rms", eps=1e-6, weight_offset=1.0),
    "gpt_neox": Norm(kind="layer", eps=1e-5, bias=True),
    "gptj": Norm(kind="layer", eps=1e-5, bias=True),
    "cohere": Norm(kind="layer", eps=2e-5),
    "glm": Norm(kind="rms", eps=1.5625e-7),
    "glm4": Norm(kind="rms", eps=1.5625e-7),
    "gpt_oss": Norm(kind="rms", eps=1e-5),
    "bloom": Norm(kind="layer", eps=1e-5, bias=True),
    "mpt": Norm(kind="layer", eps=1e-5),
    "falcon with alibi": Norm(kind="layer", eps=1e-5, bias=True),
}


@pytest.mark.parametrize("name", INPUT_NORMS)
def test_the_input_norm_is_there_when_asked_for(name):
    cls, keywords, *_ = ROWS[name]
    config = getattr(transformers, cls)(**keywords)
    assert read(config, layer=1).spec.input_norm is None
    assert read(config, layer=1, input_norm=True).spec.input_norm == INPUT_NORMS[name]


def test_gpt2_scales_by_head_and_by_layer():
    base = {"model_type": "gpt2", "n_embd": 72, "n_layer": 4, "n_head": 6, "n_positions": 40}
    by_layer = base | {"scale_attn_by_inverse_layer_idx": True}
    assert [spec.scale for spec in load_layers(by_layer)] == [12**-0.5 / layer for layer in (1, 2, 3, 4)]
    assert load_spec(base | {"scale_attn_weights": False}).scale == 1.0
    assert load_spec(by_layer | {"scale_attn_weights": False}, layer=2).scale == 1 / 3


def test_gemma_can_be_bidirectional(llama):
    assert load_spec(llama(model_type="gemma", head_dim=8, use_bidirectional_attention=True)).causal is False
    assert load_spec(llama(model_type="gemma", head_dim=8)).causal is True


def test_a_decoder_that_is_not_causal(llama):
    # transformers 5.24, masking_utils.create_causal_mask: a "power feature" of every decoder
    assert load_spec(llama(is_causal=False)).causal is False
    assert load_spec(llama(is_causal=True)).causal is True
    assert load_spec({"model_type": "gpt2", "is_causal": False}).causal is False
    with pytest.raises(SpecError, match=r"^is_causal must be true where a window is, got false with window 4$"):
        load_spec(llama(model_type="mistral", sliding_window=4, is_causal=False))


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("phi3", {"lm_head_bias": False, "full_attn_mod": 1, "interpolate_factor": 1}),  # Phi-4-mini-instruct
        ("bert", {"pooler_num_attention_heads": 12, "pooler_size_per_head": 128}),  # bert-base-multilingual-cased
        ("opt", {"scale_embeddings": False, "learned_embeddings": True}),  # galactica-125m
    ],
)
def test_keys_of_published_configs_that_do_not_bear_on_attention(model_type, keys):
    assert load_spec({"model_type": model_type, **keys}) == load_spec({"model_type": model_type})


def test_whisper_has_two_stacks(tmp_path):
    sizes = {"d_model": 72, "encoder_layers": 3, "decoder_layers": 2, "max_source_positions": 30}
    config = transformers.WhisperConfig(
        **sizes, encoder_attention_heads=6, decoder_attention_heads=9, max_target_positions=20
    )
    config.save_pretrained(tmp_path)
    qvo = ProjectionBiases(q=True, v=True, o=True)
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    sines = SinusoidalEncoding(width=72, order="sin_cos", denominator="half_minus_one", rows=30)
    encoder = spec(72, 6, 6, 12, 30, causal=False, embedding=sines, input_norm=norm, biases=qvo)
    decoder = spec(72, 9, 9, 8, 20, embedding=LearnedEncoding(rows=20, width=72), input_norm=norm, biases=qvo)
    for source in (config, tmp_path):
        assert load_spec(source, part="encoder") == encoder
        assert load_spec(source, part="decoder") == decoder
        assert len(load_layers(source, part="encoder")) == 3
        assert len(load_layers(source, part="decoder")) == 2
        assert read(source, part="encoder").part == "encoder"


def test_head_dim_of_the_config_goes_before_hidden_over_heads(llama):
    config = llama(model_type="gemma", hidden_size=3072, num_attention_heads=16, num_key_value_heads=16, head_dim=256)
    assert load_spec(config).rotary.width == 256
    assert load_spec(config).hidden_size == 3072


def test_a_null_head_dim_is_hidden_over_heads(llama):
    for kind in ("llama", "qwen3"):
        config = llama(model_type=kind) | {"head_dim": None, "rope_scaling": {"type": "yarn", "factor": 2.0}}
        assert load_spec(config).head_dim == 8


def test_defaults_of_an_architecture_hold_where_a_key_is_absent():
    reading = read({"model_type": "glm", "head_dim": 128})
    assert reading.spec.rotary.width == 64
    assert reading.spec.num_kv_heads == 2
    assert any("hidden_size is absent: 4096" in warning for warning in reading.warnings)
