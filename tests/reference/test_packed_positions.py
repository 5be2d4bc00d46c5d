"""Layer: tests. Several texts in one row: positions start again with each, and are the caller's to give."""

import numpy as np
import pytest
import torch

from portpe.reference import Attention


def restarting(segments: list[int]) -> list[int]:
    """The position inside its own text of each token, by hand; segment 0 is padding and gets 0."""
    return [0 if segment == 0 else segments[:i].count(segment) for i, segment in enumerate(segments)]


def test_restarting_positions_by_hand():
    assert restarting([1, 1, 2, 2, 2, 0]) == [0, 1, 0, 1, 2, 0]


@pytest.mark.parametrize("kind", ["half", "interleaved", "partial_last_negative"])
@pytest.mark.parametrize("segments", [[1, 1, 2, 2, 2, 0], [3, 3, 3, 1, 2, 2, 2, 2]], ids=str)
def test_each_text_of_a_row_is_turned_as_it_is_alone(spec_of, weights_of, states, kind, segments):
    """Queries and keys of a packed row against the same tokens, one text a call; by slots the second differs."""
    spec = spec_of(kind)
    attention = Attention(spec, dtype=torch.float64).load(weights_of(spec))
    x, kept = states(spec, 1, len(segments)), torch.tensor([[int(segment > 0) for segment in segments]])
    packed = attention.stages(x, torch.tensor([restarting(segments)]), kept)
    by_slot = attention.stages(x, torch.arange(len(segments))[None], kept)
    second = segments[-2]  # its text does not start at slot 0
    for segment in sorted(set(segments) - {0}):
        at = [i for i, each in enumerate(segments) if each == segment]
        alone = attention.stages(x[:, at])
        for stage in ("q_rotated", "k_rotated"):
            np.testing.assert_allclose(packed[stage][:, :, at], alone[stage], rtol=0, atol=1e-13)
            if segment == second:
                assert (by_slot[stage][:, :, at] - alone[stage]).abs().max() > 1e-3
