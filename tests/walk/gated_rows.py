"""WavLM: buckets of distances, and what its attention adds to the scores of random hidden states, gates in it."""

from __future__ import annotations

import numpy as np
import torch

from portpe.biases.buckets import distance_rows
from portpe.reference.bias import BIASES, ScoreInputs
from portpe.tables import table_set
from tests.walk.relative_rows import LENGTH, ULP, drawn, no_projection
from tests.walk.row import Case, Row


def gated_buckets(case: Case) -> None:
    """The bias that the module hands to its attention, in float64, within 2 ulp of float32; every bucket exactly."""
    config = case.config
    for _, reading in case.layers():
        spec = reading.spec
        (encoding,) = spec.bias
        module = drawn(
            case.modeling.WavLMAttention(
                config.hidden_size,
                config.num_attention_heads,
                num_buckets=config.num_buckets,
                max_distance=config.max_bucket_distance,
            )
        )
        far = np.arange(-3 * encoding.max_distance, 3 * encoding.max_distance)
        theirs = module._relative_positions_bucket(torch.from_numpy(far)).numpy()
        np.testing.assert_array_equal(distance_rows(encoding).of(np.array([0]), far)[0], theirs)
        handed: list[torch.Tensor] = []
        module.torch_multi_head_self_attention = lambda *given, into=handed: (into.append(given[2]), None)
        states = torch.randn(
            2, LENGTH, spec.hidden_size, generator=torch.Generator().manual_seed(3), dtype=torch.float64
        )
        with torch.no_grad():
            module(states)
        weights = {
            "relative_attention_bias.weight": module.rel_attn_embed.weight,
            "relative_gate.weight": module.gru_rel_pos_linear.weight,
            "relative_gate.bias": module.gru_rel_pos_linear.bias,
            "relative_gate_scale": module.gru_rel_pos_const.flatten(),
        }
        places, nothing = torch.arange(LENGTH)[None], torch.empty(0)
        seen = torch.ones(1, 1, 1, 1).bool()
        inputs = ScoreInputs(states, nothing, nothing, places, places, seen, weights, no_projection)
        with torch.no_grad():
            ours = BIASES[encoding.kind](encoding, spec, table_set(spec, 2 * LENGTH), torch.float64)(inputs)
        added = handed[0].view_as(ours)
        assert ours.std() > 0.03
        assert (ours - added).abs().max() <= 2 * ULP * added.abs().max()


_SMALL = {"hidden_size": 48, "num_attention_heads": 6}

GATED = (Row("wavlm", gated_buckets, {"few buckets": {"num_buckets": 18, "max_bucket_distance": 23, **_SMALL}}),)
