"""Rope blocks that a row varies a default config by. Values are no powers of two, so that no two orders round alike."""

from __future__ import annotations

from typing import Any

LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 30000.0, "factor": 2.7}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 6.7,
    "original_max_position_embeddings": 3000,
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 6.7,
    "low_freq_factor": 0.9,
    "high_freq_factor": 4.3,
    "original_max_position_embeddings": 3000,
}
PROPORTIONAL: dict[str, Any] = {
    "rope_type": "proportional",
    "rope_theta": 1e6,
    "partial_rotary_factor": 0.25,
    "factor": 3.1,
}


def longrope(pairs: int) -> dict[str, Any]:
    """LongRoPE for a rotary width of 2 * pairs."""
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.01 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.4 * i for i in range(pairs)],
        "original_max_position_embeddings": 3000,
        "factor": 5.3,
    }


def scaled(**more: Any) -> dict[str, dict[str, Any]]:
    """A config for each kind of scaling, with ``more`` in every block."""
    blocks = {"linear": LINEAR, "yarn": YARN, "llama3": LLAMA3}
    return {name: {"rope_parameters": {**block, **more}} for name, block in blocks.items()}
