"""A tiny model of transformers' own, and what makes its numbers wide enough to show a fault.

A row says which class and config, and which two modules bound an attention layer: the first projection, whose input
is what q_proj sees, and the output projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 42, 6, 2, 8  # hidden_size is not heads * head_dim
TOKENS = {"vocab_size": 53, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Model:
    """A tiny model. ``float32``: what is computed in float32 although the model is float64, nothing where empty.

    ``qk``: transformers norms or rotates q and k so; ``softmax``: its softmax; ``bias``: it forms the bias so, or
    (Falcon) portpe's table of slopes has the scale 1 / sqrt(head_dim) folded in, which rounds them once more;
    ``v``: its norm of values; ``gate``: its output gate.
    ``spread``: how far apart scores are at least. ``config_class``: of a family that runs on another's model.
    """

    cls: str
    config: dict[str, Any]
    query: str
    output: str
    float32: tuple[str, ...] = ()
    takes_positions: bool = True
    implementation: str = "sdpa"
    part: str | None = None
    layers: tuple[int, ...] = (0, 1)
    gain: float = 2.9
    widest: float = 5e-5  # bound of an output, of its largest element: more would hide a fault
    padded: bool = True  # False: no pads, positions from 0, where transformers goes by cache slot
    spread: float = 1.5
    config_class: str = ""

    @property
    def configuration(self) -> Any:
        """The class of its config: the model's own, or one that runs on another's model."""
        return getattr(transformers, self.config_class or getattr(transformers, self.cls).config_class.__name__)

    def build(self, seed: int = 0) -> Any:
        """The model in float32 with wide weights."""
        cls = getattr(transformers, self.cls)
        model = cls._from_config(self.configuration(**self.config), attn_implementation=self.implementation)
        widen(model, seed, self.gain)
        return model.eval()

    def save(self, folder: Path, seed: int = 0) -> Any:
        """The model, saved to ``folder`` and then turned to float64."""
        model = self.build(seed)
        model.save_pretrained(folder)
        return norm_latents_in_float64(model.double())


def norm_latents_in_float64(model: Any) -> Any:
    """MLA's latents are normed in float32, and the matrix behind would spread that over every score. Their norms give
    the same in float64 instead, checked by the module's own numbers.
    """

    def exactly(module: Any, args: tuple[torch.Tensor], found: torch.Tensor) -> torch.Tensor:
        (x,) = args
        exact = x / torch.sqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon) * module.weight
        assert (found - exact).abs().max() <= 2.0**-21 * exact.abs().max()
        return exact

    for name, module in model.named_modules():
        if name.endswith("_a_layernorm"):
            module.register_forward_hook(exactly)
    return model


def widen(model: torch.nn.Module, seed: int, gain: float) -> None:
    """Weights under which scores are several units and every tensor is seen."""
    generator = torch.Generator().manual_seed(seed)
    unscaled = type(model).__name__.startswith(("Gemma3n", "Gemma4", "EmbeddingGemma2"))  # scores of normed vectors
    adds_one = type(model).__name__.startswith(("Qwen3Next", "Qwen3_5", "Step3p7"))  # to the weights of its norms
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # Whisper's sinusoids
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if any(
                norm in name
                for norm in (
                    ".q_norm.",
                    ".k_norm.",
                    ".q_layernorm.",
                    ".k_layernorm.",
                    "_a_layernorm.",
                    ".query_layernorm.",
                    ".key_layernorm.",
                )
            ):
                noise = 0.3 * noise + (0.7 if adds_one else 0.9 if unscaled else 1.7) * name.endswith("weight")
            elif parameter.ndim == 1 and name.endswith("weight"):
                noise = 0.3 * noise + (0.0 if adds_one or "Gemma" in type(model).__name__ else 1.0)
            elif parameter.ndim > 1 and "embed" not in name and "wte" not in name and "wpe" not in name:
                noise = noise * (gain / parameter.shape[-1]) ** 0.5
            parameter.copy_(noise)
