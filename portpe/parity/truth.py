"""The truth of a case: the PyTorch reference in float64, kept at the sampled places.

Needs torch. Weights and inputs are rounded to the type first; everything after that is float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from portpe.golden import CaseInputs, GoldenCase, kv_heads_of
from portpe.interface import CACHE, DTYPES, Array, BlockInputs, stages_of
from portpe.spec import AttentionSpec

LONG_STAGES = 1024  # keys beyond which scores and probs are not kept: a runtime's own stages are judged all the same


def golden(
    spec: AttentionSpec,
    weights: Mapping[str, Array],
    tables: Mapping[str, Array] | None,
    cases: Iterable[CaseInputs],
    dtype: str,
    quantized: Mapping[str, NDArray[np.float64]] | None = None,
) -> Iterator[GoldenCase]:
    """Each case's truth in one type. ``tables`` are transformers' own (precision hf), else None.

    ``quantized`` are weights that a quantised graph holds in place of those of the same names, in float64.
    """
    import torch

    from portpe.reference import Attention

    rounded = {name: array.astype(DTYPES[dtype]).astype(np.float64) for name, array in weights.items()} | {
        **(quantized or {})
    }
    block = Attention(spec, dtype=torch.float64, tables=tables).load(rounded)
    for case in cases:
        with torch.inference_mode():
            found = {name: tensor.numpy() for name, tensor in block.stages(**_tensors(case.inputs(dtype))).items()}
        yield _sampled(spec, case, dtype, found)


def _tensors(inputs: BlockInputs) -> dict[str, Any]:
    import torch

    floats = {
        name: torch.from_numpy(getattr(inputs, name).astype(np.float64))
        for name in ("hidden_states", "past_key", "past_value")
    }
    ids = {
        name: torch.from_numpy(getattr(inputs, name)) for name in ("position_ids", "attention_mask", "key_position_ids")
    }
    states = {name: torch.from_numpy(array.astype(np.float64)) for name, array in inputs.past_states.items()}
    return {**floats, **ids, "past_states": states}


def _sampled(spec: AttentionSpec, case: CaseInputs, dtype: str, found: Mapping[str, NDArray[Any]]) -> GoldenCase:
    batch, row = case.pairs.T
    in_batch, slot = case.slots.T
    kv_heads = kv_heads_of(case.heads, spec.num_heads, spec.num_kv_heads)
    stages = {}
    for name in stages_of(spec):
        stage = found[name]
        if name in ("embedded", "normed"):
            stages[name] = stage[batch, row]
        elif name != "output" and (name not in ("scores", "probs") or stage.shape[-1] <= LONG_STAGES):
            chosen = kv_heads if name in ("k", "v", "k_features", "k_rotated") else case.heads
            new = stage[:, :, -case.hidden_states.shape[1] :]  # features and k_rotated may hold the cached keys too
            stages[name] = new[batch[:, None], chosen, row[:, None]]
    if "scores" in stages:
        stages["scores"] = np.where(stages["probs"] != 0, stages["scores"], 0.0)  # masked places hold no meaning
    key, value = (found[name][in_batch, :, slot] for name in CACHE)
    states = {name: found[f"present_{name}"][in_batch, :, slot] for name in spec.cached_states}
    return GoldenCase(case, dtype, found["output"][batch, row], key, value, stages, states)
