"""Bias site: encodings whose addend reads the queries or the keys, by the distance between them."""

from __future__ import annotations

from typing import Literal

from portpe.encodings.parts import BiasPart, Flag, NonNegativeInt, Shapes, Sizes


class ShawEncoding(BiasPart):
    """One trained vector a distance, for keys and perhaps for values (Shaw 2018, section 3.2).

    The score of query i and key j gets (q_i . K[r]) * the layer's ``scale``, and with ``values`` the context gets the
    sum over j of p_ij V[r]. Row r stands for the distance j - i, clipped to ``left`` behind the query and ``right``
    ahead of it (the paper: both k). ``descending``: rows go from the farthest key ahead to the farthest behind, as in
    SpeechT5; else from behind to ahead. The heads share the tables ``relative_key.weight`` (left + right + 1, head_dim)
    and ``relative_value.weight`` (left + right + 1, v_head_dim).
    """

    kind: Literal["shaw"] = "shaw"
    left: NonNegativeInt
    right: NonNegativeInt
    descending: Flag = False
    values: Flag = False

    @property
    def reads_probs(self) -> bool:
        return self.values

    def weight_shapes(self, layer: Sizes) -> Shapes:
        rows = self.left + self.right + 1
        shapes: Shapes = {"relative_key.weight": (rows, layer.head_dim)}
        return shapes | ({"relative_value.weight": (rows, layer.v_head_dim)} if self.values else {})
