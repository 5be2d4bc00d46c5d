"""Families with a bias on the scores: one row a model_type and part."""

from __future__ import annotations

import torch

from tests.walk.row import Case, Row
from tests.walk.site_checks import slopes

ONE = torch.ones(1, 2, dtype=torch.long)  # of two keys the second is biased by exactly the slope


def bloom_slopes(case: Case, heads: int) -> torch.Tensor:
    return case.modeling.build_alibi_tensor(ONE, heads, torch.float32)[:, 0, 1]


def falcon_slopes(case: Case, heads: int) -> torch.Tensor:
    """Divided by sqrt(head_dim), as the scores are."""
    head_dim = case.config.hidden_size // case.config.num_attention_heads
    return case.modeling.build_alibi_tensor(ONE, heads, torch.float32)[:, 0, 1].double() / head_dim**0.5


def mpt_slopes(case: Case, heads: int) -> torch.Tensor:
    """Called as the model calls it: bias_max is never passed on."""
    return -case.modeling.build_mpt_alibi_tensor(heads, 2)[:, 0, 0]


BIASES = (
    Row("bloom", slopes(bloom_slopes), {"12 heads": {"n_head": 12, "hidden_size": 96}}),
    Row(
        "falcon",
        slopes(falcon_slopes),
        {"12 heads": {"hidden_size": 480, "num_attention_heads": 12}},
        default={"alibi": True},
        wrong="tests/test_hf_slopes.py::test_transformers_falcon_rounds_the_bias_to_bfloat16",
    ),
    Row(
        "mpt",
        slopes(mpt_slopes),
        {"12 heads": {"n_heads": 12, "d_model": 480}},
        wrong="tests/reference/test_transformers_divergences.py::test_mpt_never_reads_its_alibi_bias_max",
    ),
)
