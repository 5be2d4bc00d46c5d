"""Bad configs: one line, the config's own field, the rule and the value."""

import json
import math

import pytest
from transformers import CONFIG_MAPPING

from portpe.config import load_layers, load_spec, read
from portpe.config.families import FAMILIES
from portpe.errors import NoAttentionError, SpecError

LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
LONG = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES = [
    # numbers
    ({"rope_scaling": LINEAR | {"factor": -2.0}}, "rope_scaling.factor must be > 0, got -2.0"),
    ({"rope_scaling": LINEAR | {"factor": 0}}, "rope_scaling.factor must be > 0, got 0"),
    ({"rope_scaling": LINEAR | {"factor": math.nan}}, "rope_scaling.factor must be finite, got nan"),
    ({"rope_scaling": LINEAR | {"factor": math.inf}}, "rope_scaling.factor must be finite, got inf"),
    ({"rope_scaling": LINEAR | {"factor": {"__float__": "NaN"}}}, "rope_scaling.factor must be a number, got {"),
    ({"rope_scaling": LINEAR | {"factor": "8"}}, "rope_scaling.factor must be a number, got '8'"),
    ({"rope_scaling": LINEAR | {"factor": True}}, "rope_scaling.factor must be a number, got True"),
    ({"rope_scaling": LINEAR | {"factor": [2.0]}}, "rope_scaling.factor must be a number, got [2.0]"),
    ({"rope_scaling": LINEAR | {"factor": 10**400}}, "rope_scaling.factor must be within float64"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is required and missing"),
    ({"rope_parameters": LINEAR | {"factor": -1}}, "rope_parameters.factor must be > 0, got -1"),
    (
        {"rope_parameters": {"full_attention": LINEAR | {"factor": -1}}},
        "rope_parameters.full_attention.factor must be > 0, got -1",
    ),
    ({"rope_scaling": YARN | {"attention_factor": 0}}, "rope_scaling.attention_factor must be > 0, got 0"),
    ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "rope_scaling.attention_factor must be > 0, got -1.0"),
    ({"rope_scaling": YARN | {"beta_fast": -32}}, "rope_scaling.beta_fast must be > 0, got -32"),
    ({"rope_scaling": YARN | {"mscale": "1"}}, "rope_scaling.mscale must be a number, got '1'"),
    ({"rope_scaling": YARN | {"mscale_all_dim": -1}}, "rope_scaling.mscale_all_dim must be >= 0, got -1"),
    (
        {"rope_scaling": LONG | {"original_max_position_embeddings": 1}},
        "original_max_position_embeddings must be > 1 for rope_type 'longrope', got 1",
    ),
    ({"rope_scaling": YARN | {"truncate": 0}}, "rope_scaling.truncate must be true or false, got 0"),
    (
        {"rope_scaling": YARN | {"original_max_position_embeddings": 0}},
        "rope_scaling.original_max_position_embeddings must be an integer >= 1, got 0",
    ),
    (
        {"rope_scaling": YARN | {"original_max_position_embeddings": 64.5}},
        "rope_scaling.original_max_position_embeddings must be an integer >= 1, got 64.5",
    ),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": None}}, "rope_scaling.high_freq_factor is required and missing"),
    (
        {"rope_scaling": LONG | {"short_factor": [1.0] * 3}},
        "rope_scaling.short_factor must have 4 entries, half the rotary width, got 3",
    ),
    (
        {"rope_scaling": LONG | {"long_factor": [1.0] * 8}},
        "rope_scaling.long_factor must have 4 entries, half the rotary width, got 8",
    ),
    ({"rope_scaling": LONG | {"long_factor": 2.0}}, "rope_scaling.long_factor must be a list of numbers, got 2.0"),
    ({"rope_scaling": LONG | {"long_factor": []}}, "rope_scaling.long_factor must be a list of numbers, got []"),
    ({"rope_scaling": LONG | {"long_factor": [1.0, 2.0, -1, 1]}}, "rope_scaling.long_factor[2] must be > 0, got -1"),
    ({"rope_scaling": LONG | {"long_factor": None}}, "rope_scaling.long_factor is required and missing"),
    ({"rope_theta": -10000.0}, "rope_theta must be > 0, got -10000.0"),
    ({"rope_theta": math.nan}, "rope_theta must be finite, got nan"),
    ({"rope_theta": [1e4, 1e6]}, "rope_theta must be a number, got [10000.0, 1000000.0]"),
    # rope types
    ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "rope_scaling.rope_type must be one of default, linear,"),
    ({"rope_scaling": {"type": "foo", "factor": 2.0}}, "rope_scaling.type must be one of default, linear,"),
    ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}, "rope_scaling.type must be one of default"),
    ({"rope_scaling": {"type": 3}}, "rope_scaling.type must be one of default"),
    ({"rope_scaling": {"type": ["linear"]}}, "rope_scaling.type must be one of default"),
    ({"rope_scaling": "linear"}, "rope_scaling must be an object, got 'linear'"),
    ({"rope_scaling": [1]}, "rope_scaling must be an object, got [1]"),
    ({"rope_parameters": 7}, "rope_parameters must be an object, got 7"),
    # widths
    (
        {"head_dim": 7},
        "the rotary width must be even, got 7 from head_dim = 7 times partial_rotary_factor = 1.0; trans",
    ),
    (
        {"head_dim": 10, "partial_rotary_factor": 0.3},
        "the rotary width must be even, got 3 from head_dim = 10 times partial_rotary_factor = 0.3; "
        "transformers would rotate 4 channels",
    ),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be <= 1, got 1.5"),
    ({"partial_rotary_factor": 0.0}, "partial_rotary_factor must be > 0, got 0.0"),
    ({"partial_rotary_factor": 0.01}, "the rotary width must be >= 2, got 0"),
    ({"head_dim": 2, "rope_scaling": LINEAR | {"rope_type": "dynamic"}}, "the rotary width must be > 2 for rope_type"),
    # sizes
    ({"hidden_size": 81}, "hidden_size must be a multiple of num_attention_heads = 10, got 81"),
    ({"num_key_value_heads": 4}, "num_attention_heads must be a multiple of num_key_value_heads = 4, got 10"),
    ({"num_key_value_heads": 20}, "num_attention_heads must be a multiple of num_key_value_heads = 20, got 10"),
    ({"num_attention_heads": 0}, "num_attention_heads must be an integer >= 1, got 0"),
    ({"num_attention_heads": 2.5}, "num_attention_heads must be an integer >= 1, got 2.5"),
    ({"num_attention_heads": True}, "num_attention_heads must be an integer >= 1, got True"),
    ({"num_attention_heads": "10"}, "num_attention_heads must be an integer >= 1, got '10'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer >= 1, got 0"),
    ({"head_dim": -8}, "head_dim must be an integer >= 1, got -8"),
    ({"max_position_embeddings": -1}, "max_position_embeddings must be an integer >= 1, got -1"),
    ({"attention_bias": "yes"}, "attention_bias must be true or false, got 'yes'"),
    ({"hidden_size": 2**53 + 10}, "hidden_size must be at most 2^53 = 9007199254740992, got 9007199254741002"),
    ({"head_dim": 1e300}, "head_dim must be at most 2^53 = 9007199254740992, got 1"),
    ({"rms_norm_eps": 0.0, "input_norm": None}, "rms_norm_eps must be > 0, got 0.0"),
    # families
    ({"model_type": "lama"}, "model_type must be one of the "),
    ({"model_type": 3}, "model_type must be a string, got 3"),
    ({"model_type": "gptj", "n_embd": 72, "hidden_size": 80}, "n_embd and hidden_size are names of one value"),
    ({"model_type": "gpt_neox", "num_key_value_heads": 5}, "num_key_value_heads must equal the 10 query heads"),
    (
        {"model_type": "bert", "head_dim": 16, "num_key_value_heads": None},
        "head_dim must be hidden_size / num_attention_heads = 8 for this model_type, got 16",
    ),
]


@pytest.mark.parametrize(("changes", "message"), CASES)
def test_one_line_that_names_the_field(llama, changes, message):
    with pytest.raises(SpecError) as error:
        load_spec(llama(**changes))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "deepseek_v3", "qwen2_vl_text", "t5", "swin", "vit"])
def test_a_number_that_no_float64_holds_is_refused_or_counts_for_nothing(model_type):
    """Whichever key it stands under: one line, as for any other bad value."""
    config = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    numbers = [key for key, value in config.items() if type(value) in (int, float)]
    refused = {}
    for key in numbers:
        try:
            load_spec({**config, key: 10**400}, part="encoder" if model_type == "t5" else None)
        except SpecError as error:
            refused[key] = str(error)
    assert {"hidden_size", "d_model", "embed_dim"} & set(refused)
    assert not [message for message in refused.values() if "\n" in message]


@pytest.mark.parametrize("value", [97531, "unheard of", [3]])
@pytest.mark.parametrize(
    ("family", "key"),
    [(family, key) for family in FAMILIES for key in family.fixed if family.model_type in CONFIG_MAPPING],
    ids=lambda each: each if isinstance(each, str) else each.model_type,
)
def test_a_value_that_transformers_has_nothing_for_is_refused(family, key, value):
    """Whether a family has one value for the key, several, or none at all."""
    config = json.loads(CONFIG_MAPPING[family.model_type]().to_json_string(use_diff=False))
    if family.model_type in UNFIT:
        config |= {"num_attention_heads": 32, "head_dim": 128}
    if family.model_type == "granitemoehybrid":  # whose default has no attention at all
        config["layer_types"] = ["attention"] * config["num_hidden_layers"]
    attends = next(layer for layer in range(8) if _has_attention(config, layer, family.part))
    with pytest.raises(SpecError, match=rf"\b{key} must be ") as error:
        read({**config, key: value}, attends, family.part)
    assert "\n" not in str(error.value)


# Default configs whose own widths, heads and sections do not fit together.
UNFIT = ("glm4v_moe_text", "qwen3_omni_moe_text", "qwen3_omni_moe_talker_text")


def _has_attention(config, layer, part):
    try:
        read(config, layer, part)
    except NoAttentionError:
        return False
    return True


def test_an_unknown_model_type_says_the_way_out(llama):
    with pytest.raises(SpecError, match=r"that portpe knows \(nearest: llama, .*\), got 'lama'"):
        load_spec(llama(model_type="lama"))
    with pytest.raises(SpecError, match="give another model's layer as a spec written by hand"):
        load_spec(llama(model_type="no_such"))
    with pytest.raises(SpecError, match="give another encoding as a spec written by hand"):
        load_spec(llama(rope_scaling={"rope_type": "foo"}))


@pytest.mark.parametrize("layer", [-1, 3, 99])
def test_a_layer_out_of_range(llama, layer):
    with pytest.raises(SpecError, match=rf"^layer must be 0..2, the layers of the config, got {layer}$"):
        load_spec(llama(), layer=layer)


@pytest.mark.parametrize("layer", [True, 1.0, "1", None])
def test_a_layer_that_is_no_number(llama, layer):
    with pytest.raises(SpecError, match=r"^layer must be an integer >= 0"):
        load_spec(llama(), layer=layer)


@pytest.mark.parametrize("part", ["encoder", "decoder", "vision", "tower", 1])
def test_a_part_that_a_family_does_not_have(llama, part):
    with pytest.raises(SpecError, match=r"^part must be"):
        load_spec(llama(), part=part)
    assert load_spec(llama(), part="text") == load_spec(llama())


@pytest.mark.parametrize("part", [None, "text", "vision"])
def test_whisper_needs_a_part(part):
    with pytest.raises(SpecError, match=r"^part must be 'encoder' or 'decoder' for model_type 'whisper'"):
        load_spec({"model_type": "whisper"}, part=part)
    with pytest.raises(SpecError, match=r"^part must be 'encoder' or 'decoder'"):
        load_layers({"model_type": "whisper"}, part=part)


def test_an_input_norm_where_there_is_none(llama):
    with pytest.raises(SpecError, match=r"^input_norm must be false for olmo2 layer 0: no norm stands before"):
        read(llama(model_type="olmo2"), input_norm=True)
    with pytest.raises(SpecError, match=r"^input_norm must be false for bert layer 1"):
        read({"model_type": "bert"}, layer=1, input_norm=True)
    with pytest.raises(SpecError, match=r"^input_norm must be false for opt layer 0"):
        read({"model_type": "opt", "do_layer_norm_before": False}, input_norm=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token_id": None}, "pad_token_id must be an integer >= 0, got None"),
        ({"pad_token_id": -1}, "pad_token_id must be an integer >= 0, got -1"),
        ({"pad_token_id": 600}, "max_position_embeddings must be > pad_token_id \\+ 1 = 601, got 512"),
    ],
)
def test_roberta_needs_a_place_to_start(changes, message):
    with pytest.raises(SpecError, match=f"^{message}"):
        load_spec({"model_type": "roberta"} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_dim": 7}, "rotary_dim must be even, got 7; transformers would rotate 8 channels"),
        ({"rotary_dim": 512}, "rotary_dim must be <= head_dim = 256, got 512"),
        ({"rope_theta": 5000.0}, "rope_theta is not a key that portpe knows for this model_type"),
    ],
)
def test_gptj_has_no_other_rotation(changes, message):
    with pytest.raises(SpecError) as error:
        load_spec({"model_type": "gptj"} | changes)
    assert str(error.value).startswith(message)


def test_falcon_heads():
    config = {"model_type": "falcon", "hidden_size": 72, "num_attention_heads": 6, "num_hidden_layers": 2}
    with pytest.raises(SpecError, match=r"^num_kv_heads must equal num_attention_heads = 6 without multi_query, got 2"):
        load_spec(config | {"multi_query": False, "num_kv_heads": 2})
    with pytest.raises(SpecError, match=r"^num_attention_heads must be a multiple of num_kv_heads = 4, got 6"):
        load_spec(config | {"new_decoder_architecture": True, "num_kv_heads": 4})
    with pytest.raises(SpecError, match=r"^attn_config.clip_qkv must be > 0, got -1.0"):
        load_spec({"model_type": "mpt", "attn_config": {"clip_qkv": -1}})


def test_precision_is_one_of_two(llama):
    assert read(llama(), precision="hf").spec.precision == "hf"
    assert read(llama()).spec.precision == "exact"
    with pytest.raises(SpecError, match=r"^precision must be 'exact' or 'hf', got 'half'"):
        read(llama(), precision="half")


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("mllama_text_model", "cross_attention_layers", 0),
        ("gpt_neo", "attention_layers", 0),
        ("laguna", "gating", []),
        ("molmo2_text", "rope_scaling_layers", 0),
        ("qwen2_5_vl_vision", "fullatt_block_indexes", "all"),
    ],
)
def test_a_list_that_is_none_and_a_word_that_is_a_list_are_refused(model_type, key, value):
    config = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    with pytest.raises(SpecError, match=rf"{key} must ") as error:
        read({**config, key: value})
    assert "\n" not in str(error.value)


def test_mvps_prompts_are_more_than_a_block_holds():
    config = json.loads(CONFIG_MAPPING["mvp"]().to_json_string(use_diff=False))
    for part in ("encoder", "decoder"):
        assert read(config, 0, part).beyond is None
        assert read({**config, "use_prompt": True}, 0, part).beyond == "trained prompts before its keys"
