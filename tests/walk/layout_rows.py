"""LayoutLM's descendants: what their encoders add to the scores for places and boxes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import portpe
from tests.walk.row import Case, Row

COUNT = 230


def buckets(name: str, bias: Callable[..., torch.Tensor]) -> Callable[[Case], None]:
    """``bias`` (encoder, places (B, S), boxes (B, S, 4)) gives what layers add, (B, heads, S, S)."""

    def check(case: Case) -> None:
        random = np.random.default_rng(3)
        places = random.permutation(3 * COUNT)[None, :COUNT]
        boxes = random.integers(0, 1001, (1, COUNT, 4))
        axes = np.stack([places[0], boxes[0, :, 0], boxes[0, :, 3]])
        for _, reading in case.layers():
            spec = reading.spec
            case.config.num_hidden_layers = 0
            encoder = getattr(_module(case), name)(case.config).double()
            tables = [getattr(encoder, f"rel_pos{axis}_bias").weight for axis in ("", "_x", "_y")[: spec.position_axes]]
            with torch.no_grad():
                for number, table in enumerate(tables):
                    table.normal_(generator=torch.Generator().manual_seed(number))
                theirs = bias(encoder, torch.from_numpy(places), torch.from_numpy(boxes))[0]
            several = spec.position_axes > 1
            names = [f"axis_bias_{axis}.weight" for axis in range(3)] if several else ["relative_attention_bias.weight"]
            weights = {name: table.detach().T.numpy() for name, table in zip(names, tables, strict=True)}
            ours = portpe.tabulate(spec, axes if several else axes[0], weights=weights)["bias"]
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=2**-49 * theirs.abs().max())  # sums of three
            assert theirs.std() > 0.05  # LayoutLMv3 divides by sqrt(head_dim)

    return check


def _module(case: Case):
    """LayoutXLM is LayoutLMv2 under a config of its own."""
    return case.module("layoutlmv2") if case.row.model_type == "layoutxlm" else case.modeling


def second(encoder: torch.nn.Module, places: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    total = encoder._calculate_1d_position_embeddings(places)
    if encoder.has_spatial_attention_bias:
        total = total + encoder._calculate_2d_position_embeddings(boxes)
    return total


def third(encoder: torch.nn.Module, places: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    return encoder._compute_position_bias(places, boxes)


CONFIGS = {
    "other bins": {"rel_pos_bins": 20, "max_rel_pos": 70, "rel_2d_pos_bins": 48, "max_rel_2d_pos": 500},
    "places alone": {"has_spatial_attention_bias": False, "num_attention_heads": 6},
}
LAYOUTS = (
    Row("layoutlmv2", buckets("LayoutLMv2Encoder", second), CONFIGS),
    Row("layoutxlm", buckets("LayoutLMv2Encoder", second), CONFIGS),
    Row("layoutlmv3", buckets("LayoutLMv3Encoder", third), CONFIGS),
)
