"""Keys that nobody understands: an error where they may change numbers, listed where they do not."""

import pytest

from portpe.config import load_spec, read
from portpe.errors import SpecError

SUSPICIOUS = [
    "rope_local_base_freq",
    "rotary_base",
    "theta",
    "use_alibi",
    "n_positions_extra",
    "attn_logit_softcapping",
    "attention_multiplier",
    "window_size",
    "qk_scaling",
    "final_softcap",
    "attention_sinks",
    "use_qk_norm",
    "v_head_dim",
    "layer_types",
    "clip_qkv",
    "Query_Pre_ATTN_Scalar",
]


@pytest.mark.parametrize("key", SUSPICIOUS)
def test_a_key_that_may_change_numbers_is_an_error(llama, key):
    with pytest.raises(SpecError) as error:
        load_spec(llama(**{key: 2}))
    assert str(error.value).startswith(f"{key} is not a key that portpe knows for this model_type")
    assert f"--ignore-key {key}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", SUSPICIOUS)
def test_ignore_keys_let_it_pass_and_are_recorded(llama, key):
    reading = read(llama(**{key: 2}), ignore_keys=[key])
    assert reading.spec == load_spec(llama())
    assert key in reading.ignored


def test_other_keys_are_listed(llama):
    reading = read(llama(vocab_size=7, torch_dtype="bfloat16", bos_token_id=1, intermediate_size=9))
    assert reading.ignored == ("vocab_size", "torch_dtype", "bos_token_id", "intermediate_size")


def test_training_keys_that_match_are_no_error(llama):
    reading = read(llama(attention_dropout=0.1, output_attentions=False, pruned_heads={}, _attn_implementation="sdpa"))
    assert reading.ignored == ("attention_dropout", "output_attentions", "pruned_heads", "_attn_implementation")
    with pytest.raises(SpecError, match=r"^pruned_heads is not a key"):
        load_spec(llama(pruned_heads={"0": [1]}))


def test_a_null_says_nothing(llama):
    assert load_spec(llama() | {"attn_logit_softcapping": None}) == load_spec(llama())


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "linear", "factor": 2.0, "finetuned": True}, "rope_scaling.finetuned is not a key that portpe knows"),
        ({"type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "rope_scaling.alpha is not a key that portpe knows"),
        ({"mrope_section": [1, 1, 2]}, "rope_scaling.mrope_section is not a key that portpe knows"),
        ({"factor": 8.0}, "rope_scaling.factor has no meaning for rope_type 'default', got 8.0"),
        (
            {"type": "linear", "factor": 2.0, "beta_fast": 32},
            "rope_scaling.beta_fast has no meaning for rope_type 'lin",
        ),
        ({"type": "linear", "factor": 2.0, "Factor": 4}, "rope_scaling.Factor is not a key that portpe knows"),
    ],
)
def test_inside_the_rope_block_every_key_counts(llama, block, message):
    with pytest.raises(SpecError) as error:
        load_spec(llama(rope_scaling=block))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", ["finetuned", "rope_scaling.finetuned"])
def test_a_nested_key_is_ignored_by_name_or_path(llama, name):
    config = llama(rope_scaling={"type": "linear", "factor": 2.0, "finetuned": True})
    reading = read(config, ignore_keys=(name,))
    assert reading.ignored == ("rope_scaling.finetuned",)
    assert reading.spec.rotary.schedule.kind == "linear"


def test_inside_attn_config_every_key_counts():
    config = {"model_type": "mpt", "d_model": 72, "n_heads": 6, "n_layers": 2, "attn_config": {"rope": True}}
    with pytest.raises(SpecError, match=r"^attn_config.rope is not a key that portpe knows"):
        load_spec(config)
    assert read(config, ignore_keys=["rope"]).ignored == ("attn_config.rope",)


def test_ignoring_what_is_understood_or_absent_is_a_slip(llama):
    for key in ("rope_theta", "rope_scaling", "no_such_key"):
        with pytest.raises(SpecError, match=f"^ignore_keys must name keys .* got '{key}'; drop it$"):
            load_spec(llama(rope_scaling={"type": "linear", "factor": 2.0}), ignore_keys=[key])
    with pytest.raises(SpecError, match=r"^ignore_keys must be a list of keys, got 'abc'"):
        load_spec(llama(), ignore_keys="abc")


FIXED = [
    ("mistral", {"attention_bias": True}, "attention_bias must be False for model_type 'mistral', got True"),
    ("phi3", {"full_attn_mod": 2}, "full_attn_mod must be 1 for model_type 'phi3', got 2"),
]


@pytest.mark.parametrize(("model_type", "changes", "message"), FIXED)
def test_keys_that_an_implementation_leaves_out_hold_one_value(llama, model_type, changes, message):
    with pytest.raises(SpecError) as error:
        load_spec(llama(model_type=model_type, **changes))
    assert str(error.value).startswith(message)
    (key,) = changes
    assert load_spec(llama(model_type=model_type, **changes), ignore_keys=[key])
    assert load_spec(llama(model_type=model_type, **{key: {"attention_bias": False, "full_attn_mod": 1}[key]}))


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gptj", "rotary", False),
        ("gptj", "scale_attn_weights", False),
        ("whisper", "scale_embedding", True),
        ("albert", "inner_group_num", 2),
        ("mpt", "no_bias", False),
        ("mpt", "norm_type", "rmsnorm"),
    ],
)
def test_what_a_family_has_no_code_for_is_refused(model_type, key, value):
    part = "encoder" if model_type == "whisper" else None
    with pytest.raises(SpecError, match=f"^{key} must be "):
        load_spec({"model_type": model_type, key: value}, part=part)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_type", "multiquery_attention"),
        ("alibi", False),
        ("prefix_lm", True),
        ("qk_ln", True),
        ("attn_uses_sequence_id", True),
    ],
)
def test_what_mpt_has_no_code_for_is_refused(key, value):
    with pytest.raises(SpecError, match=rf"^attn_config.{key} must be "):
        load_spec({"model_type": "mpt", "attn_config": {key: value}})


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "bert", "roberta", "albert"])
def test_only_absolute_positions(model_type):
    config = {"model_type": model_type, "position_embedding_type": "relative_key"}
    with pytest.raises(SpecError, match=r"^position_embedding_type must be 'absolute', got 'relative_key'"):
        load_spec(config)


PUBLISHED = [
    ("llama", {"rope_interleaved": False, "pretraining_tp": 1, "is_llama_config": True}),
    ("qwen2", {"use_mrope": False, "attention_dropout": 0.0}),
    ("phi3", {"attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1}),
    ("gptj", {"rotary": True, "scale_attn_weights": True, "n_ctx": 2048, "attn_pdrop": 0.0}),
    ("bloom", {"offset_alibi": 100, "attention_softmax_in_fp32": True, "masked_softmax_fusion": True}),
    ("bloom", {"apply_residual_connection_post_layernorm": False, "skip_bias_add_qkv": False}),
    ("albert", {"down_scale_factor": 1, "num_memory_blocks": 0, "attention_probs_dropout_prob": 0}),
    ("opt", {"_remove_final_layer_norm": False, "activation_dropout": 0.0}),
    ("falcon", {"parallel_attn": True, "apply_residual_connection_post_layernorm": False, "num_kv_heads": 71}),
    ("gpt2", {"reorder_and_upcast_attn": False, "n_ctx": 1024, "attn_pdrop": 0.1}),
    ("cohere", {"logit_scale": 0.0625, "model_max_length": 131072}),
    ("gpt_oss", {"initial_context_length": 4096, "quantization_config": {"quant_method": "mxfp4"}}),
]


@pytest.mark.parametrize(("model_type", "keys"), PUBLISHED)
def test_keys_of_published_configs_are_no_obstacle(model_type, keys):
    reading = read({"model_type": model_type} | keys)
    assert reading.spec == load_spec({"model_type": model_type})


@pytest.mark.parametrize(("model_type", "key"), [("llama", "rope_interleaved"), ("qwen2", "use_mrope")])
def test_a_rotation_that_the_class_does_not_have_is_refused(model_type, key):
    with pytest.raises(SpecError, match=f"^{key} must be False"):
        load_spec({"model_type": model_type, key: True})


def test_keys_that_are_no_strings(llama):
    assert read(llama() | {1: 2}).spec == load_spec(llama())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("num_key_value_heads", "num_key_value_head"),
        ("hidden_size", "hiden_size"),
        ("rms_norm_eps", "rms_nrom_eps"),
        ("max_position_embeddings", "max_positon_embeddings"),
        ("head_dim", "headdim"),
        ("attention_bias", "atention_bias"),
    ],
)
def test_a_misspelt_key_is_named_whatever_follows_from_its_absence(llama, right, wrong):
    """Before the error that the missing key brings, and where it would bring none but another default."""
    config = llama(head_dim=8, attention_bias=False)
    config[wrong] = config.pop(right)
    with pytest.raises(SpecError) as error:
        read(config)
    assert str(error.value).startswith(f"{wrong} is not a key that portpe knows for this model_type, and {right} is ")
    assert read(config | {right: config[wrong]}, ignore_keys=[wrong]).ignored == (wrong,)


def test_a_misspelt_key_of_a_block_is_named(llama):
    for wrong in ("facotr", "fator"):
        with pytest.raises(
            SpecError, match=rf"^rope_scaling.{wrong} is not a key that portpe knows for this model_type"
        ):
            read(llama(rope_scaling={"rope_type": "linear", wrong: 4.0}))


def test_a_key_of_another_meaning_is_no_slip(llama):
    """use_sliding_window is no sliding_window, and a longer name is another name."""
    assert read(llama(num_experts_per_tok=2, head_dim_of_experts=None)).ignored == ("num_experts_per_tok",)
