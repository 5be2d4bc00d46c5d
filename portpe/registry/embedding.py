"""Rows of the embedding site, and of a layer without any encoding."""

from __future__ import annotations

from portpe.encodings import (
    LearnedAxesEncoding,
    LearnedEncoding,
    LearnedGridEncoding,
    SinusoidalEncoding,
    SinusoidalGridEncoding,
)
from portpe.registry.rows import EncodingRow

EMBEDDING_ROWS = (
    EncodingRow(
        kind="none",
        site="none",
        spec_class=None,
        title="No encoding (NoPE)",
        formula="nothing is added; without a mask, attention commutes with permutations of its input",
        source="Kazemnejad 2023",
        example=None,
    ),
    EncodingRow(
        kind="sinusoidal",
        site="embedding",
        spec_class=SinusoidalEncoding,
        title="Sinusoidal",
        formula="hidden += sin, cos of (p + offset) * base^(-i/n), n = d/2 or d/2 - 1",
        source="Vaswani 2017, section 3.5; tensor2tensor and fairseq for n = d/2 - 1",
        example=SinusoidalEncoding(width=12, order="sin_cos", denominator="half_minus_one", offset=2),
    ),
    EncodingRow(
        kind="learned",
        site="embedding",
        spec_class=LearnedEncoding,
        title="Learned absolute",
        formula="hidden += table[p + offset]; no row exists beyond the table",
        source="Gehring 2017, section 3.1; as in BERT, GPT-2, OPT (offset 2), RoBERTa (padding_idx + 1)",
        example=LearnedEncoding(rows=50, width=12, offset=2),
        weights=("position_embedding.weight",),
        bounded=True,
    ),
    EncodingRow(
        kind="learned_axes",
        site="embedding",
        spec_class=LearnedAxesEncoding,
        title="Learned, a table an axis",
        formula="hidden += sum over the axes of table_axis[p_axis + offset]; no row exists beyond a table",
        source="Lee 2022 (Pix2Struct), section 2.2: rows and columns of patches",
        example=LearnedAxesEncoding(rows=(9, 7), width=12, offset=1),
        weights=("position_embedding.axis_0.weight", "position_embedding.axis_1.weight"),
        bounded=True,
    ),
    EncodingRow(
        kind="learned_grid",
        site="embedding",
        spec_class=LearnedGridEncoding,
        title="Learned over a grid, resized",
        formula="hidden += sum over y, x of k(row, y) k(column, x) table[y, x], k bicubic, bilinear or nearest between "
        "the image's grid and the table's; the first tokens have rows of their own",
        source="Dosovitskiy 2020, section 3.2 (ViT, DINOv2); Tschannen 2025 for antialiasing (SigLIP 2); "
        "Dehghani 2023 for nearest (NaViT)",
        example=LearnedGridEncoding(grid=(3, 5), width=12, prefix_tokens=1, plain_tokens=2),
        weights=("position_embedding.weight",),
    ),
    EncodingRow(
        kind="sinusoidal_grid",
        site="embedding",
        spec_class=SinusoidalGridEncoding,
        title="Sinusoidal over a grid",
        formula="hidden += sin, cos of the row and of the column, half of the channels each; normalised: of "
        "2 pi (p + 1) / (n + 1e-6), n the image's size",
        source="Carion 2020, appendix A.4 (DETR); Zhu 2020 for centred; He 2021 (ViT-MAE) and Fini 2024 (AIMv2)",
        example=SinusoidalGridEncoding(width=12, order="sin_cos", first="column", plain_tokens=1),
        bounded=False,
    ),
)
