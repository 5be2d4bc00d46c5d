"""Who takes part: portpe's own forms and modules, and what a user could run in their place."""

from __future__ import annotations

from portpe.bench.competitor import Competitor
from portpe.bench.competitors import (
    mlx_modules,
    mobius,
    onnx_forms,
    ort_genai,
    torch_export,
    torch_modules,
    transformers_layer,
)

RUNTIMES = ("onnxruntime", "pytorch", "mlx")


def every(threads: int) -> list[Competitor]:
    """All competitors, whether they can run here or not; modules keep the weights that they loaded."""
    makers = (onnx_forms, torch_modules, transformers_layer, torch_export, mobius, ort_genai, mlx_modules)
    return [competitor for maker in makers for competitor in maker.competitors(threads)]
