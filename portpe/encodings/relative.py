"""Bias site: encodings whose addend reads the queries or the keys, by the distance between them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from portpe.encodings.embedding import SinusoidalEncoding
from portpe.encodings.parts import BiasPart, Flag, NonNegativeInt, PositiveInt, PositiveReal, Shapes, Sizes
from portpe.errors import SpecError


class ShawEncoding(BiasPart):
    """One trained vector a distance, for keys and perhaps for values (Shaw 2018, section 3.2).

    The score of query i and key j gets (q_i . K[r]) * the layer's ``scale``, and with ``values`` the context gets the
    sum over j of p_ij V[r]. Row r stands for the distance j - i, clipped to ``left`` behind the query and ``right``
    ahead of it (the paper: both k); ``beyond`` ``nothing``: a farther key gets nothing instead of the row at its end
    (VITS). ``descending``: rows go from the farthest key ahead to the farthest behind, as in
    SpeechT5; else from behind to ahead. The heads share the tables ``relative_key.weight`` (left + right + 1, head_dim)
    and ``relative_value.weight`` (left + right + 1, v_head_dim).
    """

    kind: Literal["shaw"] = "shaw"
    left: NonNegativeInt
    right: NonNegativeInt
    descending: Flag = False
    values: Flag = False
    beyond: Literal["nearest", "nothing"] = "nearest"

    @property
    def reads_queries(self) -> bool:
        return True

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


class DebertaEncoding(BiasPart):
    """Disentangled attention: projected vectors of the distance meet queries and keys (He 2021, section 3.1).

    The score of query i and key j gets (q_i . K[r] + k_j . Q[r]) * the layer's ``scale``: content to position, position
    to content, either of which may be left out. K and Q are the 2 ``span`` rows of ``relative_embedding.weight``
    (2 span, hidden), projected by ``position_key_proj`` and ``position_query_proj``, or with ``share_projections`` by
    k_proj and q_proj; before that, with ``norm_eps``, they pass a layer norm ``relative_norm``. ``key_bias``:
    position_key_proj has a bias (v2; position_query_proj always has one). The layer's scale counts the terms: 1 /
    sqrt(head_dim * 3) with both.

    Row r stands for i - j + span, clipped to the rows there are (v1), or with ``max_distance`` M for its logarithmic
    bucket (v2): distances up to mid = span // 2 have one each, a farther one d takes mid + ceil(ln(d / mid) /
    ln((M - 1) / mid) * (mid - 1)).
    """

    kind: Literal["deberta"] = "deberta"
    span: PositiveInt
    max_distance: PositiveInt | None = None
    content_to_position: Flag = True
    position_to_content: Flag = True
    share_projections: Flag = False
    key_bias: Flag = False
    norm_eps: PositiveReal | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not (self.content_to_position or self.position_to_content):
            raise SpecError("content_to_position or position_to_content must be true, got neither")
        if self.max_distance is not None:
            if self.span < 4:
                raise SpecError(f"span must be >= 4 with max_distance, got {self.span}")
            if self.max_distance - 1 <= self.span // 2:
                raise SpecError(f"max_distance must be > span // 2 + 1 = {self.span // 2 + 1}, got {self.max_distance}")
        if self.key_bias and (self.share_projections or not self.content_to_position):
            raise SpecError("key_bias must be false where no position_key_proj is, got true")
        return self

    @property
    def reads_keys(self) -> bool:
        return self.position_to_content

    def check_layer(self, layer: Sizes) -> None:
        if self.share_projections and layer.projection != "standard":
            raise SpecError(
                f"share_projections needs projection standard, got {layer.projection}: its keys have no k_proj"
            )
        if self.share_projections and layer.num_kv_heads != layer.num_heads:
            raise SpecError(f"num_kv_heads must equal num_heads with share_projections, got {layer.num_kv_heads}")

    def weight_shapes(self, layer: Sizes) -> Shapes:
        shapes: Shapes = {"relative_embedding.weight": (2 * self.span, layer.hidden_size)}
        if self.norm_eps is not None:
            shapes |= {f"relative_norm.{part}": (layer.hidden_size,) for part in ("weight", "bias")}
        if self.share_projections:
            return shapes
        rows = layer.num_heads * layer.head_dim
        if self.content_to_position:
            shapes["position_key_proj.weight"] = (rows, layer.hidden_size)
            if self.key_bias:
                shapes["position_key_proj.bias"] = (rows,)
        if self.position_to_content:
            shapes |= {"position_query_proj.weight": (rows, layer.hidden_size), "position_query_proj.bias": (rows,)}
        return shapes


class CopeEncoding(BiasPart):
    """Positions that count what a query finds (CoPE, Golovneva 2024, section 3 and the code of its appendix).

    Query i opens a gate to key j, the sigmoid of their score q_i . k_j (with ``scaled_gates`` times the layer's
    ``scale``, as the paper's code has it; without, as its equation 3). The position of key j is the sum of the gates
    from j on, over the keys that the query sees in the order of their slots, and ``rows`` - 1 at most. Between whole
    numbers n and n + 1 the score gets q_i . e[n] and q_i . e[n + 1] by the fraction; that product is not scaled. The
    heads share the table e, ``contextual_position.weight`` (rows, head_dim). Position ids are not read.
    """

    kind: Literal["cope"] = "cope"
    rows: PositiveInt
    scaled_gates: Flag = True

    @property
    def reads_keys(self) -> bool:
        return True

    @property
    def reads_slots(self) -> bool:
        return True

    def weight_shapes(self, layer: Sizes) -> Shapes:
        return {"contextual_position.weight": (self.rows, layer.head_dim)}


class DistanceBankEncoding(BiasPart):
    """A bank of profiles over the distance, mixed by each token for itself (Inkling).

    The score of query i and key j of head h gets r_ih . P[i - j] where 0 <= i - j < ``extent``, and nothing elsewhere.
    r = W x, x what q_proj sees, ``width`` channels a head; P is ``distance_bank`` (width, extent), which the heads
    share, and W ``relative_state_proj.weight`` (heads * width, hidden). With ``clip``, as in Inkling 2, r is multiplied
    by ``relative_state_scale`` (heads, width) and then shortened to that length where it is longer: by min(1, clip /
    (length + 1e-6)). ``tempered``: the layer's query temperature multiplies the bias too.
    """

    kind: Literal["distance_bank"] = "distance_bank"
    extent: PositiveInt
    width: PositiveInt
    clip: PositiveReal | None = None
    tempered: Flag = False

    def check_layer(self, layer: Sizes) -> None:
        if self.tempered and layer.query_scale is None:
            raise SpecError("tempered needs a query_scale, got none")

    def weight_shapes(self, layer: Sizes) -> Shapes:
        shapes: Shapes = {
            "relative_state_proj.weight": (layer.num_heads * self.width, layer.hidden_size),
            "distance_bank": (self.width, self.extent),
        }
        return shapes if self.clip is None else shapes | {"relative_state_scale": (layer.num_heads, self.width)}
