"""Layer: tests. Checkpoint folders as tests write them, and what refuses one."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from portpe.checkpoint import load_layer
from portpe.errors import SpecError
from portpe.layer_parts import Norm
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SPEC = AttentionSpec(hidden_size=20, num_heads=6, num_kv_heads=2, head_dim=4, v_head_dim=4, scale=0.5)
NORM = Norm(kind="rms", eps=1e-6)


def llama(layers=2, dtype=np.float32, prefix="model.", spec=SPEC):
    """A llama checkpoint's attention tensors; every element tells its layer and its tensor."""
    tensors = {}
    for layer in range(layers):
        for number, (name, shape) in enumerate(weight_shapes(spec).items()):
            values = (100 * layer + 10 * number + np.linspace(0, 1, int(np.prod(shape)))).reshape(shape)
            tensors[f"{prefix}layers.{layer}.self_attn.{name}"] = values.astype(dtype)
    return tensors


def folder_of(path, tensors, config=None, file="model.safetensors"):
    path.mkdir(exist_ok=True)
    save_file(tensors, path / file)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def load(folder, spec=SPEC, layer=1, model_type="llama", **more):
    return load_layer(folder, spec, model_type=model_type, layer=layer, **more)


def raw_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def refused(match, folder, **more):
    with pytest.raises(SpecError, match=match) as caught:
        load(folder, **more)
    assert "\n" not in str(caught.value)
