"""The truth of MLA's q, k and v in numpy float64, with the error that a correct runtime may have there."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from portpe.layer_parts import MlaProjection, Norm
from portpe.parity.bounds import Estimate, Rounding, joined, quadrature, stored
from portpe.spec import AttentionSpec

Ids = NDArray[np.int64]


class Parts(Protocol):
    """What a block offers: its sizes, its rounding, its projections and its norms."""

    spec: AttentionSpec
    rounding: Rounding

    def project(self, x: Estimate, name: str, channels: Ids | None = None) -> Estimate: ...
    def normalise(self, x: Estimate, norm: Norm, name: str, chosen: Ids | None = None) -> Estimate: ...


def heads(block: Parts, mla: MlaProjection, name: str, x: Estimate, chosen: Ids) -> Estimate:
    """q, k or v (B, heads, S, dim) of the chosen heads, from what q_a_proj sees (B, S, hidden)."""
    spec = block.spec
    own, value = spec.head_dim - mla.qk_rope_head_dim, spec.v_head_dim
    if name == "q":
        if mla.q_lora_rank is not None:
            x = block.normalise(block.project(x, "q_a_proj"), mla.norm, "q_a_layernorm")
        rows = block.project(x, mla.q_module, channels(chosen, spec.head_dim))
        return _by_head(times(rows, mla.q_scale, block.rounding), len(chosen))
    both = block.project(x, "kv_a_proj_with_mqa")
    latent = block.normalise(both[..., : mla.kv_lora_rank], mla.norm, "kv_a_layernorm")
    latent = times(latent, mla.kv_scale, block.rounding)
    start, stop = (0, own) if name == "k" else (own, own + value)
    found = _by_head(block.project(latent, "kv_b_proj", channels(chosen, own + value, start, stop)), len(chosen))
    return found if name == "v" else joined(found, _shared(both[..., mla.kv_lora_rank :], len(chosen)), axis=-1)


def channels(heads: Ids, width: int, start: int = 0, stop: int | None = None) -> Ids:
    """The rows of a projection that make channels start .. stop - 1 of these heads of ``width`` channels."""
    return np.asarray((heads[:, None] * width + np.arange(start, width if stop is None else stop)).reshape(-1))


def _by_head(rows: Estimate, count: int) -> Estimate:
    batch, seq, width = rows.value.shape
    return rows.reshape(batch, seq, count, width // count).swapaxes(1, 2)


def _shared(part: Estimate, count: int) -> Estimate:
    """The part of k that all heads share (B, S, width), once a head."""
    return Estimate(*(np.repeat(array[:, None], count, axis=1) for array in (part.value, part.error)))


def times(x: Estimate, factor: float, rounding: Rounding) -> Estimate:
    """The product, stored; the estimate itself where the factor is 1."""
    if factor == 1:
        return x
    value = x.value * factor
    return Estimate(value, quadrature(x.error * factor, stored(value, rounding)))
