"""Bias site: encodings whose addend reads the hidden states, through gates of their own."""

from __future__ import annotations

from typing import Literal

from portpe.encodings.parts import BiasPart, Shapes, Sizes
from portpe.errors import SpecError


class ForgetEncoding(BiasPart):
    """A forget gate a token and head, which fades everything before it (FoX, Lin 2025, section 3).

    Token l has f_l = sigmoid(w_h . x_l + b_h), x what q_proj sees. The score of query i and key j gets the sum of
    log f_l over the keys l behind j up to i that the query sees, in the order of their slots: a pad adds nothing, and
    position ids are not read. w and b are ``fgate_proj.weight`` (heads, hidden) and ``fgate_proj.bias`` (heads,), as
    the authors name them.

    A cache keeps log f of each token and head, ``gate``. It keeps no running sums: those grow without end, and a
    difference of two long ones has few digits left.
    """

    kind: Literal["forget"] = "forget"

    @property
    def reads_slots(self) -> bool:
        return True

    def check_layer(self, layer: Sizes) -> None:
        if not layer.causal:
            raise SpecError("causal must be true for a forget bias, whose gates lie between a key and a later query")
        if layer.chunk is not None:
            raise SpecError(f"chunk must be left out with a forget bias, which counts slots, got {layer.chunk}")

    def cached_states(self, layer: Sizes) -> dict[str, int]:
        return {"gate": layer.num_heads}

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {
            "fgate_proj.weight": (layer.num_heads, layer.hidden_size),
            "fgate_proj.bias": (layer.num_heads,),
        }
