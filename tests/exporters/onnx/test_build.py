"""Building a graph: at once, the same bytes each time, and refusals in one line."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from portpe.encodings import Llama3Schedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.exporters.onnx import ExternalWeight, build
from portpe.interface import DTYPES
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from portpe.weight_shapes import weight_shapes
from tests.exporters.onnx.blocks import SPECS

LLAMA_3_1 = AttentionSpec(
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    scale=128**-0.5,
    rotary=RotaryEncoding(
        width=128,
        schedule=Llama3Schedule(
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        ),
    ),
    max_position_embeddings=131072,
)


def places_of(spec, dtype):
    """Where a file would hold the weights; nothing is written."""
    places, offset = {}, 0
    for name, shape in weight_shapes(spec).items():
        laid_out = shape[::-1] if name.endswith("_proj.weight") else shape
        length = int(np.prod(shape)) * DTYPES[dtype].itemsize
        places[name] = ExternalWeight(f"weights_{dtype}.data", offset, length, dtype, laid_out)
        offset += length
    return places


def test_a_large_layer_is_built_at_once_and_small():
    """The real settings of Llama 3.1 8B: about 60 nodes, a megabyte of tables for a million positions."""
    tables, places = table_set(LLAMA_3_1), places_of(LLAMA_3_1, "float32")
    build(LLAMA_3_1, form="portable", dtype="float32", layer=0, tables=tables, weights=places)
    start = time.process_time()
    serialized = build(LLAMA_3_1, form="portable", dtype="float32", layer=0, tables=tables, weights=places)
    assert time.process_time() - start < 0.1
    model = onnx.load_from_string(serialized)
    assert len(model.graph.node) <= 67
    assert len(serialized) < 1.1 * 2**20


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    """In another process too, where hashes differ."""
    tables, places = table_set(SPECS["all-together"]), places_of(SPECS["all-together"], "float16")
    arguments = {"form": "portable", "dtype": "float16", "layer": 7, "tables": tables, "weights": places}
    here = build(SPECS["all-together"], **arguments, stages=True)
    assert here == build(SPECS["all-together"], **arguments, stages=True)
    code = """
import hashlib
from tests.exporters.onnx.blocks import SPECS
from tests.exporters.onnx.test_build import places_of
from portpe.exporters.onnx import build
from portpe.tables import table_set
spec = SPECS["all-together"]
graph = build(spec, form="portable", dtype="float16", layer=7, tables=table_set(spec),
              weights=places_of(spec, "float16"), stages=True)
print(hashlib.sha256(graph).hexdigest())
"""
    root = str(Path(__file__).parents[3])
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={"PYTHONPATH": root, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_names_need_no_onnx():
    """What commands and bundles read of this package imports neither onnx nor onnx-ir."""
    code = """
import sys
from portpe.exporters.onnx import FORMS, ExternalWeight, graph_weights
print([name for name in ("onnx", "onnx_ir", "torch", "onnxruntime") if name in sys.modules])
"""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONPATH": root}
    )
    assert json.loads(done.stdout.replace("'", '"')) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "fastest"}, "form must be one of portable, standard, .*got 'fastest'"),
        ({"dtype": "float64"}, "dtype must be one of float32, float16, bfloat16 .* got 'float64'"),
        ({"tables": {}}, "tables must hold cos_hi, got none"),
        ({"weights": {}}, "weights must hold q_proj.weight, got none"),
        ({"dtype": "float16"}, "weights.q_proj.weight must be float16, the graph's type, got float32"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    spec = SPECS["rotary-half"]
    arguments = {
        "form": "portable",
        "dtype": "float32",
        "layer": 0,
        "tables": table_set(spec),
        "weights": places_of(spec, "float32"),
    }
    with pytest.raises(SpecError, match=message):
        build(spec, **{**arguments, **change})
