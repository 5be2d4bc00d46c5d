"""Rows of the layouts by which a rotation deals its pairs to the coordinates of a position."""

from __future__ import annotations

from portpe.encodings import AlternatingAxes, AxialAxes, InterleavedAxes, SectionedAxes
from portpe.registry.rows import AxesRow

AXES_ROWS = (
    AxesRow(
        kind="sectioned",
        spec_class=SectionedAxes,
        title="M-RoPE in sections",
        formula="the next section[k] pairs read coordinate k; pair i has frequency i; over the channels of both "
        "halves at once where over is channels",
        source="Wang 2024 (Qwen2-VL), section 2.1; GLM-4V, PaddleOCR-VL; over channels HunYuan-VL",
        example=SectionedAxes(sections=(1, 2, 3)),
    ),
    AxesRow(
        kind="interleaved",
        spec_class=InterleavedAxes,
        title="M-RoPE interleaved",
        formula="pairs k, k + n, k + 2n ... read coordinate k of n, section[k] of them, and those left coordinate 0",
        source="transformers (Qwen3-VL, Qwen3.5)",
        example=InterleavedAxes(sections=(2, 2, 2)),
    ),
    AxesRow(
        kind="alternating",
        spec_class=AlternatingAxes,
        title="M-RoPE with rows and columns in turn",
        formula="pairs read the coordinates of order but the last in turn, then the last one",
        source="transformers (ERNIE 4.5 VL)",
        example=AlternatingAxes(sections=(2, 2, 2), order=(1, 2, 0)),
    ),
    AxesRow(
        kind="axial",
        spec_class=AxialAxes,
        title="Axial",
        formula="R / 2n pairs for each of n coordinates, each with the frequencies of a rotation of R / n channels, or "
        "dealt in turn from those of R channels",
        source="transformers (Qwen2-VL's vision tower; Pixtral for shared frequencies; V-JEPA 2 for tiled)",
        example=AxialAxes(order=(1, 0), arrangement="interleaved"),
    ),
)
