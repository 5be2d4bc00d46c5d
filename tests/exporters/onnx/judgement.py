"""How far a block's tensors may stand from its definition."""

from __future__ import annotations

import numpy as np

from portpe.interface import BlockInputs, BlockOutputs
from portpe.spec import AttentionSpec

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def excess(spec: AttentionSpec, inputs: BlockInputs, outputs: BlockOutputs, expected: dict, dtype: str) -> dict:
    """Each tensor's largest error in units of what rounding explains: above 1 there is a fault.

    Pad queries and pad keys are left out, and still have to be finite. Rounding explains a few units of the type at a
    tensor's largest value; behind the softmax the error of a score before its cap multiplies that.
    """
    found = {"output": outputs.output, **outputs.stages}
    if spec.causal:
        found |= {"present_key": outputs.present_key, "present_value": outputs.present_value}
        found |= {f"present_{name}": state for name, state in outputs.present_states.items()}
    linear = spec.attention == "linear"
    q, keys = expected.get("q_rotated", expected["q"]), expected["present_key"]
    products = np.abs(np.einsum("bhsd,bhtd->bhst", q, np.repeat(keys, q.shape[1] // keys.shape[1], axis=1))).max()
    largest = spec.scale * products + (np.abs(expected["scores"]).max() if spec.bias else 0.0)
    amplified = 1 + largest  # an exponential makes of a score's error a relative one
    if linear:  # and without one the relative error of q is that of its features
        largest, amplified = np.abs(expected["scores"]).max(), 4
    ratios = {}
    for name, array in found.items():
        reference = expected[name]
        assert array.shape == reference.shape, name
        assert np.isfinite(array.astype(np.float64)).all(), name
        kept = _kept(name, inputs, array.shape)
        if name == "scores":
            kept = kept[..., None] & (expected["probs"] != 0)  # hidden places hold no meaning
            allowed = 8 * _UNIT[dtype] * largest
        elif name in ("probs", "context", "gated", "output"):
            allowed = 4 * _UNIT[dtype] * np.abs(reference[kept]).max() * amplified
        else:
            allowed = 8 * _UNIT[dtype] * np.abs(reference[kept]).max()
        ratios[name] = float(np.abs(array.astype(np.float64) - reference)[kept].max() / allowed)
    return ratios


def _kept(name: str, inputs: BlockInputs, shape: tuple[int, ...]) -> np.ndarray:
    """Bool of the tensor's leading axes: (batch, token), or (batch, heads, token | slot)."""
    slots = inputs.attention_mask == 1
    tokens = slots[:, inputs.past :]
    if name in ("embedded", "normed", "output"):
        return tokens
    of_all_keys = name.startswith("present") or (name in ("k_features", "k_rotated") and shape[2] == slots.shape[1])
    return np.broadcast_to((slots if of_all_keys else tokens)[:, None, :], shape[:3])
