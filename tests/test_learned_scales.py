"""LeRoPE: trained scales of the frequencies, which the weights hold until the spec does."""

import mpmath
import numpy as np
import pytest
import torch

import portpe
from portpe import hf_tables, schedules
from portpe.bundle import Bundle
from portpe.encodings import RotaryEncoding, YarnSchedule
from portpe.errors import SpecError
from portpe.learned import settle
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from portpe.weight_shapes import weight_shapes

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 7, "scale": 0.3}
YARN = YarnSchedule(factor=8.0, original_max_position_embeddings=64)
SCALES = (0.31, -0.22, 0.0, 0.5, -1.25, 0.07)
LEARNED = AttentionSpec(**SIZES, rotary=RotaryEncoding(width=12, schedule=YARN, log_scales="learned"))
WEIGHTS = {"rotary_log_scales": np.array(SCALES, np.float32)}


def test_each_frequency_is_multiplied_by_exp_of_its_scale():
    plain = schedules.inv_freq(RotaryEncoding(width=12, schedule=YARN))
    numbers = portpe.tabulate(LEARNED, [0, 3, 100000], weights=WEIGHTS)
    with mpmath.workdps(50):
        for ours, theta, scale in zip(numbers["inv_freq"], plain, WEIGHTS["rotary_log_scales"], strict=True):
            assert abs(ours / (mpmath.mpf(float(theta)) * mpmath.exp(mpmath.mpf(float(scale)))) - 1) < 1e-15
    assert np.allclose(numbers["cos"], np.cos(np.outer([0, 3, 100000], numbers["inv_freq"])) * 1.2079, atol=1e-4)


def test_transformers_own_module_bit_for_bit():
    from transformers.models.mistral_large4.configuration_mistral_large4 import MistralLarge4TextConfig
    from transformers.models.mistral_large4.modeling_mistral_large4 import MistralLarge4TextRotaryEmbedding

    config = MistralLarge4TextConfig(qk_rope_head_dim=12)
    module = MistralLarge4TextRotaryEmbedding(config)
    with torch.no_grad():
        module.alpha.copy_(torch.from_numpy(WEIGHTS["rotary_log_scales"]))
        positions = np.array([[0, 7, 1023, 131071], [64, 3, 1_000_000, 77]])
        cos, sin = module(torch.zeros(1), torch.from_numpy(positions))
    schedule = YarnSchedule(factor=2048.0, original_max_position_embeddings=512)
    rotary = RotaryEncoding(
        width=12, schedule=schedule, attention_factor=1.0, log_scales=SCALES, precision="hf", pairing="interleaved"
    )
    settled = tuple(float(scale) for scale in WEIGHTS["rotary_log_scales"])
    ours = hf_tables.cos_sin(rotary.model_copy(update={"log_scales": settled}), positions)
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        assert np.array_equal(mine, theirs.numpy()[..., :6])
        assert np.array_equal(mine, theirs.numpy()[..., 6:])


def test_settling_moves_the_tensor_into_the_spec():
    weights = random_weights(LEARNED, 3)
    assert weight_shapes(LEARNED)["rotary_log_scales"] == (6,)
    spec, rest = settle(LEARNED, weights)
    assert spec.rotary.log_scales == tuple(weights["rotary_log_scales"].astype(float))
    assert "rotary_log_scales" not in weight_shapes(spec)
    assert set(rest) == set(weight_shapes(spec))
    assert settle(spec, rest) == (spec, rest)
    assert AttentionSpec.from_dict(spec.to_dict()) == spec
    Attention(spec).load(rest)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, r"weights must hold rotary_log_scales \(6,\), the trained scales of frequencies, got none"),
        ({"rotary_log_scales": np.zeros(5)}, r"rotary_log_scales must have shape \(6,\), got \(5,\)"),
        ({"rotary_log_scales": np.full(6, np.nan)}, "rotary_log_scales must be finite, got nan"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, message):
    with pytest.raises(SpecError, match=message):
        portpe.tabulate(LEARNED, [0, 1], weights=weights)


@pytest.mark.parametrize("use", [lambda spec: table_set(spec, 64), Attention])
def test_without_its_numbers_nothing_is_made(use):
    with pytest.raises(SpecError, match=r"rotary\.log_scales must be numbers, got 'learned'"):
        use(LEARNED)


def test_a_scale_for_each_pair():
    with pytest.raises(SpecError, match="log_scales must have width / 2 = 6 entries, got 2"):
        RotaryEncoding(width=12, schedule=YARN, log_scales=(0.1, 0.2))


def test_a_bundle_holds_the_numbers_and_every_table_follows_them(tmp_path):
    portpe.export(LEARNED, tmp_path / "bundle", golden=False)
    bundle = Bundle.open(tmp_path / "bundle")
    scales = random_weights(LEARNED, 0)["rotary_log_scales"]
    assert bundle.spec.rotary.log_scales == tuple(scales.astype(float))
    assert "rotary_log_scales" not in bundle.weights()
    tables = table_set(bundle.spec, 2048)
    frequencies = portpe.tabulate(LEARNED, [0], weights={"rotary_log_scales": scales})["inv_freq"]
    assert np.allclose(tables["cos_lo"][700], np.cos(700 * frequencies), atol=1e-7)
    assert np.abs(scales).max() > 0.1
