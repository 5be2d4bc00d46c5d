"""transformers' own Llama attention, eager with sdpa."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from portpe.bench.case import Case
from portpe.bench.competitor import USUAL, Prepared, installed, memory
from portpe.bench.competitors import llama
from portpe.bench.subject import Subject
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability


@dataclass
class TransformersLayer:
    """LlamaAttention with a DynamicCache."""

    threads: str
    name: str = "transformers sdpa"
    runtime: str = "pytorch"
    peer: bool = True
    twin: bool = False
    slowness: float = USUAL
    note: str = "cos and sin are made before the clock starts, since its model shares them among layers"
    _layers: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def availability(self) -> Availability:
        return installed("transformers", "torch")

    def refusal(self, subject: Subject) -> str | None:
        return llama.beyond_llama(subject.spec)

    def memory(self, subject: Subject, case: Case) -> int:
        return memory(subject, case, 0.0)

    def prepare(self, subject: Subject, case: Case, inputs: BlockInputs) -> Prepared:
        del case  # its cache is no buffer
        import torch
        from transformers import DynamicCache

        from portpe.reference.arrays import to_numpy, to_torch

        attention, rotary = self._layer(subject)
        hidden = to_torch(inputs.hidden_states)
        position_embeddings = rotary(hidden, to_torch(inputs.position_ids))
        key, value = to_torch(inputs.past_key), to_torch(inputs.past_value)
        cache = DynamicCache()
        cache.update(key, value, 0)
        layer: Any = cache.layers[0]

        def run() -> Any:
            layer.keys, layer.values = key, value
            with torch.inference_mode():
                return attention(hidden, position_embeddings, None, cache)[0]

        def array(output: torch.Tensor) -> Array:
            return to_numpy(output)

        return Prepared(run, array)

    def _layer(self, subject: Subject) -> tuple[Any, Any]:
        if subject.key not in self._layers:
            import torch
            from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

            config = llama.config(subject.spec)
            attention = LlamaAttention(config, 0).to(getattr(torch, subject.dtype)).eval()
            llama.load(attention, subject)
            self._layers[subject.key] = attention, LlamaRotaryEmbedding(config)
        return self._layers[subject.key]


def competitors(threads: int) -> list[TransformersLayer]:
    """The one layer."""
    return [TransformersLayer(f"torch.set_num_threads({threads})")]
