"""Rows of the bias site."""

from __future__ import annotations

from portpe.encodings import (
    AlibiEncoding,
    BucketsEncoding,
    DebertaEncoding,
    GridTableEncoding,
    ShawEncoding,
    TransformerXlEncoding,
)
from portpe.registry.rows import EncodingRow

BIAS_ROWS = (
    EncodingRow(
        kind="alibi",
        site="bias",
        spec_class=AlibiEncoding,
        title="ALiBi",
        formula="score -= scale * m_h * (i - j), or |i - j| where symmetric; m_h = 2^(-bias_max h / H) for H = 2^n",
        source="Press 2021, section 3; its released code for other head counts; MPT for bias_max",
        example=AlibiEncoding(bias_max=6.0, scale=0.5),
    ),
    EncodingRow(
        kind="buckets",
        site="bias",
        spec_class=BucketsEncoding,
        title="T5 buckets",
        formula="score += table[bucket(j - i), h]; of n buckets a direction, n/2 = e hold one distance each, others "
        "e + floor(log(|i - j| / e) / log(max_distance / e) * (n - e)), at most n - 1",
        source="Raffel 2019, section 2.1; its released code for the buckets",
        example=BucketsEncoding(num_buckets=20, max_distance=50),
        weights=("relative_attention_bias.weight",),
    ),
    EncodingRow(
        kind="grid_table",
        site="bias",
        spec_class=GridTableEncoding,
        title="Grid offsets (Swin, BEiT, LeViT)",
        formula="score += table[(dy + H - 1)(2W - 1) + dx + W - 1, h], dy and dx the query's row and column less the "
        "key's on H by W cells; three more rows for a first token that is no cell",
        source="Liu 2021, section 3.2; BEiT for the first token; LeViT for offsets without signs",
        example=GridTableEncoding(height=12, width=14, prefix_tokens=1),
        weights=("relative_position_bias_table",),
        bounded=True,
    ),
    EncodingRow(
        kind="shaw",
        site="bias",
        spec_class=ShawEncoding,
        title="Relative keys and values (Shaw)",
        formula="score += scale * q . K[clip(j - i)], context += sum over j of p_ij V[clip(j - i)]; one row a distance",
        source="Shaw 2018, section 3.2; wav2vec2-bert for other limits behind and ahead, SpeechT5 for descending rows",
        example=ShawEncoding(left=5, right=2, values=True),
        weights=("relative_key.weight", "relative_value.weight"),
    ),
    EncodingRow(
        kind="deberta",
        site="bias",
        spec_class=DebertaEncoding,
        title="Disentangled attention (DeBERTa)",
        formula="score += scale * (q . K[bucket(i - j)] + k . Q[bucket(i - j)]), K and Q one projected table",
        source="He 2021 (DeBERTa), section 3.1; He 2023 (v3) and the released v2 for logarithmic buckets",
        example=DebertaEncoding(span=6, max_distance=20, key_bias=True, norm_eps=1e-7),
        weights=(
            "relative_embedding.weight",
            "relative_norm.weight",
            "relative_norm.bias",
            "position_key_proj.weight",
            "position_key_proj.bias",
            "position_query_proj.weight",
            "position_query_proj.bias",
        ),
    ),
    EncodingRow(
        kind="transformer_xl",
        site="bias",
        spec_class=TransformerXlEncoding,
        title="Transformer-XL",
        formula="score += scale * (u_h . k + (q + v_h) . (W R(i - j))_h), R the sinusoid of the distance",
        source="Dai 2019, section 3.3; XLNet (clamp); Conformers (Gulati 2020) with sines and cosines interleaved",
        example=TransformerXlEncoding(order="interleaved", base=500.0, clamp=40),
        weights=("relative_proj.weight", "content_bias", "position_bias"),
    ),
)
