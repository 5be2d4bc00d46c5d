"""Query temperatures of a config: which layers have one, and how it grows."""

from __future__ import annotations

from portpe.config import rope
from portpe.config.layer import Layer
from portpe.config.rope import Rope
from portpe.config.section import shown
from portpe.encodings import PowerTemperature, SteppedTemperature
from portpe.errors import SpecError

# Of the queries, beside those of the rotation: the original length counts where the rotation is not scaled too.
MINISTRAL_KEYS = ("llama_4_scaling_beta", "max_position_embeddings", "original_max_position_embeddings")


def ministral(layer: Layer, settings: Rope) -> SteppedTemperature | None:
    """Ministral 3 and Mistral 4: every layer, a step for each original length, counted from 0."""
    block = rope.block_of(layer, settings)
    if block is None:
        return None
    beta = block.real("llama_4_scaling_beta")
    if beta < 0:
        raise SpecError(f"{block.name('llama_4_scaling_beta')} must be >= 0, got {beta}")
    interval = block.integer("original_max_position_embeddings")
    return SteppedTemperature(interval=interval, beta=beta) if beta else None


BEAM = PowerTemperature(interval=2048, offset=1, exponent=0.1)  # its code states it, no config does


def llama4(layer: Layer) -> SteppedTemperature | None:
    """Llama 4, for layers without RoPE: a step for every ``floor_scale`` tokens, counted from 1.

    transformers counts the slots of its cache, pads among them; here the token's position counts, as in a batch of one.
    """
    config = layer.config
    interval, beta = config.integer("floor_scale", 8192), config.positive("attn_scale", 0.1)
    tuned = config.get("attn_temperature_tuning")
    if tuned is not None and not isinstance(tuned, int):  # published configs have 4 where later ones have true
        raise SpecError(f"attn_temperature_tuning must be true or false, got {shown(tuned)}")
    return None if tuned is not None and not tuned else SteppedTemperature(interval=interval, offset=1, beta=beta)
