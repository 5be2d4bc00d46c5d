"""From a config's keys to multi-head latent attention: widths, latents, rotation of the shared channels, scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from portpe.config import rope
from portpe.config.layer import Layer
from portpe.config.rope import Rope
from portpe.config.section import Section
from portpe.encodings import Pairing, RotaryEncoding
from portpe.errors import SpecError
from portpe.layer_parts import MlaProjection, ProjectionBiases


@dataclass(frozen=True)
class Widths:
    """A family's defaults, those of transformers' config class.

    ``q_lora_rank`` None: queries have no latent. ``value`` None: hidden_size / num_attention_heads.
    ``turns_head_dim``: transformers' code turns ``head_dim`` channels where a config states it, so it must agree.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    nope: int
    rope: int
    value: int | None
    q_lora_required: bool = False
    turns_head_dim: bool = False

    def head_dim(self, config: Section, kind: str) -> int:  # noqa: ARG002 - the same for every type of layer
        """The width of a head of q and k. ``head_dim`` itself is something else in nearly every one of these configs
        (the rotated width, hidden_size / heads, the width of a cached latent), and most of their code does not read it.
        """
        own, shared = self.unrotated(config), self.shared(config)
        total = config.integer("qk_head_dim", own + shared)
        if total != own + shared:
            raise SpecError(f"qk_head_dim must be qk_nope_head_dim + qk_rope_head_dim = {own + shared}, got {total}")
        stated = config.integer("head_dim", shared) if self.turns_head_dim else shared
        config.get("head_dim")
        if stated != shared:
            raise SpecError(f"head_dim must be qk_rope_head_dim = {shared} for this model_type, got {stated}")
        return own + shared

    def unrotated(self, config: Section) -> int:
        return config.integer("qk_nope_head_dim", self.nope)

    def shared(self, config: Section) -> int:
        """The width of the part of k that all heads share: the rotated channels."""
        width = config.integer("qk_rope_head_dim", self.rope, minimum=0 if self.rope == 0 else 1)
        if width % 2:
            raise SpecError(f"qk_rope_head_dim must be even, got {width}; channels are rotated in pairs")
        return width

    def value_dim(self, layer: Layer) -> int:
        default = layer.hidden_size // layer.num_heads if self.value is None else self.value
        return layer.config.integer("v_head_dim", default)

    def query_rank(self, config: Section) -> int | None:
        """Where it is null, queries have no latent; where it is absent, the default decides."""
        if config.has("q_lora_rank"):
            return config.integer("q_lora_rank")
        if "q_lora_rank" not in config.data:
            return self.q_lora_rank
        if self.q_lora_required:
            raise SpecError("q_lora_rank must be an integer >= 1 for this model_type, got None")
        return None


Pairings = Callable[[Section], tuple[Pairing, Pairing]]
"""How the shared channels are paired, and how they are written, by config."""


def interleaved(config: Section) -> tuple[Pairing, Pairing]:  # noqa: ARG001
    """DeepSeek-V2: neighbours, and they stay where they are."""
    return "interleaved", "interleaved"


def half(config: Section) -> tuple[Pairing, Pairing]:  # noqa: ARG001
    """MiniCPM3: as in Llama."""
    return "half", "half"


def rewritten(config: Section) -> tuple[Pairing, Pairing]:  # noqa: ARG001
    """Neighbours, written as halves."""
    return "interleaved", "half"


def switched(config: Section) -> tuple[Pairing, Pairing]:
    """DeepSeek-V3: neighbours, written as halves, unless ``rope_interleave`` is false."""
    return rewritten(config) if config.flag("rope_interleave", True) else half(config)


_PLAIN = Rope()


@dataclass(frozen=True)
class Latents:
    """How a family uses latents: the ``site`` of its row.

    ``rope`` None: no encoding (NoPE). ``scaled``: queries and the key/value latent are multiplied by
    sqrt(hidden_size / rank) (LongCat). ``whole_head``: the config's partial_rotary_factor is that of the whole head.
    """

    widths: Widths
    pairings: Pairings = switched
    rope: Rope | None = _PLAIN
    scaled: bool = False
    whole_head: bool = False

    def __call__(self, layer: Layer) -> dict[str, Any]:
        config, widths = layer.config, self.widths
        query_rank, rank = widths.query_rank(config), config.integer("kv_lora_rank", widths.kv_lora_rank)
        scales = {}
        if self.scaled and query_rank is not None:
            scales = {
                "q_scale": (layer.hidden_size / query_rank) ** 0.5,
                "kv_scale": (layer.hidden_size / rank) ** 0.5,
            }
        projection = MlaProjection(
            q_lora_rank=query_rank,
            kv_lora_rank=rank,
            qk_rope_head_dim=widths.shared(config),
            bias=config.flag("attention_bias", False),
            **scales,
        )
        return {
            "projection": "mla",
            "mla": projection,
            "v_head_dim": widths.value_dim(layer),
            "rotary": None if self.rope is None else self._rotary(layer, self.rope),
        }

    def scale(self, layer: Layer) -> float:
        """1 / sqrt(head_dim), the width before absorption, times YaRN's multiplier, as transformers forms it."""
        scale = float(layer.head_dim**-0.5)
        if self.rope is None:
            return scale
        root = math.sqrt(self._rotary(layer, self.rope).softmax_scale_multiplier)
        return scale * root * root

    def _rotary(self, layer: Layer, settings: Rope) -> RotaryEncoding:
        shared = self.widths.shared(layer.config)
        if self.whole_head:
            settings = replace(settings, partial=shared / layer.head_dim)
            found = rope.encoding(layer, settings)
        else:
            found = rope.encoding(replace(layer, head_dim=shared), settings)
        if found is None or found.width != shared:
            turned = 0 if found is None else found.width
            raise SpecError(f"partial_rotary_factor must leave qk_rope_head_dim = {shared} channels, got {turned}")
        pairing, written = self.pairings(layer.config)
        changes = {
            "channels": "last",
            "pairing": pairing,
            "pairing_out": None if written == pairing else written,
            "softmax_scale_multiplier": found.schedule.softmax_multiplier(),
        }
        return RotaryEncoding(**({name: getattr(found, name) for name in type(found).model_fields} | changes))


def chooses_keys(layer: Layer) -> str | None:
    """DeepSeek-V3.2: an indexer chooses ``index_topk`` keys for each query, so all of them while there are no more.

    ``--ignore-key index_topk`` takes every key all the same.
    """
    chosen = layer.config.integer("index_topk", 2048)
    if layer.unknown.lets_pass(layer.config, "index_topk"):
        layer.warn(f"index_topk is ignored: every key is seen, as in the model while there are at most {chosen}")
        return None
    context = layer.max_position_embeddings
    return None if context is not None and context <= chosen else f"an indexer that chooses {chosen} keys"


def output_bias(layer: Layer) -> ProjectionBiases:
    """``attention_bias``: that of o_proj; those of the projections to the latents stand in MlaProjection."""
    return ProjectionBiases(o=layer.config.flag("attention_bias", False))
