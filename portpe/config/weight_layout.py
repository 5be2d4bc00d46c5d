"""What a family's row of tensor names says: the names, how q, k and v are fused, which way projections lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Fused:
    """Several projections in one tensor.

    ``layout`` ``stacked``: all rows of q, then of k, then of v. ``grouped``: for each key/value head its queries, its
    key and its value, so (kv_heads, heads / kv_heads + 2, head_dim) rows; with as many key/value heads as heads this is
    the (heads, 3, head_dim) interleaving of NeoX, with one it is multi-query. ``gate_stacked``: as ``stacked``, behind
    the rows of the output gate. ``kv_stacked``: all rows of k, then of v; q has a tensor of its own.
    ``query_and_gate``: for each head its query, then its gate (Qwen3-Next); keys and values have tensors of their own.
    """

    name: str
    layout: Literal["stacked", "grouped", "gate_stacked", "kv_stacked", "query_and_gate"]

    @property
    def parts(self) -> tuple[str, ...]:
        """The projections in it, in order."""
        if self.layout == "query_and_gate":
            return ("q_proj", "gate_proj")
        if self.layout == "kv_stacked":
            return ("k_proj", "v_proj")
        return ("gate_proj",) * (self.layout == "gate_stacked") + ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class WeightNames:
    """One family's names.

    ``prefixes``: what may stand before every name, longest first. ``names``: canonical name without its ``.weight`` or
    ``.bias`` -> the family's, with ``{layer}`` in it (or ``{group}``, the layers that share weights; ``{half}`` and
    ``{member}``, where two attention layers make one of the model's; ``{run}`` of a ``{cycle}``; ``{head}``, where each
    has a tensor of its own); ``a|b``: either. A canonical name with its ending stands for that one tensor. ``fused``:
    several projections in one tensor; names of
    theirs besides stand for checkpoints that keep them apart. ``by_head``: tensors with one number a head, the same for
    each of its channels. ``logarithms``: those whose logarithms a checkpoint holds, and the largest that counts.
    ``values_are_keys``: a flag of config.json; where it is true, a layer without v_proj projects values with k_proj.
    ``transposed``: the projections, or those named, are (in, out). ``bare``: tensors that stand under their name alone,
    without ``.weight``: in a batch of one, or projections with an axis of the heads' own.
    ``idle``: modules beside the projections that a block does without.
    """

    prefixes: tuple[str, ...]
    names: Mapping[str, str]
    fused: Fused | None = None
    transposed: bool | tuple[str, ...] = False
    bare: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    by_head: frozenset[str] = frozenset()
    logarithms: Mapping[str, float] = field(default_factory=dict)
    values_are_keys: str = ""

    def turned(self, canonical: str) -> bool:
        """Whether a tensor lies (in, out)."""
        module, _, ending = canonical.partition(".")
        named = module.endswith("_proj") if isinstance(self.transposed, bool) else module in self.transposed
        return bool(self.transposed) and ending == "weight" and named

    def templates(self, canonical: str) -> tuple[str, ...]:
        """The names of a canonical stem (``q_proj``), the fused tensor's for its parts; none where there is none."""
        own = tuple(self.names[canonical].split("|")) if canonical in self.names else ()
        if self.fused is not None and canonical in self.fused.parts:
            return (self.fused.name, *own)
        return own

    @property
    def stem(self) -> str:
        """What stands before a layer's number: by it a checkpoint's prefix is told."""
        return self.templates("q_proj")[0].split("{")[0]


def separate(layer: str, output: str, **others: str) -> dict[str, str]:
    """q, k and v in tensors of their own under ``layer``."""
    projections = {f"{p}_proj": f"{layer}.{p}_proj" for p in "qkv"}
    return {**projections, "o_proj": f"{layer}.{output}", **others}
