"""Windows and layer types, layer by layer, against the layer_types that transformers derives."""

import pytest
import transformers

from portpe.config import load_layers, load_spec, read_layers
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()


def windows(config):
    return [spec.window for spec in load_layers(config)]


def of_transformers(config):
    return [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]


SIZES = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 5}


@pytest.mark.parametrize(
    ("cls", "keywords", "expected"),
    [
        (
            "Qwen2Config",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3},
            [None] * 3 + [9] * 2,
        ),
        ("Qwen2Config", {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 3}, [None] * 5),
        ("Qwen2Config", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None] * 5),
        ("Qwen3Config", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, [9] * 5),
        ("Qwen3Config", {"use_sliding_window": True, "max_window_layers": 4}, [None] * 4 + [4096]),
        ("GptOssConfig", {"sliding_window": 7}, [7, None, 7, None, 7]),
        (
            "GptOssConfig",
            {"sliding_window": 7, "layer_types": ["full_attention"] * 4 + ["sliding_attention"]},
            [None] * 4 + [7],
        ),
        ("GptOssConfig", {}, [128, None, 128, None, 128]),
    ],
)
def test_layers_by_type(cls, keywords, expected):
    config = getattr(transformers, cls)(**SIZES, **keywords)
    assert of_transformers(config) == expected
    assert windows(config) == expected
    by_hand = SIZES | keywords | {"model_type": config.model_type}
    assert windows(by_hand) == expected


def test_layer_types_go_before_the_rule(llama):
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    config = llama(
        model_type="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=2, layer_types=kinds
    )
    assert windows(config) == [9, None, None]
    assert windows(config | {"layer_types": ["attention", "attention", "sliding_attention"]}) == [None, None, 9]


@pytest.mark.parametrize("model_type", ["mistral", "phi3"])
def test_one_window_for_all_layers(llama, model_type):
    assert windows(llama(model_type=model_type, sliding_window=9)) == [9, 9, 9]
    assert windows(llama(model_type=model_type) | {"sliding_window": None}) == [None] * 3


def test_an_absent_window_is_that_of_the_class(llama):
    assert windows(llama(model_type="mistral")) == [4096] * 3
    assert windows(llama(model_type="phi3")) == [None] * 3


def test_gpt_oss_has_sinks_and_its_rotation_on_every_layer():
    layers = load_layers(transformers.GptOssConfig(**SIZES))
    assert [spec.sinks for spec in layers] == [True] * 5
    assert len({spec.rotary for spec in layers}) == 1
    assert layers[0].rotary.schedule.truncate is False


def test_per_layer_overrides_of_a_config_object_and_of_its_json(tmp_path):
    config = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 3}, rms_norm_eps=1e-5)
    config.per_layer_config = {1: {"num_key_value_heads": 3}, 2: {"attention_bias": True}}
    config.save_pretrained(tmp_path)
    for source in (config, tmp_path):
        layers = load_layers(source)
        assert [spec.num_kv_heads for spec in layers] == [2, 3, 2]
        assert [spec.biases.q for spec in layers] == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * 2}, "layer_types must list a type for each of the 3 layers, got 2"),
        ({"layer_types": "full_attention"}, "layer_types must list a type for each of the 3 layers, got 'full_att"),
        (
            {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
            "layer_types[1] must be 'full_attention' or 'sliding_attention', got 'chunked_attention'",
        ),
        (
            {"use_sliding_window": False, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "layer_types[1] must be 'full_attention' while use_sliding_window is false",
        ),
        (
            {"sliding_window": None, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "sliding_window is required and missing: layer 1 is of type 'sliding_attention'",
        ),
        ({"sliding_window": 0}, "sliding_window must be an integer >= 1, got 0"),
        ({"sliding_window": 2.5}, "sliding_window must be an integer >= 1, got 2.5"),
    ],
)
def test_bad_windows(llama, changes, message):
    config = (
        llama(model_type="qwen2") | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0} | changes
    )
    with pytest.raises(SpecError) as error:
        load_spec(config, layer=1)
    assert str(error.value).startswith(message)


def test_layer_types_mean_nothing_to_families_without_windows(llama):
    with pytest.raises(SpecError, match=r"^layer_types is not a key that portpe knows for this model_type"):
        load_spec(llama(layer_types=["full_attention"] * 3))
    with pytest.raises(SpecError, match=r"^layer_types is not a key that portpe knows for this model_type"):
        load_spec(llama(model_type="mistral", layer_types=["full_attention"] * 3))


def test_a_layer_without_attention_is_refused(llama):
    config = llama(per_layer_config={"1": {"skip": ["attention"]}})
    assert load_spec(config).num_heads == 10
    with pytest.raises(SpecError, match=r"^layer 1 has no attention: per_layer_config"):
        load_spec(config, layer=1)
    with pytest.raises(SpecError, match=r"^per_layer_config must have layer numbers as keys, got 'one'"):
        load_spec(llama(per_layer_config={"one": {}}))


# Families whose config class lists layer_types; those that see both ways have radii, and are tested by name.
LAYERED = [
    "afmoe",
    "apertus",
    "cohere2",
    "cwm",
    "dots1",
    "exaone4",
    "exaone_moe",
    "flint",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "gpt_oss",
    "granite_swa",
    "granitemoe_swa",
    "jamba",
    "kolibri1",
    "laguna",
    "lara_mini",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "ministral",
    "modernbert-decoder",
    "olmo3",
    "olmo_hybrid",
    "qwen2_moe",
    "qwen3",
    "qwen3_next",
    "recurrent_gemma",
    "smollm3",
    "step3p5",
    "vaultgemma",
    "zamba2",
]


@pytest.mark.parametrize("model_type", LAYERED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_layers_of_the_default_config(model_type):
    """Which layers slide and how far, and which are no attention."""
    config = transformers.CONFIG_MAPPING[model_type]()
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    found = {reading.layer: reading.spec.window for reading in read_layers(config)}
    assert found == {
        layer: config.sliding_window if kind == "sliding_attention" else None
        for layer, kind in enumerate(kinds)
        if kind in ("full_attention", "sliding_attention", "hybrid")
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_modernberts_decoder_states_its_window_itself_or_as_half_of_local_attention():
    """transformers' config class writes the half, and keeps what a config gives in its place."""
    for given, reach in (({}, 64), ({"local_attention": 10}, 5), ({"local_attention": 10, "sliding_window": 7}, 7)):
        config = transformers.ModernBertDecoderConfig(**given)
        assert config.sliding_window == reach
        raw = {"model_type": "modernbert-decoder", **given}
        for source in (config, raw):
            windows = {reading.spec.window for reading in read_layers(source)} - {None}
            assert windows == {reach}
