"""Inkling: what its attention adds to the scores of random states, a bank of profiles mixed by each token."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from portpe.reference.bias import BIASES, ScoreInputs
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from tests.walk.relative_rows import ULP, drawn, no_projection
from tests.walk.row import Case, Row

LENGTH, HIDDEN, HEADS = 29, 24, 6
_SMALL = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": 4}
Theirs = tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]
Make = Callable[[Case, Any, int, torch.Tensor], Theirs]


def bank(make: Make) -> Callable[[Case], None]:
    """``make`` (case, config, layer, states) gives weights by canonical name, positions (S,) and what is added to the
    scores (1, heads, S, S). The attention is made small but for its bank. Temperatures are float32 there.
    """

    def check(case: Case) -> None:
        config = copy.deepcopy(case.config)
        for name, size in _SMALL.items():
            setattr(config, name, size)
            if name != "hidden_size":
                setattr(config, f"swa_{name}", size)
        states = torch.randn(1, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        for layer, reading in case.layers():
            spec = reading.spec.model_copy(update={"hidden_size": HIDDEN, "num_heads": HEADS, "num_kv_heads": 2})
            with torch.no_grad():
                weights, places, theirs = make(case, config, layer, states)
            ours = _ours(spec, states, {name: tensor.detach() for name, tensor in weights.items()}, places[None])
            assert theirs.std() > 0.1
            assert (ours - theirs).abs().max() <= 2 * ULP * theirs.abs().max()

    return check


def _ours(
    spec: AttentionSpec, states: torch.Tensor, weights: dict[str, torch.Tensor], places: torch.Tensor
) -> torch.Tensor:
    (encoding,) = spec.bias
    unread = torch.empty(0)
    inputs = ScoreInputs(states, unread, unread, places, places, unread.bool(), weights, no_projection)
    tables = table_set(spec, int(places.max()) + 1)
    return BIASES[encoding.kind](encoding, spec, tables, torch.float64)(inputs)


def _unit(profiles: torch.nn.Parameter) -> None:
    """Of one unit's spread: ``drawn`` divides by the root of a row's length, here the bank's extent."""
    profiles.data.mul_(profiles.shape[-1] ** 0.5)


def first(case: Case, config: Any, layer: int, states: torch.Tensor) -> Theirs:
    """Its attention forms all in one function: what goes to the softmax's own is taken there."""
    config._attn_implementation = "eager"
    attention = drawn(case.modeling.InklingAttention(config, layer))
    _unit(attention.rel_logits_proj.proj)
    given: list[torch.Tensor] = []
    original = case.modeling.eager_attention_forward

    def keep(*args: Any, position_bias: torch.Tensor, **more: Any) -> Any:
        given.append(position_bias)
        return original(*args, position_bias=position_bias, **more)

    case.modeling.eager_attention_forward = keep
    try:
        attention(states, None)
    finally:
        case.modeling.eager_attention_forward = original
    weights = {
        "relative_state_proj.weight": attention.r_proj.weight,
        "distance_bank": attention.rel_logits_proj.proj,
    }
    return weights, torch.arange(LENGTH), given[0]


def second(case: Case, config: Any, layer: int, states: torch.Tensor) -> Theirs:
    prefix = "Inkling2Loop" if case.row.model_type.startswith("inkling2_loop") else "Inkling2"
    kind = "Sliding" if config.layer_types[layer] == "hybrid_sliding" else "Full"
    bias = drawn(getattr(case.modeling, f"{prefix}{kind}Attention")(config, layer).relative_position_bias)
    _unit(bias.proj)
    bias.norm.scale.data.mul_(6)  # of which a clip shortens some
    places = torch.randperm(40, generator=torch.Generator().manual_seed(5))[:LENGTH] + 150000
    found = bias(states, places[:, None] - places, places[None])
    weights = {
        "relative_state_proj.weight": bias.linear.weight,
        "distance_bank": bias.proj,
        "relative_state_scale": bias.norm.scale,
    }
    return weights, places, found


_BANKS = {"short banks": {"rel_extent": 12, "sliding_window_size": 7, "d_rel": 5, "num_hidden_layers": 6}}
_CLIPPED = {"clipped": {"rel_l2_clip_threshold": 0.8, "log_scaling_alpha": 0.3, "num_hidden_layers": 6}, **_BANKS}
INKLINGS = (
    Row(
        "inkling_text",
        bank(first),
        {
            **_BANKS,
            "scaled": {"log_scaling_n_floor": 5, "num_hidden_layers": 6},
            "listed": {"local_layer_ids": [1], "num_hidden_layers": 3, "log_scaling_n_floor": 9},
        },
    ),
    Row("inkling2_text", bank(second), _CLIPPED),
    Row("inkling2_loop_text", bank(second), {**_CLIPPED, "other bases": {"log_scaling_n_floor": 100000}}),
)
