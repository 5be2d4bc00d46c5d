"""Families with positions in their embeddings: what the default config of transformers' class means, by its code.

The numbers of most are compared in tests/reference, layer by layer; here stand the rows, norms and biases.
"""

import warnings

import pytest
import transformers

from portpe.config import load_layers, load_spec, read
from portpe.config.families import FAMILIES
from portpe.encodings import LearnedEncoding, LearnedGridEncoding, RotaryEncoding
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()

# (model_type, part): (table of layer 0, norms before its attention, causal, biases, multiplier of the embeddings)
ABSOLUTE_FAMILIES = {
    ("bert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("bert-generation", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("big_bird", None): ("learned 4096+0", "input_norm", False, "qkvo", None),
    ("ernie", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("roc_bert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("splinter", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("visual_bert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("layoutlm", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("tapas", None): ("learned 1024+0", "input_norm", False, "qkvo", None),
    ("megatron-bert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("electra", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("rembert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("albert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("distilbert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("roberta", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("camembert", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("xlm-roberta", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("data2vec-text", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("markuplm", None): ("learned 512+1", "input_norm", False, "qkvo", None),
    ("xlm-roberta-xl", None): ("learned 514+2", "input_norm", False, "qkvo", None),
    ("roberta-prelayernorm", None): ("learned 512+2", "embedding_norm input_norm", False, "qkvo", None),
    ("xmod", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("longformer", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("esm", None): ("learned 1026+2", "input_norm", False, "qkvo", None),
    ("gpt2", None): ("learned 1024+0", "input_norm", True, "qkvo", None),
    ("imagegpt", None): ("learned 1024+0", "input_norm", True, "qkvo", None),
    ("gpt_bigcode", None): ("learned 1024+0", "input_norm", True, "qkvo", None),
    ("openai-gpt", None): ("learned 512+0", "", True, "qkvo", None),
    ("gpt_neo", None): ("learned 2048+0", "input_norm", True, "o", None),
    ("opt", None): ("learned 2050+2", "input_norm", True, "qkvo", None),
    ("biogpt", None): ("learned 1026+2", "input_norm", True, "qkvo", 32.0),
    ("xglm", None): ("sin_cos half_minus_one +2 None", "input_norm", True, "qkvo", 32.0),
    ("ctrl", None): ("sin_cos half +0 256", "input_norm", True, "qkvo", 1280**0.5),
    ("xlm", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("flaubert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("trocr", None): ("learned 514+2", "input_norm", True, "qkvo", None),
    ("musicgen_decoder", None): ("cos_sin half_minus_one +0 None", "input_norm", True, "", None),
    ("musicgen_melody_decoder", None): ("cos_sin half_minus_one +0 None", "input_norm", True, "", None),
    ("pp_formulanet_text", None): ("learned 2562+2", "embedding_norm input_norm", True, "qkvo", 512**0.5),
    ("bart", "encoder"): ("learned 1026+2", "input_norm", False, "qkvo", None),
    ("bart", "decoder"): ("learned 1026+2", "input_norm", True, "qkvo", None),
    ("mvp", "encoder"): ("learned 1026+2", "input_norm", False, "qkvo", None),
    ("mvp", "decoder"): ("learned 1026+2", "input_norm", True, "qkvo", None),
    ("plbart", "encoder"): ("learned 1026+2", "input_norm", False, "qkvo", 768**0.5),
    ("plbart", "decoder"): ("learned 1026+2", "input_norm", True, "qkvo", 768**0.5),
    ("mbart", "encoder"): ("learned 1026+2", "embedding_norm input_norm", False, "qkvo", None),
    ("mbart", "decoder"): ("learned 1026+2", "embedding_norm input_norm", True, "qkvo", None),
    ("blenderbot", "encoder"): ("learned 128+0", "input_norm", False, "qkvo", None),
    ("blenderbot", "decoder"): ("learned 128+0", "input_norm", True, "qkvo", None),
    ("blenderbot-small", "encoder"): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("blenderbot-small", "decoder"): ("learned 512+0", "", True, "qkvo", None),
    ("bigbird_pegasus", "encoder"): ("learned 4096+0", "input_norm", False, "", 32.0),
    ("bigbird_pegasus", "decoder"): ("learned 4096+0", "input_norm", True, "", 32.0),
    ("led", "encoder"): ("learned 16384+0", "input_norm", False, "qkvo", None),
    ("led", "decoder"): ("learned 1024+0", "input_norm", True, "qkvo", None),
    ("marian", "encoder"): ("sin_cos half +0 1024", "", False, "qkvo", None),
    ("marian", "decoder"): ("sin_cos half +0 1024", "", True, "qkvo", None),
    ("pegasus", "encoder"): ("sin_cos half +0 1024", "input_norm", False, "qkvo", None),
    ("pegasus", "decoder"): ("sin_cos half +0 1024", "input_norm", True, "qkvo", None),
    ("pegasus_x", "decoder"): ("sin_cos half_minus_one +0 None", "input_norm", True, "", 32.0),
    ("m2m_100", "encoder"): ("sin_cos half_minus_one +2 None", "input_norm", False, "qkvo", 32.0),
    ("m2m_100", "decoder"): ("sin_cos half_minus_one +2 None", "input_norm", True, "qkvo", 32.0),
    ("nllb-moe", "encoder"): ("sin_cos half_minus_one +2 None", "input_norm", False, "qkvo", 32.0),
    ("nllb-moe", "decoder"): ("sin_cos half_minus_one +2 None", "input_norm", True, "qkvo", 32.0),
    ("fsmt", "encoder"): ("sin_cos half_minus_one +2 None", "", False, "qkvo", 32.0),
    ("fsmt", "decoder"): ("sin_cos half_minus_one +2 None", "", True, "qkvo", 32.0),
    ("speech_to_text", "encoder"): ("sin_cos half_minus_one +2 None", "input_norm", False, "qkvo", 16.0),
    ("speech_to_text", "decoder"): ("sin_cos half_minus_one +2 None", "input_norm", True, "qkvo", 16.0),
    ("prophetnet", "encoder"): ("learned 512+1", "input_norm", False, "qkvo", None),
    ("informer", "encoder"): ("sin_cos half +0 14", "input_norm", False, "qkvo", None),
    ("informer", "decoder"): ("sin_cos half +5 14", "input_norm", True, "qkvo", None),
    ("time_series_transformer", "encoder"): ("sin_cos half +0 14", "input_norm", False, "qkvo", None),
    ("time_series_transformer", "decoder"): ("sin_cos half +5 14", "input_norm", True, "qkvo", None),
    ("whisper", "encoder"): ("sin_cos half_minus_one +0 1500", "input_norm", False, "qvo", None),
    ("whisper", "decoder"): ("learned 448+0", "input_norm", True, "qvo", None),
    ("clip_text_model", None): ("learned 77+0", "input_norm", True, "qkvo", None),
    ("clipseg_text_model", None): ("learned 77+0", "input_norm", True, "qkvo", None),
    ("metaclip_2_text_model", None): ("learned 77+0", "input_norm", True, "qkvo", None),
    ("xclip_text_model", None): ("learned 77+0", "input_norm", True, "qkvo", None),
    ("groupvit_text_model", None): ("learned 77+0", "input_norm", True, "qkvo", None),
    ("owlvit_text_model", None): ("learned 16+0", "input_norm", True, "qkvo", None),
    ("owlv2_text_model", None): ("learned 16+0", "input_norm", True, "qkvo", None),
    ("aimv2_text_model", None): ("learned 77+0", "input_norm", True, "", None),
    ("siglip_text_model", None): ("learned 64+0", "input_norm", False, "qkvo", None),
    ("siglip2_text_model", None): ("learned 64+0", "input_norm", False, "qkvo", None),
    ("tipsv2_text_model", None): ("sin_cos half_minus_one +0 64", "input_norm", False, "qkvo", 768**0.5),
    ("chinese_clip_text_model", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("align_text_model", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("flava_text_model", None): ("learned 512+0", "embedding_norm input_norm", False, "qkvo", None),
    ("altclip_text_model", None): ("learned 514+2", "input_norm", False, "qkvo", None),
    ("clap_text_model", None): ("learned 514+2", "input_norm", False, "qkvo", None),
    ("bridgetower_text_model", None): ("learned 514+2", "input_norm", False, "qkvo", None),
    ("qwen2_audio_encoder", None): ("learned 1500+0", "input_norm", False, "qvo", None),
    ("qwen2_5_omni_audio_encoder", None): ("sin_cos half_minus_one +0 1500", "input_norm", False, "qvo", None),
    ("qwen3_omni_moe_audio_encoder", None): ("sin_cos half_minus_one +0 1500", "input_norm", False, "qkvo", None),
    ("voxtral_encoder", None): ("learned 1500+0", "input_norm", False, "qvo", None),
    ("audioflamingo3_encoder", None): ("learned 1500+0", "input_norm", False, "qvo", None),
    ("canary_decoder", None): (
        "sin_cos half_minus_one +0 1024",
        "embedding_norm input_norm",
        True,
        "qkvo",
        None,
    ),
    ("cohere_asr", None): ("learned 1024+0", "embedding_norm input_norm", True, "qkvo", None),
    ("luke", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("ibert", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("lilt", None): ("learned 512+1", "input_norm", False, "qkvo", None),
    ("bros", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("lxmert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("mobilebert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("squeezebert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("convbert", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("nystromformer", None): ("learned 512+2", "input_norm", False, "qkvo", None),
    ("mra", None): ("learned 514+2", "input_norm", False, "qkvo", None),
    ("yoso", None): ("learned 4098+2", "input_norm", False, "qkvo", None),
    ("canine", None): ("learned 16384+0", "input_norm", False, "qkvo", None),
    ("blip_text_model", None): ("learned 512+0", "input_norm", True, "qkvo", None),
    ("blip_2_qformer", None): ("", "", False, "qkvo", None),
    ("instructblip_qformer", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("instructblipvideo_qformer", None): ("learned 512+0", "input_norm", False, "qkvo", None),
    ("kosmos_2_text_model", None): ("sin_cos half_minus_one +2 None", "input_norm", True, "qkvo", 2048**0.5),
    ("kosmos_2_5_text_model", None): ("sin_cos half_minus_one +2 None", "input_norm", True, "qkvo", 1536**0.5),
    ("videoprism_text_model", None): ("sin_cos half +0 64", "input_norm", True, "qkvo", 768**0.5),
    ("sam3_lite_text_text_model", None): ("grid (77, 1)", "input_norm", False, "qkvo", None),
    ("audio-spectrogram-transformer", None): ("learned 1214+0", "input_norm", False, "qkvo", None),
    ("qwen3_asr_encoder", None): ("sin_cos half_minus_one +0 13", "input_norm", False, "qkvo", None),
    ("fun_asr_nano_encoder", None): ("sin_cos half_minus_one +1 2049", "input_norm", False, "qkvo", 512**0.5),
    ("moss_transcribe_diarize_audio", None): ("learned 1500+0", "input_norm", False, "qvo", None),
    ("clvp_encoder", None): ("", "", False, "o", None),
    ("clvp_decoder", None): ("learned 608+0", "input_norm", True, "qkvo", None),
    ("timesfm", None): ("", "", True, "qkvo", None),
    ("patchtst", None): ("learned 32+0", "", False, "qkvo", None),
    ("autoformer", "encoder"): ("sin_cos half +0 24", "input_norm", False, "qkvo", None),
    ("autoformer", "decoder"): ("sin_cos half +5 24", "input_norm", True, "qkvo", None),
    ("decision_transformer", None): ("learned 4096+0", "embedding_norm input_norm", True, "qkvo", None),
    ("reformer", None): ("learned 4096+0", "input_norm", False, "", None),
}
# What a config must say, because the class's default is another kind of attention or no model at all.
NEEDED = {
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "informer": {"prediction_length": 9, "context_length": 5, "attention_type": "full"},
    "time_series_transformer": {"prediction_length": 9, "context_length": 5},
    "esm": {"pad_token_id": 1},
    "autoformer": {"prediction_length": 9, "context_length": 15},
    "sam3_lite_text_text_model": {"use_repmixer_blocks": False},
}


def config_of(model_type, **changes):
    return transformers.CONFIG_MAPPING[model_type](**{**NEEDED.get(model_type, {}), **changes})


def table_of(spec):
    encoding = spec.embedding
    if encoding is None:
        return ""
    if isinstance(encoding, LearnedGridEncoding):
        return f"grid {encoding.grid}"
    if isinstance(encoding, LearnedEncoding):
        return f"learned {encoding.rows}+{encoding.offset}"
    return f"{encoding.order} {encoding.denominator} +{encoding.offset} {encoding.rows}"


@pytest.mark.parametrize(("model_type", "part"), ABSOLUTE_FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_default_configs(model_type, part):
    config = config_of(model_type)
    spec = load_spec(config, part=part)
    biases = "".join(name for name in "qkvo" if getattr(spec.biases, name))
    found = (table_of(spec), " ".join(spec.input_norms), spec.causal, biases, spec.embed_scale)
    assert found == ABSOLUTE_FAMILIES[model_type, part]
    assert load_spec({"model_type": model_type, **NEEDED.get(model_type, {})}, part=part) == spec, "defaults differ"


@pytest.mark.parametrize(("model_type", "part"), ABSOLUTE_FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_layers_after_the_first_have_no_positions(model_type, part):
    later = load_spec(config_of(model_type), layer=1, part=part)
    assert later.embedding is later.embedding_norm is later.embedding_projection is later.embed_scale is None


def test_every_family_of_this_kind_is_listed():
    from portpe.config import (
        bert_families,
        bert_variant_families,
        gpt_families,
        reformer,
        series_families,
        sound_families,
        stack_families,
        tower_families,
    )

    families = (
        *bert_families.BERT_FAMILIES,
        *bert_variant_families.BERT_VARIANT_FAMILIES,
        reformer.REFORMER,
        *series_families.SERIES_FAMILIES,
        *sound_families.SOUND_FAMILIES,
        *gpt_families.GPT_FAMILIES,
        *stack_families.STACK_FAMILIES,
        *tower_families.TOWER_FAMILIES,
    )
    assert {(family.model_type, family.part) for family in families} == set(ABSOLUTE_FAMILIES)
    assert all(family in FAMILIES for family in families)


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("big_bird", {"attention_type": "block_sparse"}, "attention_type must be 'original_full', got 'block_sparse'"),
        (
            "longformer",
            {"attention_window": [4, 5]},
            "attention_window must have an entry for each of 12 layers, got 2",
        ),
        ("longformer", {"attention_window": 7}, "attention_window must be an even integer >= 2, got 7"),
        ("esm", {"pad_token_id": None}, "pad_token_id must be an integer >= 0, got None"),
        (
            "camembert",
            {"max_position_embeddings": 2},
            r"max_position_embeddings must be > pad_token_id \+ 1 = 2, got 2",
        ),
        ("gpt_bigcode", {"num_key_value_heads": 4}, "num_key_value_heads must be 1 with multi_query as it is, got 4"),
        ("gpt_neo", {"attention_types": [["global"], 2]}, "attention_types must list 'global' or 'local' for each"),
        ("gpt_neo", {"attention_layers": ["local"] * 24}, "attention_layers must agree with attention_types"),
        ("xlm", {"is_encoder": False}, "is_encoder must be True for model_type 'xlm', got False"),
        ("musicgen_decoder", {"scale_embedding": True}, "scale_embedding must be False for model_type"),
        ("pegasus_x", {}, "part must be 'decoder' for model_type 'pegasus_x', got None"),
        ("ibert", {"quant_mode": True}, "quant_mode must be False for model_type 'ibert', got True"),
        ("squeezebert", {"embedding_size": 64}, "embedding_size must equal hidden_size = 768, got 64"),
        ("mobilebert", {"true_hidden_size": 512}, "true_hidden_size must be 128 with use_bottleneck as it is, got 512"),
        ("mobilebert", {"intra_bottleneck_size": 126}, "num_attention_heads must divide 126, .* got 4"),
        ("canine", {"num_hash_buckets": 60}, "max_position_embeddings must be <= num_hash_buckets = 60, .* got 16384"),
        ("audio-spectrogram-transformer", {"max_length": 9}, "max_length must be >= patch_size = 16, got 9"),
        ("fun_asr_nano_encoder", {"hidden_size": 510}, "hidden_size must be a multiple of num_attention_heads = 4"),
        ("timesfm", {"min_timescale": 2}, "min_timescale must be 1 for model_type 'timesfm', got 2"),
        ("patchtst", {"patch_length": 32}, "context_length must be > patch_length = 32, got 32"),
        ("patchtst", {"norm_type": "rms"}, "norm_type must be 'batchnorm' or 'layernorm', got 'rms'"),
        ("patchtst", {"positional_encoding_type": "none"}, "positional_encoding_type must be 'sincos' or 'random'"),
        ("reformer", {"axial_pos_embds_dim": [64, 64]}, "axial_pos_embds_dim must sum up to hidden_size = 256"),
        ("reformer", {"axial_pos_shape": [64]}, r"axial_pos_shape must be two integers >= 1, got \[64\]"),
        ("reformer", {"attn_layers": "local"}, "attn_layers must list 'local' or 'lsh' for each layer, got 'local'"),
        ("sam3_lite_text_text_model", {"use_repmixer_blocks": True}, "layer 0 has no attention: use_repmixer_blocks"),
    ],
)
def test_what_is_refused(model_type, keys, message):
    with pytest.raises(SpecError, match=message):
        load_spec({"model_type": model_type, **NEEDED.get(model_type, {}), **keys})


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("encoder", "normalize_before", True),
        ("decoder", "extra_pos_embeddings", 0),
        ("encoder", "normalize_embedding", False),
    ],
)
def test_bart_configs_that_contradict_its_class_are_refused(part, key, value):
    with pytest.raises(SpecError, match=f"{key} must be"):
        load_spec({"model_type": "bart", key: value}, part=part)


def test_longformer_sees_half_its_window_on_each_side():
    config = {"model_type": "longformer", "num_hidden_layers": 3, "attention_window": [4, 6, 10]}
    assert "global attention has projections of its own" in " ".join(read(config).warnings)
    assert [spec.window_radius for spec in load_layers(config)] == [2, 3, 5]


def test_gpt_neo_alternates_full_and_local_layers():
    config = {"model_type": "gpt_neo", "num_layers": 4, "window_size": 5, "attention_types": [[["global", "local"], 2]]}
    specs = load_layers(config)
    assert [spec.window for spec in specs] == [None, 5, None, 5]
    assert {spec.scale for spec in specs} == {1.0}


def test_esm_2_is_rotary():
    keys = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 2}
    config = config_of("esm", position_embedding_type="rotary", rope_theta=500.0, **keys)
    for layer in (0, 1):
        spec = load_spec(config, layer=layer)
        assert spec.embedding is None
        assert isinstance(spec.rotary, RotaryEncoding)
        assert (spec.rotary.width, spec.rotary.schedule.rope_theta, spec.rotary.pairing) == (16, 500.0, "half")
    assert spec.max_position_embeddings == 1026


def test_series_begin_their_decoder_behind_the_context():
    config = {"model_type": "time_series_transformer", "prediction_length": 9}
    encoder, decoder = (load_spec(config, part=part).embedding for part in ("encoder", "decoder"))
    assert (encoder.offset, encoder.rows, decoder.offset, decoder.rows) == (0, 18, 9, 18)


def test_a_projection_stands_where_the_embedding_has_another_width():
    for width in (64, 256):
        spec = load_spec({"model_type": "electra", "embedding_size": width})
        assert (spec.embedding_projection is None) == (width == 256)
        assert spec.input_width == spec.embedding.width == width


def test_nothing_is_warned_of_a_config_that_says_all():
    config = config_of("bart")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(config, part="decoder").warnings == ()


@pytest.mark.parametrize(
    ("model_type", "keys", "what"),
    [
        ("luke", {}, "queries of their own between words and entities"),
        ("luke", {"use_entity_aware_attention": False}, None),
        ("squeezebert", {}, "projections in groups of channels"),
        ("squeezebert", {"q_groups": 1, "k_groups": 1, "v_groups": 1}, None),
        ("nystromformer", {}, "a convolution of its values"),
        ("nystromformer", {"num_landmarks": 32}, "landmarks in place of the sequence"),
        ("nystromformer", {"conv_kernel_size": None}, None),
        ("canine", {}, "attention within chunks of characters"),
        ("blip_2_qformer", {}, None),
        ("blip_2_qformer", {"use_qformer_text_input": True}, "queries before its text, which have no positions"),
        ("clvp_encoder", {}, "values that are turned as the keys are"),
        ("clvp_encoder", {"use_rotary_embedding": False}, None),
        ("roformer", {"rotary_value": True}, "values that are turned as the keys are"),
        ("patchtst", {}, "a batch norm before it"),
        ("patchtst", {"norm_type": "layernorm"}, None),
        ("patchtst", {"pre_norm": False}, None),
        ("decision_transformer", {}, "a constant row between the norm of its embeddings and its own"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_attention_has_besides(model_type, keys, what):
    """Its positions are read; a block is exported only where nothing is left out."""
    assert read({"model_type": model_type, **keys}).beyond == what


def test_canine_has_a_shallow_layer_at_either_end():
    layers = load_layers({"model_type": "canine", "num_hidden_layers": 3})
    assert [layer.embedding is not None for layer in layers] == [True, False, False, False, False]


def test_convbert_has_half_of_its_heads():
    spec = load_spec({"model_type": "convbert", "hidden_size": 96, "num_attention_heads": 6})
    assert (spec.num_heads, spec.head_dim) == (3, 16)
