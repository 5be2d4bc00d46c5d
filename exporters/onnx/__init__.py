"""Layer: exporters/onnx. A spec, its tables and the places of its weights become an ONNX graph.

``FORMS``, ``ExternalWeight`` and ``graph_weights`` need no onnx; ``build`` imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from portpe.errors import SpecError
from portpe.exporters.onnx.capabilities import FORMS, Capability, refusal
from portpe.exporters.onnx.quantization import BITS as QUANTIZATIONS
from portpe.exporters.onnx.quantization import dequantized_weights, quantization_facts, quantized_weights
from portpe.exporters.onnx.weights import ExternalWeight, graph_weights
from portpe.interface import dtype_name
from portpe.spec import AttentionSpec

if TYPE_CHECKING:
    from portpe.exporters.onnx.block import Block

__all__ = [
    "FORMS",
    "QUANTIZATIONS",
    "Capability",
    "ExternalWeight",
    "build",
    "dequantized_weights",
    "graph_weights",
    "quantization_facts",
    "quantized_weights",
    "refusal",
]

_BLOCKS = {  # each in the file of the form's name
    "portable": "PortableBlock",
    "standard": "StandardBlock",
    "shared": "SharedBlock",
    "ort": "OrtBlock",
}


def build(
    spec: AttentionSpec,
    *,
    form: str,
    dtype: str,
    layer: int,
    tables: Mapping[str, NDArray[Any]],
    weights: Mapping[str, ExternalWeight],
    stages: bool = False,
) -> bytes:
    """The graph of one block as serialized ModelProto; equal arguments give equal bytes.

    Args:
        spec: the layer.
        form: a name of ``FORMS``.
        dtype: the type of activations and weights; tables stay float32.
        layer: the source's number, in the names of the cache.
        tables: as ``portpe.tables.table_set`` makes them; they stand inline.
        weights: where each tensor of ``graph_weights`` lies, or of ``quantized_weights`` made of them.
        stages: whether every stage of ``interface.stages_of`` that the form has is an output too.

    Raises:
        SpecError: an unknown form or type, a spec that the form cannot carry, a table or weight that is missing.
    """
    if form not in FORMS:
        raise SpecError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    dtype = dtype_name(dtype)
    if reason := refusal(spec, form, dtype):
        raise SpecError(reason)
    block: type[Block] = getattr(import_module(f"portpe.exporters.onnx.{form}"), _BLOCKS[form])
    return block(spec, FORMS[form], dtype=dtype, layer=layer, tables=tables, weights=weights, stages=stages).serialize()
