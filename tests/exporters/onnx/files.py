"""A block's graphs and weights on disk, without a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from portpe.exporters.onnx import ExternalWeight, build, graph_weights
from portpe.spec import AttentionSpec
from portpe.tables import end_of, table_set
from tests.exporters.onnx.blocks import LAYER


@dataclass(frozen=True)
class Files:
    """A block on disk: the production graph, the stages graph, and where its tables end."""

    path: Path
    stages_path: Path
    end: int | None


def place(weights: dict[str, np.ndarray], location: str) -> tuple[bytes, dict[str, ExternalWeight]]:
    """The bytes of a data file, each tensor at a multiple of 64, and where each lies."""
    data, places = bytearray(), {}
    for name, array in weights.items():
        data += bytes(-len(data) % 64)
        places[name] = ExternalWeight(location, len(data), array.nbytes, array.dtype.name, array.shape)
        data += array.tobytes()
    return bytes(data), places


def write(
    folder: Path, spec: AttentionSpec, weights: dict[str, np.ndarray], dtype: str, tables=None, *, form="portable"
) -> Files:
    """Build both graphs and write them beside their weights."""
    tables = table_set(spec) if tables is None else tables
    data, places = place(graph_weights(spec, weights, dtype), f"weights_{dtype}.data")
    (folder / f"weights_{dtype}.data").write_bytes(data)
    paths = []
    for stages in (False, True):
        path = folder / f"{form}_{dtype}{'.stages' if stages else ''}.onnx"
        path.write_bytes(build(spec, form=form, dtype=dtype, layer=LAYER, tables=tables, weights=places, stages=stages))
        paths.append(path)
    return Files(paths[0], paths[1], end_of(spec, tables))
