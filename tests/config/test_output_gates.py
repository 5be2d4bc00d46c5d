"""Gates on attention's output: which families have one, which keys say so, and what no checkpoint may contradict."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from portpe.checkpoint import load_layer
from portpe.config import load_spec, read, read_layers
from portpe.errors import SpecError
from portpe.layer_parts import OutputGate
from portpe.weight_shapes import weight_shapes

ATTENDS = {"qwen3_next": 3, "qwen3_5_text": 3, "qwen3_5_moe_text": 3, "bailing_hybrid": 5, "lfm3": 2}
GATES = {  # by transformers' own modules: scope, activation, bias by default
    "afmoe": ("channel", "sigmoid", False),
    "bailing_hybrid": ("head", "sigmoid", False),
    "beam": ("channel", "sigmoid", True),
    "hrm_text": ("channel", "sigmoid", False),
    "laguna": ("head", "softplus", False),
    "lfm3": ("head", "sigmoid", False),
    "qwen3_5_moe_text": ("channel", "sigmoid", False),
    "qwen3_5_text": ("channel", "sigmoid", False),
    "qwen3_next": ("channel", "sigmoid", False),
    "step3p5": ("head", "sigmoid", False),
}


@pytest.mark.parametrize("family", GATES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_gate_of_each_family(family):
    scope, activation, bias = GATES[family]
    reading = read({"model_type": family}, layer=ATTENDS.get(family, 0))
    assert reading.spec.output_gate == OutputGate(scope=scope, activation=activation, bias=bias)
    assert reading.beyond is None
    width = reading.spec.num_heads * (reading.spec.v_head_dim if scope == "channel" else 1)
    assert weight_shapes(reading.spec)["gate_proj.weight"] == (width, reading.spec.hidden_size)


@pytest.mark.parametrize(
    ("config", "gate"),
    [
        ({"model_type": "laguna", "gating": True}, ("head", "softplus", False)),
        ({"model_type": "laguna", "gating": "per-head"}, ("head", "softplus", False)),
        ({"model_type": "laguna", "gating": "per-element"}, ("channel", "softplus", False)),
        ({"model_type": "qwen3_next", "attention_bias": True}, ("channel", "sigmoid", True)),
        ({"model_type": "qwen3_5_text", "attention_bias": True}, ("channel", "sigmoid", True)),
        ({"model_type": "hrm_text", "attention_bias": True}, ("channel", "sigmoid", True)),
        ({"model_type": "lfm3", "use_attention_gate": False}, None),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_keys_that_decide(config, gate):
    found = read(config, layer=ATTENDS.get(config["model_type"], 0)).spec.output_gate
    assert (found and (found.scope, found.activation, found.bias)) == gate


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "laguna", "gating": False}, "gating must be true, 'per-head' or 'per-element', got False"),
        ({"model_type": "laguna", "gating": "per-layer"}, "gating must be true, 'per-head' or 'per-element'"),
        ({"model_type": "step3p5", "use_head_wise_attn_gate": False}, "use_head_wise_attn_gate must be True"),
        ({"model_type": "qwen3_5_text", "attn_output_gate": False}, "attn_output_gate must be True"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gate_that_no_implementation_has_is_refused(config, message):
    with pytest.raises(SpecError, match=message):
        read(config, layer=ATTENDS.get(config["model_type"], 0))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_layer_of_hrm_runs_in_every_cycle():
    """Two stacks of 3 layers, 2 cycles of 4 runs of the first and one of the second: as many caches."""
    config = {"model_type": "hrm_text", "num_hidden_layers": 3, "H_cycles": 2, "L_cycles": 4}
    assert len(read_layers(config)) == 3 * 2 * 5
    saved = config | {"num_hidden_layers": 30, "num_layers_per_stack": 3}
    assert len(read_layers(saved)) == 30
    with pytest.raises(SpecError, match="num_hidden_layers must be num_layers_per_stack \\* cycles = 30, got 29"):
        read(saved | {"num_hidden_layers": 29})
    reading = read(config, input_norm=True)
    assert any("prefix_lm" in line for line in reading.warnings)
    assert reading.spec.input_norm is not None
    assert not reading.spec.input_norm.affine
    assert not any("prefix_lm" in line for line in read(config | {"prefix_lm": False}).warnings)


def test_a_gate_in_the_checkpoint_that_the_config_has_not(tmp_path):
    config = {
        "model_type": "lfm3",
        "hidden_size": 20,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
    }
    tensors = {}
    for name, shape in weight_shapes(load_spec(config)).items():
        tensors[f"model.layers.0.self_attn.{name}"] = np.full(shape, 0.5, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_layer(tmp_path, load_spec(tmp_path), model_type="lfm3", layer=0)["gate_proj.weight"].shape == (3, 20)
    ungated = load_spec(config | {"use_attention_gate": False})
    with pytest.raises(SpecError, match=r"gate_proj\.weight is there, but by its config layer 0 of lfm3 has no"):
        load_layer(tmp_path, ungated, model_type="lfm3", layer=0)


def test_one_bias_a_head_stands_for_each_of_its_channels(tmp_path):
    """Beam's gate_bias."""
    config = {
        "model_type": "beam",
        "hidden_size": 20,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
    }
    spec = load_spec(config)
    tensors = {
        f"model.layers.0.self_attn.{name}": np.zeros(shape, np.float32)
        for name, shape in weight_shapes(spec).items()
        if name != "gate_proj.bias"
    }
    tensors["model.layers.0.self_attn.gate_bias"] = np.array([0.5, -1.0, 3.0], np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    weights = load_layer(tmp_path, spec, model_type="beam", layer=0)
    assert weights["gate_proj.bias"].tolist() == [0.5, 0.5, -1.0, -1.0, 3.0, 3.0]
