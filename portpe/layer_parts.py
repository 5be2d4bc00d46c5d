"""What an attention layer is made of besides its encodings: norms, projections, and the gate on its output."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from portpe.encodings import Flag, NonNegativeInt, Part, PositiveInt, PositiveReal


class Norm(Part):
    """A layer or RMS norm.

    ``weight_offset`` is added to the weight (Gemma: 1). For q, k and v norms ``scope`` says
    over what it runs: one ``head`` (weight (head_dim,), or (heads, head_dim) with
    ``per_head_weight``) or ``all_heads`` at once (weight (heads * head_dim,)); ``when`` says
    on which side of the rotation it stands. An ``affine`` False norm has no weight.
    """

    kind: Literal["layer", "rms"]
    eps: PositiveReal
    weight_offset: Annotated[float, Field(strict=True, allow_inf_nan=False)] = 0.0
    scope: Literal["head", "all_heads"] = "head"
    per_head_weight: Flag = False
    affine: Flag = True
    bias: Flag = False
    when: Literal["before", "after"] = "before"


class ProjectionBiases(Part):
    """Which projections have a bias."""

    q: Flag = False
    k: Flag = False
    v: Flag = False
    o: Flag = False


class MlaProjection(Part):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): q, k and v grow out of two narrow latents.

    Queries: q_b_proj(norm(q_a_proj(x))) * ``q_scale``, or q_proj(x) without ``q_lora_rank``. Keys and values: of
    kv_a_proj_with_mqa(x) the first ``kv_lora_rank`` channels, normed and times ``kv_scale``, give through kv_b_proj
    each head's unrotated part of k and its v; the last ``qk_rope_head_dim`` channels (0: there are none) are one part
    of k that all heads share. A head is (head_dim - qk_rope_head_dim unrotated channels, then the shared ones), and a
    rotary encoding turns those. Expanded keys and values are cached. The norms are RMS norms with ``eps``; ``bias``:
    q_a_proj and kv_a_proj_with_mqa have one.
    """

    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_rope_head_dim: NonNegativeInt
    eps: PositiveReal = 1e-6
    bias: Flag = False
    q_scale: PositiveReal = 1.0
    kv_scale: PositiveReal = 1.0

    @property
    def norm(self) -> Norm:
        """The norm of both latents: q_a_layernorm and kv_a_layernorm."""
        return Norm(kind="rms", eps=self.eps)

    @property
    def q_module(self) -> str:
        """The name of the projection that gives queries."""
        return "q_proj" if self.q_lora_rank is None else "q_b_proj"


class EmbeddingProjection(Part):
    """A projection from the embedding's width to the hidden size (ALBERT), after the input norm."""

    width: PositiveInt
    bias: Flag = True


class OutputGate(Part):
    """A gate on what the heads give (AFMoE, Qwen3-Next): context * activation(gate_proj(x)), then o_proj.

    x is what q_proj sees. ``scope``: one number for each ``channel`` of each head, or for each ``head``. Softplus
    (Laguna) is log(1 + exp(.)). ``bias``: gate_proj has one.
    """

    scope: Literal["channel", "head"]
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    bias: Flag = False
