"""Encoders of detectors: sinusoids in queries and keys of every layer, from each family's own keys."""

import pytest
import transformers

from portpe.config import load_layers, load_spec, read
from portpe.config.detection_families import DETECTION_FAMILIES
from portpe.errors import SpecError

transformers.utils.logging.set_verbosity_error()

# layers, whether coordinates are parts of a turn, the order, the base
DEFAULTS = {
    "detr": (6, True, "interleaved", 10000.0),
    "conditional_detr": (6, True, "interleaved", 10000.0),
    "table-transformer": (6, True, "interleaved", 10000.0),
    "dab-detr": (6, True, "interleaved", 20.0),
    "sam3_detr_encoder": (6, True, "interleaved", 10000.0),
    "sam3_lite_text_detr_encoder": (6, True, "interleaved", 10000.0),
    "rt_detr": (1, False, "sin_cos", 10000.0),
    "rt_detr_v2": (1, False, "sin_cos", 10000.0),
    "d_fine": (1, False, "sin_cos", 10000.0),
    "deimv2": (1, False, "sin_cos", 10000.0),
    "pp_doclayout_v2": (1, False, "sin_cos", 10000.0),
    "pp_doclayout_v3": (1, False, "sin_cos", 10000.0),
    "pp_doclayout_v4": (1, False, "sin_cos", 10000.0),
}


@pytest.mark.parametrize("model_type", DEFAULTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_default_configs(model_type):
    part = None if model_type.startswith("sam3") else "encoder"
    layers = load_layers(transformers.CONFIG_MAPPING[model_type](), part)
    for spec in layers:
        table = spec.embedding
        found = (len(layers), table.normalize, table.order, table.base)
        assert found == DEFAULTS[model_type]
        assert (spec.embedding_to, spec.causal, spec.hidden_size, spec.num_heads) == ("query_key", False, 256, 8)
        assert (table.first, table.centred, table.plain_tokens, spec.input_norms) == ("row", False, 0, {})
    assert load_layers({"model_type": model_type}, part) == layers, "defaults differ"


def test_every_family_of_this_kind_is_listed():
    assert {family.model_type for family in DETECTION_FAMILIES} == set(DEFAULTS)


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("detr", {"position_embedding_type": "learned"}, "position_embedding_type must be 'sine', got 'learned'"),
        ("dab-detr", {"temperature_width": 10}, "temperature_width must equal temperature_height = 20.0, got 10.0"),
        ("dab-detr", {"sine_position_embedding_scale": 3.0}, "sine_position_embedding_scale must be a whole turn"),
        (
            "rt_detr",
            {"eval_size": [640, 640]},
            r"eval_size must be null, got \[640, 640\]; with it transformers adds",
        ),
        ("d_fine", {"encoder_hidden_dim": 100}, "encoder_hidden_dim must be a multiple of encoder_attention_heads = 8"),
    ],
)
def test_what_is_refused(model_type, keys, message):
    with pytest.raises(SpecError, match=message):
        load_spec({"model_type": model_type, **keys}, part="encoder")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dab_detr_scales_its_positions():
    reading = read({"model_type": "dab-detr"}, part="encoder")
    assert reading.beyond == "a network of each token that scales its positions"
    assert read({"model_type": "detr"}, part="encoder").beyond is None
