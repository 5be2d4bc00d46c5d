"""Families with T5's buckets: what the default config of transformers' class means, and what is refused."""

import warnings

import pytest
import transformers

from portpe.config import load_layers, load_spec
from portpe.encodings import BucketsEncoding, LearnedEncoding
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()

# (model_type, part): hidden, heads, head_dim, layers
FAMILIES = {
    ("t5", "encoder"): (512, 8, 64, 6),
    ("t5", "decoder"): (512, 8, 64, 6),
    ("mt5", "encoder"): (512, 6, 64, 8),
    ("mt5", "decoder"): (512, 6, 64, 8),
    ("umt5", "encoder"): (512, 6, 64, 8),
    ("umt5", "decoder"): (512, 6, 64, 8),
    ("pop2piano", "encoder"): (512, 8, 64, 6),
    ("pop2piano", "decoder"): (512, 8, 64, 6),
    ("switch_transformers", "encoder"): (768, 12, 64, 12),
    ("switch_transformers", "decoder"): (768, 12, 64, 12),
    ("longt5", "encoder"): (512, 8, 64, 6),
    ("longt5", "decoder"): (512, 8, 64, 6),
    ("udop", "decoder"): (1024, 16, 64, 24),
    ("pix2struct_text_model", None): (768, 12, 64, 12),
}


def config_of(model_type, **changes):
    return transformers.CONFIG_MAPPING[model_type](**changes).to_dict()


@pytest.mark.parametrize(("model_type", "part"), FAMILIES)
def test_default_configs(model_type, part):
    hidden, heads, head_dim, layers = FAMILIES[model_type, part]
    specs = load_layers(config_of(model_type), part=part)
    encodes = part == "encoder"
    assert len(specs) == layers
    for spec in specs:
        assert spec.bias == (BucketsEncoding(num_buckets=32, max_distance=128, bidirectional=encodes),)
        assert (spec.hidden_size, spec.num_heads, spec.head_dim) == (hidden, heads, head_dim)
        assert (spec.rotary, spec.embedding, spec.scale) == (None, None, 1.0)
        assert spec.causal == (not encodes)
        assert spec.window_radius == (127 if (model_type, part) == ("longt5", "encoder") else None)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_keys_of_the_buckets_are_read(part):
    config = config_of("t5", relative_attention_num_buckets=40, relative_attention_max_distance=90, d_kv=20)
    spec = load_spec(config, layer=3, part=part)
    assert spec.bias == (BucketsEncoding(num_buckets=40, max_distance=90, bidirectional=part == "encoder"),)
    assert spec.head_dim == 20


def test_a_decoder_has_layers_of_its_own_or_as_many_as_the_encoder():
    assert len(load_layers(config_of("t5", num_layers=3, num_decoder_layers=5), part="decoder")) == 5
    assert len(load_layers(config_of("t5", num_layers=3, num_decoder_layers=5), part="encoder")) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(load_layers({"model_type": "t5", "num_layers": 4}, part="decoder")) == 4


def test_mpnet_has_a_table_and_buckets():
    first, *rest = load_layers(config_of("mpnet"))
    assert first.embedding == LearnedEncoding(rows=512, width=768, offset=2)
    assert first.max_position_embeddings == 510
    assert first.scale == 64**-0.5
    assert not first.causal
    for spec in (first, *rest):
        assert spec.bias == (BucketsEncoding(),)
    assert {spec.embedding for spec in rest} == {None}


@pytest.mark.parametrize(
    ("model_type", "part", "changes", "message"),
    [
        (
            "longt5",
            "encoder",
            {"encoder_attention_type": "transient-global"},
            "encoder_attention_type must be 'local', got 'transient-global'; keys that are sums of blocks",
        ),
        ("pix2struct_text_model", None, {"d_kv": 32}, "d_kv must be hidden_size / num_heads = 768 / 12, got 32"),
        ("mpnet", None, {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets must be 32"),
        ("mpnet", None, {"max_position_embeddings": 2}, "max_position_embeddings must be > 2, got 2"),
        ("t5", "encoder", {"relative_attention_max_distance": 8}, "max_distance must be > 8"),
        ("t5", None, {}, "part must be 'encoder' or 'decoder' for model_type 't5', got None"),
    ],
)
def test_what_is_refused(model_type, part, changes, message):
    with pytest.raises(SpecError, match=message):
        load_spec(config_of(model_type, **changes), part=part)
