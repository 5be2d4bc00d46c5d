"""Bias site: encodings whose addend reads the queries or the keys, by the distance between them."""

from __future__ import annotations

from typing import Literal

from portpe.encodings.embedding import SinusoidalEncoding
from portpe.encodings.parts import BiasPart, Flag, NonNegativeInt, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.errors import SpecError


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


class TransformerXlEncoding(BiasPart):
    """Sinusoids of the distance, projected as keys are, with biases of their own (Dai 2019, section 3.3).

    The score of query i and key j of head h gets (u_h . k_j + (q_i + v_h) . (W R(i - j))_h) * the layer's ``scale``,
    which with its q_i . k_j is the paper's sum of four terms. R(d) is the sinusoid of d, as wide as the hidden states:
    frequencies base ** (-2c/width), in ``order`` ``interleaved`` sin, cos, sin, cos ... (Conformers) or ``sin_cos`` in
    halves (the paper, XLNet). ``clamp``: distances beyond it take its row (XLNet's clamp_len). W, u and v are
    ``relative_proj.weight`` (heads * head_dim, hidden), ``content_bias`` and ``position_bias`` (heads, head_dim).

    ``precision`` ``hf``: angles in float32, from frequencies as ``contract`` forms them: ``paper`` 1 / base ** x, as in
    XLNet and Parakeet, ``conformer`` exp(-x ln base).
    """

    kind: Literal["transformer_xl"] = "transformer_xl"
    order: Literal["interleaved", "sin_cos"] = "sin_cos"
    base: PositiveReal = 10000.0
    clamp: PositiveInt | None = None
    precision: Literal["exact", "hf"] = "exact"
    contract: Literal["paper", "conformer"] = "paper"

    @property
    def reads_keys(self) -> bool:
        return True

    def check_layer(self, layer: Sizes) -> None:
        if layer.hidden_size % 2:
            raise SpecError(f"hidden_size must be even for a transformer_xl bias, got {layer.hidden_size}")

    def sinusoid(self, layer: Sizes) -> SinusoidalEncoding:
        return SinusoidalEncoding(width=layer.hidden_size, order=self.order, base=self.base)

    def weight_shapes(self, layer: Sizes) -> Shapes:
        biases = (layer.num_heads, layer.head_dim)
        return {
            "relative_proj.weight": (layer.num_heads * layer.head_dim, layer.hidden_size),
            "content_bias": biases,
            "position_bias": biases,
        }
