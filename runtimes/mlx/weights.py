"""Layer: runtimes (MLX). From an mlx folder to a loaded layer, with every name and shape checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.runtimes.mlx.args import ModelArgs
from portpe.spec import AttentionSpec

if TYPE_CHECKING:
    from portpe.runtimes.mlx.block import Attention

CONFIG, WEIGHTS, HF_TABLES = "config.json", "weights.safetensors", "tables_hf.safetensors"


def read_args(folder: Path) -> ModelArgs:
    """config.json as arguments. Raises SpecError."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{CONFIG} of the mlx folder cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SpecError(f"{CONFIG} of the mlx folder is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise SpecError(f"{CONFIG} of the mlx folder must be an object, got {type(config).__name__}")
    return ModelArgs.from_dict(config)


def read(folder: Path) -> dict[str, mx.array]:
    """weights.safetensors as mlx arrays. Raises SpecError for a missing or damaged file."""
    return _read_safetensors(folder / WEIGHTS)


def read_hf_tables(folder: Path, spec: AttentionSpec) -> dict[str, NDArray[Any]]:
    """The tables that transformers made, from tables_hf.safetensors in the folder or beside it. Raises SpecError."""
    if not any(_tabulated(spec)):
        return {}
    for home in (folder, folder.resolve().parent):
        if (home / HF_TABLES).is_file():
            return {name: np.array(value) for name, value in _read_safetensors(home / HF_TABLES).items()}
    raise SpecError(
        f"{HF_TABLES} is required where precision is hf and missing beside the mlx folder; keep the bundle together"
    )


def _tabulated(spec: AttentionSpec) -> list[bool]:
    return [
        getattr(site, "precision", "exact") == "hf"
        for site in (spec.rotary, spec.query_scale, spec.embedding, *spec.bias)
    ]


def _read_safetensors(path: Path) -> dict[str, mx.array]:
    if not path.is_file():
        raise SpecError(f"{path.name} is missing from the mlx folder")
    try:
        loaded = mx.load(str(path), format="safetensors")
    except (RuntimeError, ValueError) as error:
        raise SpecError(f"{path.name} is truncated or damaged: {' '.join(str(error).split())}") from None
    return cast("dict[str, mx.array]", loaded)


def load(block: Attention, arrays: Mapping[str, Any], quantization: Mapping[str, Any] | None = None) -> None:
    """Put weights into a layer, names and shapes checked first: mlx takes a wrong shape without a word where it is
    not strict. ``quantization`` is config.json's, as mlx-lm writes it. Raises SpecError.
    """
    given = {name: to_mlx(value) for name, value in block.sanitize(arrays).items()}
    if quantization is not None:
        _quantize(block, given, quantization)
    wanted = dict(tree_flatten(block.parameters()))
    for name, value in wanted.items():
        if name not in given:
            raise SpecError(f"{name} is missing from the weights; it must have shape {tuple(value.shape)}")
        if given[name].shape != value.shape:
            raise SpecError(f"{name} must have shape {tuple(value.shape)}, got {tuple(given[name].shape)}")
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise SpecError(f"{unknown[0]} is not a weight of this layer; it has {', '.join(wanted)}")
    block.load_weights(list(given.items()), strict=True)
    mx.eval(block.parameters())


def _quantize(block: Attention, given: Mapping[str, mx.array], quantization: Mapping[str, Any]) -> None:
    """Turn into quantised modules those whose scales are there, as mlx_lm.utils.load_model does."""
    settings = {name: quantization[name] for name in ("group_size", "bits", "mode") if name in quantization}

    def has_scales(path: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and f"{path}.scales" in given

    try:
        nn.quantize(block, class_predicate=has_scales, **settings)
    except (ValueError, TypeError) as error:
        raise SpecError(
            f"quantization of config.json does not fit this layer: {' '.join(str(error).split())}"
        ) from None


def to_mlx(value: Any) -> mx.array:
    """A numpy array (bfloat16 as ml_dtypes) or an mlx array as an mlx array of the same type."""
    if isinstance(value, mx.array):
        return value
    array = np.ascontiguousarray(value)
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def to_numpy(value: mx.array) -> NDArray[Any]:
    """An mlx array as a numpy array of the same type, bfloat16 as ml_dtypes'."""
    if value.dtype == mx.bfloat16:
        words: NDArray[Any] = np.array(value.view(mx.uint16))
        return words.view(ml_dtypes.bfloat16)
    return np.array(value)
