"""Query temperatures: their numbers by hand, and in every implementation at the steps."""

import math

import numpy as np
import pytest
import torch

import portpe
from portpe import tables, temperatures
from portpe.diff import compare
from portpe.encodings import LogarithmicTemperature, PowerTemperature, SteppedTemperature
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 7, "scale": 0.3}
LLAMA4 = {
    "model_type": "llama4_text",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 8,
    "max_position_embeddings": 8192,
}
MINISTRAL = {
    "model_type": "ministral3",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 3,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "max_position_embeddings": 262144,
        "llama_4_scaling_beta": 0.1,
    },
}


def query_scale(spec, positions):
    return portpe.tabulate(spec, positions)["query_scale"]


def test_llama_4_counts_from_one_and_ministral_from_zero():
    llama, ministral = portpe.load_spec(LLAMA4, layer=3), portpe.load_spec(MINISTRAL)
    assert query_scale(llama, [0, 8190, 8191, 16382, 16383, 1_000_000]).tolist() == pytest.approx(
        [1, 1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(3), 1 + 0.1 * math.log(123)], rel=1e-15
    )
    assert query_scale(ministral, [0, 16383, 16384, 32767, 32768]).tolist() == pytest.approx(
        [1, 1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(3)], rel=1e-15
    )


def test_the_other_laws_by_hand():
    beam = AttentionSpec(**SIZES, query_scale=PowerTemperature(interval=2048, offset=1, exponent=0.1))
    assert query_scale(beam, [2047, 0]).tolist() == pytest.approx([2**0.1, (1 + 1 / 2048) ** 0.1], rel=1e-15)
    inkling = AttentionSpec(**SIZES, query_scale=LogarithmicTemperature(interval=100, offset=1, beta=0.1))
    assert query_scale(inkling, [0, 99, 100, 199]).tolist() == pytest.approx(
        [1, 1, 1 + 0.1 * math.log(1.01), 1 + 0.1 * math.log(2)], rel=1e-14
    )


def test_llama_4_scales_the_layers_without_rotation_alone():
    layers = portpe.load_layers(LLAMA4)
    assert [layer.rotary is None for layer in layers] == [False, False, False, True] * 2
    assert all((layer.query_scale is None) == (layer.rotary is not None) for layer in layers)
    assert layers[0].q_norm is not None
    assert layers[0].q_norm.when == "after"
    assert layers[3].q_norm is None
    every = portpe.load_layers({**LLAMA4, "no_rope_layers": [0, 1, 1, 0, 0, 1, 0, 1]})
    assert [int(layer.rotary is not None) for layer in every] == [0, 1, 1, 0, 0, 1, 0, 1]
    off = portpe.load_spec({**LLAMA4, "attn_temperature_tuning": False}, layer=3)
    assert off.query_scale is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA4, "no_rope_layers": [1, 0]}, "no_rope_layers must list one for each of the 8 layers"),
        ({**LLAMA4, "no_rope_layers": [2] * 8}, r"no_rope_layers\[0\] must be 1 or 0, got 2"),
        ({**LLAMA4, "attention_chunk_size": 0}, "attention_chunk_size must be an integer >= 1, got 0"),
        ({**LLAMA4, "layer_types": ["full_attention"]}, "layer_types must list one for each of the 8 layers"),
        ({**LLAMA4, "layer_types": ["sliding_attention"] * 8}, r"layer_types\[0\] must be 'full_attention' or"),
        (
            {**LLAMA4, "layer_types": ["chunked_attention"] * 8, "attention_chunk_size": None},
            "attention_chunk_size is required and missing: layer 0 is of type 'chunked_attention'",
        ),
        ({**LLAMA4, "floor_scale": 0}, "floor_scale must be an integer >= 1, got 0"),
        ({**LLAMA4, "attn_temperature_tuning": "yes"}, "attn_temperature_tuning must be true or false, got 'yes'"),
        (
            {**MINISTRAL, "rope_parameters": {**MINISTRAL["rope_parameters"], "llama_4_scaling_beta": -1}},
            "llama_4_scaling_beta must be >= 0, got -1",
        ),
        (
            {**MINISTRAL, "rope_parameters": {"rope_type": "default"}},
            "rope_parameters.llama_4_scaling_beta is required and missing",
        ),
    ],
)
def test_configs_that_do_not_fit_are_refused(config, message):
    with pytest.raises(SpecError, match=message) as error:
        portpe.load_spec(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "temperature",
    [
        SteppedTemperature(interval=13, offset=1, beta=0.3),
        SteppedTemperature(interval=4096, beta=0.1),
        LogarithmicTemperature(interval=11, offset=1, beta=0.2),
        PowerTemperature(interval=17, offset=5, exponent=0.2),
    ],
)
@pytest.mark.parametrize("precision", ["exact", "hf"])
def test_tables_hold_every_position_below_their_end_and_refuse_those_past_it(temperature, precision):
    temperature = temperature.model_copy(update={"precision": precision})
    spec = AttentionSpec(**SIZES, query_scale=temperature, max_position_embeddings=5000)
    held = tables.table_set(spec, 5000)
    end = tables.end_of(spec, held)
    assert 5000 <= end < 5000 + temperature.step
    positions = np.array([0, 1, 11, 12, 13, 25, 26, 4095, 4096, 4999])
    looked_up = held["query_scale"][temperatures.row_of(temperature, positions)]
    assert looked_up.dtype == np.float32
    exact = temperatures.multipliers(temperature, positions)
    # torch's pow rounds the last elements of an array by another routine, so rows of hf may be one ulp apart
    ulps = 2 if precision == "hf" else 0.5
    assert (np.abs(looked_up - exact) <= ulps * 2.0**-23 * exact).all()
    assert exact.max() > 1.2 * exact.min() or temperature.interval == 4096
    block = Attention(spec, dtype=torch.float64, tables=held).load(random_weights(spec, 0))
    x = torch.zeros(1, 1, 20, dtype=torch.float64)
    block(x, torch.tensor([[end - 1]]))
    with pytest.raises(SpecError, match=f"position_ids must be < {end}"):
        block(x, torch.tensor([[end]]))


def test_a_temperature_multiplies_queries_after_norm_and_rotation():
    spec = portpe.load_spec(MINISTRAL)
    weights = random_weights(spec, 3)
    plain = spec.model_copy(update={"query_scale": None})
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 48)))
    positions = torch.tensor([[3, 16383, 16384], [70000, 2, 40000]])
    ours, without = (Attention(s, dtype=torch.float64).load(weights).stages(x, positions) for s in (spec, plain))
    factor = 1 + 0.1 * (1 + positions.double().div(16384).floor()).log()
    assert torch.allclose(ours["q_rotated"], without["q_rotated"] * factor[:, None, :, None], rtol=1e-15, atol=0)
    assert torch.equal(ours["k_rotated"], without["k_rotated"])


def test_a_layer_with_a_temperature_alone_has_no_rotated_keys():
    spec = portpe.load_spec(LLAMA4, layer=3)
    stages = Attention(spec, dtype=torch.float64).load(random_weights(spec, 3)).stages(torch.ones(1, 2, 48).double())
    assert "q_rotated" in stages
    assert "k_rotated" not in stages


def test_two_temperatures_differ_from_their_first_step():
    base = {**SIZES, "query_scale": SteppedTemperature(interval=50, beta=0.1)}
    other = {**SIZES, "query_scale": SteppedTemperature(interval=50, beta=0.1, offset=1)}
    found = compare(AttentionSpec(**base), AttentionSpec(**other))
    assert {d.field: d.first_position for d in found.differences} == {"query_scale.offset": 49}
    none = compare(AttentionSpec(**base), AttentionSpec(**SIZES))
    assert {d.first_position for d in none.differences} == {50}
