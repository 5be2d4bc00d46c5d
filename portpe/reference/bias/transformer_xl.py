"""Layer: reference. Transformer-XL: projected sinusoids of the distance, with biases of their own."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from portpe import tables as position_tables
from portpe.encodings import TransformerXlEncoding
from portpe.reference.arrays import accumulation_dtype, to_torch
from portpe.reference.bias.inputs import Bias, ScoreInputs
from portpe.reference.lookup import Lookup, Tables, on_host
from portpe.spec import AttentionSpec


class TransformerXl(Bias):
    """(u . k_j + (q_i + v) . W R(i - j)) * scale (Dai 2019, section 3.3).

    Queries go through W first, and meet the sinusoid of each pair's own distance: positions may be any, and no shift
    of rows stands for a distance.
    """

    def __init__(
        self, encoding: TransformerXlEncoding, spec: AttentionSpec, tables: Tables | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.encoding, self.spec, self.accumulate = encoding, spec, accumulation_dtype(dtype)
        if tables is not None:
            self.table = Lookup(tables, prefix="relative", dtype=self.accumulate)

    def forward(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads seq total"]:
        spec = self.spec
        weight, content, position = (
            inputs.weights[name].to(self.accumulate)
            for name in ("relative_proj.weight", "content_bias", "position_bias")
        )
        by_head = weight.reshape(spec.num_heads, spec.head_dim, -1)
        turned = torch.einsum("bhsd,hdw->bhsw", inputs.q.to(self.accumulate) + position[:, None], by_head)
        distance = inputs.query_positions[:, :, None] - inputs.key_positions[:, None, :]
        of_positions = torch.einsum("bhsw,bstw->bhst", turned, self._sinusoid(distance))
        of_keys = torch.einsum("hd,bhtd->bht", content, self._keys(inputs))
        return (of_keys[:, :, None] + of_positions) * spec.scale

    def _keys(self, inputs: ScoreInputs) -> Float[Tensor, "batch heads total head_dim"]:
        group = self.spec.num_heads // self.spec.num_kv_heads
        return inputs.k.to(self.accumulate).repeat_interleave(group, dim=1)

    def _sinusoid(self, distance: Int[Tensor, "batch seq total"]) -> Float[Tensor, "batch seq total width"]:
        encoding = self.encoding
        if encoding.clamp is not None:
            distance = distance.clamp(-encoding.clamp, encoding.clamp)
        if not hasattr(self, "table"):
            rows = position_tables.relative_sinusoid(encoding, self.spec, on_host(distance))
            return to_torch(rows).to(self.accumulate)
        cos, sin = self.table.cos_sin(distance.abs())
        sin = sin * distance.sign()[..., None]
        if encoding.order == "interleaved":
            return torch.stack((sin, cos), dim=-1).flatten(-2)
        return torch.cat((sin, cos), dim=-1)
