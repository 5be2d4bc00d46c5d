"""Small configs by hand, and a way to say one change."""

import copy

import pytest

LLAMA = {
    "model_type": "llama",
    "hidden_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "max_position_embeddings": 640,
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
}


@pytest.fixture
def llama():
    """A llama config in the older layout, with keys changed or (None) removed."""

    def make(**changes):
        config = copy.deepcopy(LLAMA) | changes
        return {key: value for key, value in config.items() if value is not None}

    return make
