"""Layer: exporters. Weights and config of one layer in the mlx-lm convention, written without mlx.

``config.json`` has Hugging Face's names at the top and the whole spec under ``portpe``; ``weights.safetensors`` has
the source's types and (out, in) projections, which are mlx's as they are Hugging Face's. portpe.runtimes.mlx reads
both: ``Attention.from_folder(folder)``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

CONFIG, WEIGHTS = "config.json", "weights.safetensors"


def write(
    spec: AttentionSpec,
    weights: Mapping[str, NDArray[Any]],
    *,
    layer: int,
    folder: Path,
    table_positions: int | None = None,
) -> list[Path]:
    """Write ``folder``/config.json and ``folder``/weights.safetensors; the same input gives the same bytes.

    Args:
        spec: the layer.
        weights: its tensors by canonical name, float32, float16 or bfloat16 (ml_dtypes), kept in their type.
        layer: the source's layer number.
        folder: the ``mlx`` folder, made where it is missing.
        table_positions: how many positions the tables are to cover; None leaves it to the spec.

    Returns:
        The two paths.

    Raises:
        SpecError: a tensor is missing, unknown, of a wrong shape or of a type that mlx does not compute in.
    """
    _check(spec, weights)
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = folder / CONFIG, folder / WEIGHTS
    config.write_text(_config(spec, weights, layer, table_positions), encoding="utf-8")
    arrays = {name: np.ascontiguousarray(weights[name]) for name in weight_shapes(spec)}
    # One metadata entry only: the library writes several in any order.
    tensors.write_bytes(save(arrays, metadata={"format": "mlx"}))
    return [config, tensors]


def _check(spec: AttentionSpec, weights: Mapping[str, NDArray[Any]]) -> None:
    shapes = weight_shapes(spec)
    for name, shape in shapes.items():
        if name not in weights:
            raise SpecError(f"{name} is missing from the weights; it must have shape {shape}")
        if weights[name].shape != shape:
            raise SpecError(f"{name} must have shape {shape}, got {weights[name].shape}")
        if weights[name].dtype.name not in ("float32", "float16", "bfloat16"):
            raise SpecError(f"{name} must be float32, float16 or bfloat16, got {weights[name].dtype}")
    unknown = sorted(set(weights) - set(shapes))
    if unknown:
        raise SpecError(f"{unknown[0]} is not a weight of this layer; it has {', '.join(shapes)}")


def _config(spec: AttentionSpec, weights: Mapping[str, NDArray[Any]], layer: int, table_positions: int | None) -> str:
    config: dict[str, Any] = {
        "model_type": "portpe",
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "v_head_dim": spec.v_head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "sliding_window": spec.window,
        "layer_idx": layer,
        "table_positions": table_positions,
        "torch_dtype": weights["o_proj.weight"].dtype.name,
        "portpe": spec.to_dict(),
    }
    return json.dumps(config, indent=2, allow_nan=False) + "\n"
