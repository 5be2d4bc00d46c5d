"""What quantised weights cost: a graph's output against the truth of the layer's own, whole weights.

Parity judges a quantised graph against the weights that it holds, because nothing else tells a fault from a rounding.
How far those weights move the layer's output is no fault, and is said beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from portpe.golden import CaseInputs, GoldenCase
from portpe.spec import AttentionSpec

Error = dict[str, float]


def measure(
    path: Path, spec: AttentionSpec, layer: int, cases: Iterable[CaseInputs], truths: Iterable[GoldenCase]
) -> Error:
    """Run a quantised graph on each case in ONNX Runtime, and compare its sampled rows with the truth.

    Args:
        path: the graph.
        spec: its layer.
        layer: the number in the names of its cache.
        cases: the inputs.
        truths: of these cases, on whole weights, in the graph's dtype.

    Returns:
        ``max_abs``, the largest distance of the output; ``relative``, the root mean square of the distances over that
        of the output; ``max_output``, the output's largest value. Over all cases together.
    """
    from portpe.runtimes import onnxruntime

    session = onnxruntime.open_graph(path, spec, layer=layer)
    distances, outputs = [], []
    for case, truth in zip(cases, truths, strict=True):
        batch, row = case.pairs.T
        found = session.run(case.inputs(truth.dtype)).output[batch, row].astype(np.float64)
        distances.append((found - truth.output).ravel())
        outputs.append(truth.output.ravel())
    distance, output = np.concatenate(distances), np.concatenate(outputs)
    return {
        "max_abs": float(np.abs(distance).max()),
        "relative": float(np.sqrt(np.mean(distance**2) / np.mean(output**2))),
        "max_output": float(np.abs(output).max()),
    }
