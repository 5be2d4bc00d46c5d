"""The positional encodings of a family, as fields of AttentionSpec: rotary or bias (``embedding_sites``: the rest)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from portpe.config import rope
from portpe.config.layer import Layer
from portpe.config.rope import Rope
from portpe.encodings import AlibiEncoding, DefaultSchedule, RotaryEncoding
from portpe.errors import SpecError

Site = Callable[[Layer], dict[str, Any]]


def rotary(settings: Rope) -> Site:
    """Rotary embeddings by the config's rope keys."""
    return lambda layer: {"rotary": rope.encoding(layer, settings)}


def gptj_rotary(layer: Layer) -> dict[str, Any]:
    """GPT-J: the first ``rotary_dim`` channels, interleaved, base 10000 and no way to change it."""
    width = layer.config.integer("rotary_dim", 64)
    if width % 2:
        raise SpecError(f"rotary_dim must be even, got {width}; transformers would rotate {width + 1} channels")
    if width > layer.head_dim:
        raise SpecError(f"rotary_dim must be <= head_dim = {layer.head_dim}, got {width}")
    return {"rotary": RotaryEncoding(width=width, pairing="interleaved", schedule=DefaultSchedule())}


def alibi(contract: Literal["bloom", "mpt"], bias_max: float = 8.0) -> Site:
    """ALiBi on every layer."""
    return lambda _layer: {"bias": (AlibiEncoding(contract=contract, bias_max=bias_max),)}


def mpt_alibi(layer: Layer) -> dict[str, Any]:
    """MPT: ``attn_config.alibi_bias_max`` sets the slopes."""
    attention = layer.config.section("attn_config")
    bias_max = 8.0 if attention is None else attention.positive("alibi_bias_max", 8.0)
    if bias_max != 8:
        layer.warn(
            f"attn_config.alibi_bias_max = {bias_max} is honoured as documented: transformers' own class takes 8"
        )
    return alibi("mpt", bias_max)(layer)


def falcon(settings: Rope) -> Site:
    """Falcon: rotary, or with ``alibi`` a bias that is divided by sqrt(head_dim) with the scores."""

    def site(layer: Layer) -> dict[str, Any]:
        if not layer.config.flag("alibi", False):
            return rotary(settings)(layer)
        # transformers writes rope keys for every Falcon: under alibi they say nothing
        for key in ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"):
            layer.config.get(key)
        return {"bias": (AlibiEncoding(contract="falcon", scale=float(layer.head_dim**-0.5)),)}

    return site
