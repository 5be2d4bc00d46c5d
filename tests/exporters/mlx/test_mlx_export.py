"""Layer: tests. The mlx folder: what mlx-lm's own tools read from it, and that the same layer gives the same bytes."""

import hashlib
import json
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from portpe.encodings import DefaultSchedule, LearnedEncoding, RotaryEncoding
from portpe.errors import SpecError
from portpe.exporters.mlx import write
from portpe.interface import DTYPES
from portpe.layer_parts import Norm
from portpe.random_weights import random_weights
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SPEC = AttentionSpec(
    hidden_size=20,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    v_head_dim=10,
    scale=0.4,
    window=5,
    sinks=True,
    q_norm=Norm(kind="rms", eps=1e-6, weight_offset=1.0),
    k_norm=Norm(kind="rms", eps=1e-6, weight_offset=1.0),
    embedding=LearnedEncoding(rows=9, width=20, offset=2),
    rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=1e6)),
    max_position_embeddings=77,
)


def weights(dtype="float32"):
    return {name: value.astype(DTYPES[dtype]) for name, value in random_weights(SPEC, 4).items()}


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_mlx_reads_the_very_bits_that_were_given(tmp_path, dtype):
    """mlx's own loader, as mlx-lm calls it; nothing is transposed, cast, or folded into a norm."""
    given = weights(dtype)
    paths = write(SPEC, given, layer=3, folder=tmp_path / "mlx")
    assert paths == [tmp_path / "mlx" / "config.json", tmp_path / "mlx" / "weights.safetensors"]
    loaded, metadata = mx.load(str(paths[1]), return_metadata=True)
    assert metadata == {"format": "mlx"}
    assert loaded.keys() == given.keys() == weight_shapes(SPEC).keys()
    for name, value in loaded.items():
        assert value.dtype == getattr(mx, dtype)
        word = {4: (mx.uint32, np.uint32), 2: (mx.uint16, np.uint16)}[value.dtype.size]
        np.testing.assert_array_equal(np.array(value.view(word[0])), given[name].view(word[1]))


def test_config_has_the_names_that_other_tools_read_and_the_whole_spec(tmp_path):
    config = json.loads(write(SPEC, weights("bfloat16"), layer=3, folder=tmp_path, table_positions=2048)[0].read_text())
    named = {
        "model_type": "portpe",
        "hidden_size": 20,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "v_head_dim": 10,
        "max_position_embeddings": 77,
        "sliding_window": 5,
        "layer_idx": 3,
        "table_positions": 2048,
        "torch_dtype": "bfloat16",
    }
    assert {name: config[name] for name in named} == named
    assert config.keys() == named.keys() | {"portpe"}
    assert AttentionSpec.from_dict(config["portpe"]) == SPEC


def test_the_same_layer_gives_the_same_bytes_whatever_the_order_and_the_process(tmp_path):
    write(SPEC, weights(), layer=0, folder=tmp_path / "here")
    write(SPEC, dict(reversed(weights().items())), layer=0, folder=tmp_path / "reversed")
    program = (
        "import sys; from pathlib import Path; import json;"
        "from portpe.exporters.mlx import write; from portpe.random_weights import random_weights;"
        "from portpe.spec import AttentionSpec;"
        "spec = AttentionSpec.from_dict(json.loads(sys.argv[1]));"
        "write(spec, random_weights(spec, 4), layer=0, folder=Path(sys.argv[2]));"
        "heavy = {'mlx', 'torch', 'onnx', 'onnxruntime', 'transformers'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program, SPEC.to_json(), str(tmp_path / "elsewhere")], check=True)
    for name in ("config.json", "weights.safetensors"):
        digests = {
            hashlib.sha256((tmp_path / home / name).read_bytes()).hexdigest()
            for home in ("here", "reversed", "elsewhere")
        }
        assert len(digests) == 1, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("sinks"), r"sinks is missing from the weights; it must have shape \(6,\)"),
        (lambda w: w.update(gate=w["sinks"]), "gate is not a weight of this layer; it has position_embedding"),
        (
            lambda w: w.update({"k_proj.weight": w["k_proj.weight"].T}),
            r"k_proj\.weight must have shape \(16, 20\), got",
        ),
        (
            lambda w: w.update(sinks=w["sinks"].astype(np.float64)),
            "sinks must be float32, float16 or bfloat16, got float64",
        ),
        (lambda w: w.update(sinks=w["sinks"].astype(np.int8)), "sinks must be float32, float16 or bfloat16, got int8"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, change, message):
    given = weights()
    change(given)
    with pytest.raises(SpecError, match=f"^{message}"):
        write(SPEC, given, layer=0, folder=tmp_path / "mlx")
    assert not (tmp_path / "mlx").exists()
