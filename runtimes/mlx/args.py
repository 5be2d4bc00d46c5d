"""Layer: runtimes (MLX). ``ModelArgs``: what config.json of an mlx folder holds, under Hugging Face names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from portpe.errors import SpecError
from portpe.spec import AttentionSpec

MODEL_TYPE = "portpe"


@dataclass
class ModelArgs:
    """The arguments of one attention layer.

    The names that other tools read stand at the top level; ``portpe`` holds the whole spec, from which the
    layer is rebuilt exactly. Where the two contradict each other SpecError is raised: neither is guessed.
    """

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    portpe: dict[str, Any] = field(repr=False)
    model_type: str = MODEL_TYPE
    v_head_dim: int | None = None
    max_position_embeddings: int | None = None
    sliding_window: int | None = None
    layer_idx: int = 0
    table_positions: int | None = None
    quantization: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.model_type != MODEL_TYPE:
            raise SpecError(f"model_type must be {MODEL_TYPE!r}, got {self.model_type!r}")
        self.spec = AttentionSpec.from_dict(self.portpe)
        if self.v_head_dim is None:
            self.v_head_dim = self.spec.v_head_dim
        for name, value in _named(self.spec).items():
            if getattr(self, name) != value:
                raise SpecError(f"{name} must equal the spec's {value}, got {getattr(self, name)}")

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Self:
        """From the keys of a config.json; keys of other tools are dropped. Raises SpecError."""
        known = {f.name: f for f in fields(cls)}
        for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "portpe"):
            if name not in params:
                raise SpecError(f"{name} is required in config.json and missing")
        return cls(**{name: value for name, value in params.items() if name in known})

    @classmethod
    def from_spec(cls, spec: AttentionSpec, *, table_positions: int | None = None) -> Self:
        """From a spec."""
        return cls(portpe=spec.to_dict(), table_positions=table_positions, **_named(spec))


def _named(spec: AttentionSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "v_head_dim": spec.v_head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "sliding_window": spec.window,
    }
