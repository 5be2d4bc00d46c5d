"""Layer: reference. FoX: forget gates, each of which fades what stands before it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from portpe.encodings import ForgetEncoding
from portpe.reference.arrays import accumulation_dtype
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Tables
from portpe.spec import AttentionSpec


class Forget(Bias):
    """The sum of log f_l over the keys behind j that query i sees (Lin 2025, section 3).

    Logits and gates are formed in the accumulation type, sums in float64, from the query back: each has the digits of
    its own range, however long the cache is.
    """

    def __init__(
        self,
        encoding: ForgetEncoding,  # noqa: ARG002 - a site's signature
        spec: AttentionSpec,  # noqa: ARG002
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.accumulate = accumulation_dtype(dtype)

    def states(
        self, hidden: Float[Tensor, "batch seq hidden"], weights: Mapping[str, Tensor]
    ) -> dict[str, Float[Tensor, "batch heads seq"]]:
        """``gate``: log f of each token."""
        weight, bias = (weights[f"fgate_proj.{part}"].to(self.accumulate) for part in ("weight", "bias"))
        return {"gate": F.logsigmoid(F.linear(hidden.to(self.accumulate), weight, bias)).transpose(1, 2)}

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        gates = inputs.states["gate"].double()[:, :, None].masked_fill(~inputs.visible, 0.0)
        return (gates.flip(-1).cumsum(-1).flip(-1) - gates).to(self.accumulate)
