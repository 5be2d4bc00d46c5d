"""Text and speech stacks of multimodal models whose tokens have one coordinate: one row a model_type."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni

from tests.walk.ropes import LINEAR, LLAMA3, YARN, scaled
from tests.walk.rotary_check import rotary
from tests.walk.row import Case, Row

_NO_KEY = "rotary_dim, which its class does not read, leaves half of a head unturned; see the ledger of divergences"
_GLM5_SMALL = {
    "hidden_size": 48,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_hidden_layers": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "indexer_types": ["shared"] * 4,
}


def first_head(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Qwen2.5-Omni's sound: what its attention does with the first head before it rotates it."""
    q, k = (modeling_qwen2_5_omni.deinterleave_head_dim(x) for x in (q, k))
    return modeling_qwen2_5_omni.apply_rotary_pos_emb(q, k, cos, sin)


def turned_but_listed(case: Case) -> None:
    """Muse: layers with a base of 0 in ``layer_rope_theta`` are not turned, the others by the one module."""
    turned = {number for number, one in enumerate(case.readings()) if one.spec.rotary is not None}
    assert turned == {number for number, base in enumerate(case.config.layer_rope_theta) if base}
    assert 0 < len(turned) < len(case.readings())
    rotary()(case)


def nothing_turned(case: Case) -> None:
    """GLM 5: with every key chosen, its attention commutes with permutations of the tokens."""
    specs = [reading.spec for _, reading in case.layers()]
    assert specs
    assert all(spec.encodings == () for spec in specs)
    config = type(case.config)(**_GLM5_SMALL)
    config._attn_implementation = "eager"
    module = case.modeling.Glm5NextTextAttention(config, layer_idx=3).double().eval()
    generator = torch.Generator().manual_seed(5)
    states = torch.randn(2, 7, 48, generator=generator, dtype=torch.float64)
    order, chosen = torch.tensor([3, 0, 6, 2, 5, 1, 4]), torch.arange(7).expand(2, 7, 7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 1.0, generator=generator)
        first, second = (
            module(x, attention_mask=None, prev_topk_indices=chosen)[0] for x in (states, states[:, order])
        )
    assert first.std(1).min() > 0.1
    assert torch.allclose(first[:, order], second, rtol=0, atol=1e-5)  # a softmax in float32


def _muse(model_type: str, layers: int, theta: float) -> Row:
    """A list of bases, of which transformers reads whether they are 0."""
    listed = [0, theta, theta] + [theta] * (layers - 4) + [0]
    return Row(
        model_type,
        turned_but_listed,
        {"by layer": {"layer_rope_theta": listed}, **scaled()},
        wrong="tests/config/test_config_divergences.py::test_muse_listed_bases_do_not_override_the_one_in_the_block",
    )


MULTIMODAL = (
    Row(
        "qwen3_omni_moe_talker_code_predictor",
        rotary("Qwen3OmniMoeRotaryEmbedding"),
        {"linear": {"rope_parameters": LINEAR}, "yarn": {"rope_parameters": YARN}},
    ),
    _muse("muse_spark_text", 62, 500000.0),
    _muse("muse_glimmer_text", 52, 10000.0),
    Row(
        "muse_glimmer_assistant",
        rotary(),
        {"llama3": {"rope_parameters": LLAMA3}, "heads": {"head_dim": 64}},
    ),
    Row(
        "minimax_m3_vl_text",
        rotary("MiniMaxM3VLRotaryEmbedding"),
        scaled(partial_rotary_factor=0.25),
        default={"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}},
        because=_NO_KEY,
        wrong="tests/config/test_config_divergences.py::test_minimax_m3_does_not_read_its_rotary_dim",
    ),
    Row(
        "qwen2_5_omni_dit",
        rotary("Qwen2_5OmniDiTRotaryEmbedding", apply=first_head),
        {"linear": {"rope_parameters": LINEAR}, "heads": {"head_dim": 32}},
    ),
    Row("glm5_next_text", nothing_turned, {"other heads": {"num_attention_heads": 16, "num_key_value_heads": 16}}),
)
