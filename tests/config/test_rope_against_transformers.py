"""Frequencies and magnitude of what the reader makes of a config, against each family's own rotary module.

transformers computes in float32, so its frequencies are off by a few parts in 1e7, relatively.
"""

import importlib

import numpy as np
import pytest
import torch
import transformers

from portpe.config import load_spec
from portpe.schedules import inv_freq

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)

HEAD = 24
SIZES = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 96,
}
# module, class, partial_rotary_factor; families whose class turns the whole head take none
FAMILIES = {
    "llama": ("Llama", 1.0),
    "mistral": ("Mistral", 1.0),
    "qwen2": ("Qwen2", 1.0),
    "qwen3": ("Qwen3", 1.0),
    "phi": ("Phi", 0.5),
    "phi3": ("Phi3", 0.75),
    "gemma": ("Gemma", 1.0),
    "gpt_neox": ("GPTNeoX", 0.25),
    "cohere": ("Cohere", 1.0),
    "glm": ("Glm", 0.5),
    "glm4": ("Glm4", 0.25),
    "olmo2": ("Olmo2", 1.0),
    "gpt_oss": ("GptOss", 1.0),
    "falcon": ("Falcon", 1.0),
}
BLOCKS = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 12, "beta_fast": 16.0, "mscale": 0.9},
    "yarn with a ratio": {"factor": None, "original_max_position_embeddings": 12, "truncate": False},
    "longrope": {"original_max_position_embeddings": 24},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
    },
    "proportional": {"factor": 2.0},
}
LENGTH_DEPENDENT = {"dynamic": (40, 96, 97, 200), "longrope": (23, 24, 25, 90)}


def block_of(kind, partial):
    block = {"rope_type": kind.split()[0], "rope_theta": 30000.0} | BLOCKS[kind]
    if partial != 1.0:
        block["partial_rotary_factor"] = partial
    if kind == "longrope":
        half = int(HEAD * partial) // 2
        block["short_factor"] = [1.0 + 0.1 * i for i in range(half)]
        block["long_factor"] = [1.5 + 0.4 * i for i in range(half)]
    return block


PAIRS = [
    (model_type, kind)
    for model_type in FAMILIES
    for kind in BLOCKS
    if model_type != "phi3" or kind in ("default", "longrope")  # Phi3Config refuses every other type
]


@pytest.mark.parametrize(("model_type", "kind"), PAIRS)
def test_the_class_and_the_reader_agree(model_type, kind):
    name, partial = FAMILIES[model_type]
    sizes = SIZES | ({"head_dim": HEAD} if model_type in ("gemma", "qwen3", "glm", "glm4", "gpt_oss") else {})
    if model_type in ("gpt_neox", "falcon"):
        sizes = {key: value for key, value in sizes.items() if key != "num_key_value_heads"}
    if model_type == "phi3":
        sizes["original_max_position_embeddings"] = 24
    config = getattr(transformers, f"{name}Config")(**sizes, rope_parameters=block_of(kind, partial))
    if not isinstance(getattr(config, "head_dim", None), int):
        config.head_dim = HEAD  # transformers' yarn, dynamic and longrope do without only where the class sets it
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    rotary = getattr(module, f"{name}RotaryEmbedding")(config)

    ours = load_spec(
        {key: value for key, value in config.to_dict().items() if key != "head_dim" or key in sizes}
    ).rotary
    for length in LENGTH_DEPENDENT.get(kind, (5,)):
        if kind in LENGTH_DEPENDENT:
            rotary(torch.zeros(1), torch.tensor([[0, length - 1]]))  # lets the module see the length
        theirs = rotary.inv_freq.double().numpy()
        np.testing.assert_allclose(inv_freq(ours, length), theirs, rtol=2e-6, atol=0)
    assert ours.magnitude == pytest.approx(rotary.attention_scaling, rel=1e-15)


def test_gptj_table():
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    config = transformers.GPTJConfig(n_embd=96, n_head=4, n_layer=2, n_positions=50, rotary_dim=12)
    frequencies = inv_freq(load_spec(config).rotary)
    table = create_sinusoidal_positions(50, 12).double().numpy()
    np.testing.assert_allclose(np.sin(np.arange(50)[:, None] * frequencies), table[:, :6], atol=3e-6)
    assert frequencies[-1] == pytest.approx(10000.0 ** (-10 / 12), rel=1e-15)
