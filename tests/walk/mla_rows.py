"""Decoders with multi-head latent attention, a query temperature or a base of their own: one row a model_type."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from portpe import temperatures
from portpe.learned import settle
from tests.walk.ropes import LINEAR, YARN, longrope, scaled
from tests.walk.rotary_check import POSITIONS, Apply, assert_same_numbers, assert_same_rotation, rotary
from tests.walk.row import Case, Row

DEEPSEEK_YARN = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.9}
HUNYUAN = {
    **scaled(),
    "alpha": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 1000.0}},
}
V4_MAIN = {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.125}
V4_COMPRESS = {**YARN, "attention_factor": 1.0, "partial_rotary_factor": 0.125}
MLA_ROPES = {"linear": {"rope_parameters": LINEAR}, "yarn": {"rope_parameters": DEEPSEEK_YARN}}


def neighbours(package: str) -> Apply:
    """The family's own rotation of neighbours, written as halves."""
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    return cast("Apply", module.apply_rotary_pos_emb_interleave)


def complex_rotary(name: str) -> Callable[[Case], None]:
    """A class that gives exp(i angle) times the attention factor, for neighbours as complex numbers."""

    def check(case: Case) -> None:
        module = getattr(case.modeling, name)(case.config)
        compared = 0
        for _, reading in case.layers():
            if (encoding := reading.spec.rotary) is None:
                continue
            compared += 1
            turns = module(torch.zeros(1), torch.from_numpy(POSITIONS))
            assert_same_numbers(encoding, turns.real, turns.imag)

            def apply(q: torch.Tensor, k: torch.Tensor, *_: Any) -> list[torch.Tensor]:
                pairs = (torch.view_as_complex(x.unflatten(-1, (-1, 2))) for x in (q, k))
                return [torch.view_as_real(x * turns[:, None]).flatten(3) for x in pairs]  # noqa: B023

            assert_same_rotation(encoding, apply, turns.real, turns.imag)
        assert compared, "no layer has a rotary encoding"

    return check


def and_temperature(check: Callable[[Case], None], theirs: Callable[[Case], np.ndarray]) -> Callable[[Case], None]:
    """The rotation, and the multipliers of queries at ``POSITIONS``, bit for bit."""

    def both(case: Case) -> None:
        check(case)
        found = [reading.spec.query_scale for _, reading in case.layers() if reading.spec.query_scale is not None]
        assert found, "no layer has a query temperature"
        for temperature in found:
            ours = temperatures.multipliers(temperature, POSITIONS)
            assert np.array_equal(ours, theirs(case).astype(np.float64))
            assert ours.max() > 1.1

    return both


def ministral_scale(case: Case) -> np.ndarray:
    block = case.config.rope_parameters
    beta, original = block["llama_4_scaling_beta"], block["original_max_position_embeddings"]
    scale = case.modeling.get_llama_4_attn_scale(torch.from_numpy(POSITIONS), beta, original)
    return scale[:, 0, :, 0].numpy()


def llama4_scale(case: Case) -> np.ndarray:
    """What its attention does inline, by its formula: log1p(floor((position + 1) / floor_scale)) attn_scale + 1."""
    counted = torch.from_numpy(POSITIONS).float() + 1.0
    return (torch.log1p(torch.floor(counted / case.config.floor_scale)) * case.config.attn_scale + 1.0).numpy()


def beam_scale(case: Case) -> np.ndarray:
    return case.modeling.compute_attention_scaling(torch.from_numpy(POSITIONS))[:, 0, :, 0].numpy()


def trained_scales(case: Case) -> None:
    """Mistral Large 4: its module has a parameter that scales the frequencies, and the weights have it for ours."""
    module = case.modeling.MistralLarge4TextRotaryEmbedding(case.config)
    scales = torch.randn(module.alpha.shape, generator=torch.Generator().manual_seed(5)) * 0.3
    with torch.no_grad():
        module.alpha.copy_(scales)
        cos, sin = module(torch.zeros(1), torch.from_numpy(POSITIONS))
    compared = 0
    for _, reading in case.layers():
        if reading.spec.rotary is not None:
            compared += 1
            spec, _ = settle(reading.spec, {"rotary_log_scales": scales.numpy()})
            assert spec.rotary is not None
            assert_same_numbers(spec.rotary, cos, sin)
            assert_same_rotation(spec.rotary, neighbours("mistral_large4"), cos, sin)
    assert compared


def _one_by_one(function: Callable[..., torch.Tensor]) -> Apply:
    """A rotation of one tensor, (x, cos, sin), for queries and keys."""
    return lambda q, k, cos, sin: [function(x, cos, sin) for x in (q, k)]


def by_label(case: Case) -> None:
    """DeepSeek V4's module names its blocks main and compress; a function turns the last channels of one tensor."""
    module, labels = case.modeling.DeepseekV4RotaryEmbedding(case.config), set()
    for _, reading in case.layers():
        encoding = reading.spec.rotary
        assert encoding is not None
        assert encoding.channels == "last"
        slides = encoding.schedule.rope_theta == case.config.rope_parameters["main"]["rope_theta"]
        label = "main" if slides else "compress"
        labels.add(label)
        cos, sin = module(torch.zeros(1), torch.from_numpy(POSITIONS), layer_type=label)
        assert_same_numbers(encoding, cos, sin)
        assert_same_rotation(encoding, _one_by_one(case.modeling.apply_rotary_pos_emb), cos, sin)
        passes = torch.randn(2, 3, POSITIONS.shape[1], 70 + encoding.width)
        turned = case.modeling.apply_rotary_pos_emb(passes, cos, sin)
        assert torch.equal(turned[..., :70], passes[..., :70])
        assert not torch.equal(turned[..., 70:], passes[..., 70:])
    kinds = set(case.config.layer_types)
    assert labels == {"main" if kind == "sliding_attention" else "compress" for kind in kinds}


def no_encoding(case: Case) -> None:
    """Kimi Linear's attention turns nothing: there is no rotary module, and no layer of ours has an encoding."""
    assert not [name for name in dir(case.modeling) if "Rotary" in name]
    specs = [reading.spec for _, reading in case.layers()]
    assert specs
    assert all(spec.encodings == () for spec in specs)


MLA = (
    Row("deepseek_v2", complex_rotary("DeepseekV2RotaryEmbedding"), MLA_ROPES),
    Row(
        "deepseek_v3",
        rotary(apply=neighbours("deepseek_v3")),
        {**MLA_ROPES, "yarn of width 32": {"rope_parameters": DEEPSEEK_YARN, "qk_rope_head_dim": 32}},
    ),
    Row(
        "deepseek_v3",
        rotary(),
        {"yarn halves": {"rope_parameters": DEEPSEEK_YARN}},
        default={"rope_interleave": False},
    ),
    Row(
        "sarvam_mla",
        rotary("DeepseekV3RotaryEmbedding", apply=neighbours("deepseek_v3"), modeling="deepseek_v3"),
        MLA_ROPES,
    ),
    Row(
        "deepseek_v32",
        rotary(apply=neighbours("deepseek_v32")),
        MLA_ROPES,
    ),
    Row(
        "glm_moe_dsa",
        rotary(apply=neighbours("glm_moe_dsa")),
        MLA_ROPES,
    ),
    Row("youtu", rotary(apply=neighbours("youtu")), MLA_ROPES),
    Row("axk1", rotary(apply=neighbours("axk1")), MLA_ROPES),
    Row("glm4_moe_lite", rotary(apply=neighbours("glm4_moe_lite")), MLA_ROPES),
    Row(
        "minicpm3",
        rotary(),
        {**MLA_ROPES, "longrope": {"rope_parameters": longrope(16)}},
    ),
    Row("longcat_flash", rotary(apply=neighbours("longcat_flash")), MLA_ROPES),
    Row("kimi_linear", no_encoding, {"other heads": {"num_attention_heads": 16, "num_key_value_heads": 16}}),
    Row(
        "mistral4",
        and_temperature(rotary(apply=neighbours("mistral4")), ministral_scale),
        {"yarn": {"rope_parameters": {**DEEPSEEK_YARN, "llama_4_scaling_beta": 0.3}}},
    ),
    Row(
        "ministral3",
        and_temperature(rotary(), ministral_scale),
        {"yarn": {"rope_parameters": {**DEEPSEEK_YARN, "llama_4_scaling_beta": 0.3}}},
    ),
    Row(
        "llama4_text",
        and_temperature(complex_rotary("Llama4TextRotaryEmbedding"), llama4_scale),
        {
            **scaled(),
            "steps": {"floor_scale": 3000, "attn_scale": 0.3, "no_rope_layer_interval": 3},
        },
    ),
    Row("hunyuan_v1_dense", rotary(), {name: {**config, "head_dim": 128} for name, config in HUNYUAN.items()}),
    Row("hunyuan_v1_moe", rotary(), {name: {**config, "head_dim": 128} for name, config in HUNYUAN.items()}),
    Row("bailing_hybrid", rotary(apply=neighbours("bailing_hybrid")), MLA_ROPES),
    Row("axk2", rotary(apply=neighbours("axk2")), MLA_ROPES),
    Row("hy_v4", rotary("HYV4RotaryEmbedding"), MLA_ROPES),
    Row("mistral_large4_text", trained_scales, MLA_ROPES),
    Row(
        "beam",
        and_temperature(rotary(), beam_scale),
        {
            "linear": {"rope_parameters": {"sliding_attention": LINEAR, "full_attention": None}},
            "window": {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2},
        },
    ),
    Row(
        "deepseek_v4",
        by_label,
        {
            "yarn": {"rope_parameters": YARN},
            "nested": {"rope_parameters": {"main": V4_MAIN, "compress": V4_COMPRESS}},
            "another width": {"partial_rotary_factor": 0.25, "layer_types": ["sliding_attention"] * 43},
        },
    ),
)
