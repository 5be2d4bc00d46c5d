"""Layer: reference. Biases that are functions of the distance: KERPLE, FIRE and Sandwich."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from portpe.biases import functions
from portpe.encodings import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Lookup, Tables, on_host
from portpe.spec import AttentionSpec


def _apart(inputs: ScoreInputs) -> Int[Tensor, "batch seq total"]:
    return inputs.query_positions[:, :, None] - inputs.key_positions[:, None, :]


class Kerple(Bias):
    """-r1 log(1 + r2 d) or -r1 d^r2 (Chi 2022a, section 4), from integer distances."""

    def __init__(
        self,
        encoding: KerpleEncoding,
        spec: AttentionSpec,  # noqa: ARG002 - a site's signature
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.form, self.accumulate = encoding.form, accumulation_dtype(dtype)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        apart = _apart(inputs).abs().to(self.accumulate)[:, None]
        r1, r2 = (inputs.weights[f"kerple_{name}"].to(self.accumulate)[:, None, None] for name in ("r1", "r2"))
        return -r1 * (torch.log1p(r2 * apart) if self.form == "logarithmic" else apart**r2)


class Fire(Bias):
    """W2 relu(W1 x + b1) + b2, x the distance over the query's position (Li 2023, section 3.3)."""

    def __init__(
        self,
        encoding: FireEncoding,
        spec: AttentionSpec,  # noqa: ARG002 - a site's signature
        tables: Tables | None,  # noqa: ARG002
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.epsilon, self.accumulate = encoding.epsilon, accumulation_dtype(dtype)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        own = {name: tensor.to(self.accumulate) for name, tensor in inputs.weights.items()}
        c, threshold = own["fire_c"].abs(), own["fire_threshold"].abs()
        normal = torch.log1p(c * inputs.query_positions.to(self.accumulate).maximum(threshold)) + self.epsilon
        x = torch.log1p(c * _apart(inputs).abs().to(self.accumulate)) / normal[:, :, None]
        hidden = (x[..., None] * own["fire_in.weight"][:, 0] + own["fire_in.bias"]).relu()
        return (hidden @ own["fire_out.weight"].T + own["fire_out.bias"]).permute(0, 3, 1, 2)


class Sandwich(Bias):
    """8 h / H times the product of the two tokens' sinusoids (Chi 2022b, section 4)."""

    def __init__(
        self, encoding: SandwichEncoding, spec: AttentionSpec, tables: Tables | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.encoding, self.accumulate = encoding, accumulation_dtype(dtype)
        self.ratios = to_torch(functions.ratios(spec.num_heads))[:, None, None]
        if tables is not None:
            self.table = Lookup(tables, prefix="relative", dtype=self.accumulate)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        if not hasattr(self, "table"):
            bias = functions.sandwich(self.encoding, len(self.ratios), on_host(_apart(inputs)))
            return to_torch(bias).to(self.accumulate).transpose(0, 1)
        (cos_q, sin_q), (cos_k, sin_k) = (
            self.table.cos_sin(ids) for ids in (inputs.query_positions, inputs.key_positions)
        )
        total = cos_q @ cos_k.transpose(-1, -2) + sin_q @ sin_k.transpose(-1, -2)
        return self.ratios.to(self.accumulate) * total[:, None]
