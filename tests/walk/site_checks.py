"""Tables and biases of transformers against ours: learned rows, sinusoids and ALiBi's slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import portpe
from portpe import hf_tables
from tests.walk.row import Case

POSITIONS = np.array([0, 7, 3, 11, 2])
ULPS = 2  # how far a bias or a sinusoid may be off


def learned(lookup: Callable[[Case, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Callable[[Case], None]:
    """``lookup`` (case, positions (P,)) gives the model's own table and the rows (P, width) that its module reads."""

    def check(case: Case) -> None:
        _, reading = next(case.layers())
        with torch.no_grad():
            table, rows = lookup(case, torch.from_numpy(POSITIONS))
        weights = {"position_embedding.weight": table.detach().numpy()}
        ours = portpe.tabulate(reading.spec, POSITIONS, weights=weights)["embedding"]
        assert np.array_equal(ours, rows.double().numpy())
        assert np.abs(rows.numpy()).max() > 0

    return check


def sinusoids(table: Callable[[Case], torch.Tensor]) -> Callable[[Case], None]:
    """``table`` gives the module's own rows, from position 0 on."""

    def check(case: Case) -> None:
        _, reading = next(case.layers())
        theirs = table(case).detach().numpy()
        assert_within_ulps(hf_tables.sinusoid(reading.spec.embedding, np.arange(len(theirs))), theirs)

    return check


def slopes(theirs: Callable[[Case, int], torch.Tensor]) -> Callable[[Case], None]:
    """``theirs`` (case, heads) gives the slopes (heads,), positive, as they reach the scores."""

    def check(case: Case) -> None:
        _, reading = next(case.layers())
        (encoding,) = reading.spec.bias
        heads = reading.spec.num_heads
        assert_within_ulps(hf_tables.alibi_slopes(encoding, heads), theirs(case, heads).float().numpy())

    return check


def no_encoding(attention: str, sizes: Mapping[str, int], **more: Any) -> Callable[[Case], None]:
    """The attention class of a family without positions, made small: without a mask it commutes with permutations."""

    def check(case: Case) -> None:
        for _, reading in case.layers():
            spec = reading.spec
            assert (spec.rotary, spec.embedding, spec.bias) == (None, None, ())
        config = type(case.config)(**sizes)
        config._attn_implementation = "eager"
        module = getattr(case.modeling, attention)(config, layer_idx=0).double().eval()
        generator = torch.Generator().manual_seed(5)
        states = torch.randn(2, 7, module.q_proj.in_features, generator=generator, dtype=torch.float64)
        order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(0, 0.4, generator=generator)
            first, second = (module(x, attention_mask=None, **more)[0] for x in (states, states[:, order]))
        assert first.std(1).min() > 0.1
        assert torch.allclose(first[:, order], second, rtol=0, atol=1e-5)  # a softmax in float32

    return check


def assert_within_ulps(ours: Any, theirs: Any, ulps: int = ULPS) -> None:
    """Float32 arrays; an ulp is that of the greater of the two."""
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    unit = np.spacing(np.maximum(np.abs(ours), np.abs(theirs)))
    assert (np.abs(ours.astype(np.float64) - theirs) <= ulps * unit).all()
