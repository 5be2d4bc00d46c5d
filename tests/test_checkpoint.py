"""Weights from checkpoint folders: what is read and what is refused."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from portpe.errors import SpecError
from portpe.layer_parts import Norm, ProjectionBiases
from portpe.weight_shapes import weight_shapes
from tests.checkpoints import SPEC, folder_of, llama, load, raw_file, refused


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_stored_types_and_values_stay(tmp_path, dtype, prefix):
    tensors = llama(dtype=dtype, prefix=prefix)
    weights = load(folder_of(tmp_path / "m", tensors))
    assert list(weights) == list(weight_shapes(SPEC))
    for name, array in weights.items():
        stored = tensors[f"{prefix}layers.1.self_attn.{name}"]
        assert array.dtype == dtype
        assert array.tobytes() == stored.tobytes()


def test_bfloat16_comes_without_torch(tmp_path):
    folder_of(tmp_path / "m", llama(dtype=ml_dtypes.bfloat16))
    code = (
        "import sys; from portpe.checkpoint import load_layer; from portpe.spec import AttentionSpec;"
        f"spec = AttentionSpec.from_dict({SPEC.to_dict()!r});"
        f"w = load_layer({str(tmp_path / 'm')!r}, spec, model_type='llama', layer=0);"
        "assert str(w['q_proj.weight'].dtype) == 'bfloat16';"
        "assert not {'torch', 'onnx', 'mlx', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gpt2_is_stored_transposed_and_fused(tmp_path):
    spec = SPEC.model_copy(
        update={"num_kv_heads": 6, "biases": ProjectionBiases(q=True, k=True, v=True, o=True)},
    )
    rng = np.random.default_rng(3)
    fused, output = rng.normal(size=(20, 72)), rng.normal(size=(24, 20))
    bias, output_bias = rng.normal(size=72), rng.normal(size=20)
    tensors = {
        "h.0.attn.c_attn.weight": fused,
        "h.0.attn.c_attn.bias": bias,
        "h.0.attn.c_proj.weight": output,
        "h.0.attn.c_proj.bias": output_bias,
        "h.0.attn.bias": np.ones((1, 1, 8, 8)),  # the causal mask that old checkpoints carry
    }
    weights = load(folder_of(tmp_path / "m", tensors), spec, layer=0, model_type="gpt2")
    x = rng.normal(size=(3, 20))
    q, k, v = np.split(x @ fused + bias, 3, axis=1)  # Conv1D: x @ weight + bias
    for name, expected in (("q", q), ("k", k), ("v", v)):
        got = x @ weights[f"{name}_proj.weight"].T + weights[f"{name}_proj.bias"]
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(weights["o_proj.weight"], output.T)
    assert all(array.flags.c_contiguous for array in weights.values())


def test_albert_layers_share_their_group(tmp_path):
    tensors = {}
    for group in range(2):
        for number, name in enumerate(("query", "key", "value", "dense")):
            shape = (20, 24) if name == "dense" else (24, 20)
            where = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0.attention.{name}.weight"
            tensors[where] = np.full(shape, 10.0 * group + number, np.float32)
    folder = folder_of(tmp_path / "m", tensors, {"num_hidden_layers": 6, "num_hidden_groups": 2})
    spec = SPEC.model_copy(update={"num_kv_heads": 6})
    found = [load(folder, spec, layer, "albert")["k_proj.weight"][0, 0] for layer in range(6)]
    assert found == [1, 1, 1, 11, 11, 11]


def test_old_bert_names_of_the_norm(tmp_path):
    biases = ProjectionBiases()
    spec = SPEC.model_copy(
        update={"num_kv_heads": 6, "biases": biases, "input_norm": Norm(kind="layer", eps=1e-12, bias=True)}
    )
    names = {"self.query": (24, 20), "self.key": (24, 20), "self.value": (24, 20), "output.dense": (20, 24)}
    tensors = {
        f"bert.encoder.layer.0.attention.{name}.weight": np.ones(shape, np.float32) for name, shape in names.items()
    }
    tensors["bert.embeddings.LayerNorm.gamma"] = np.full(20, 3, np.float32)
    tensors["bert.embeddings.LayerNorm.beta"] = np.full(20, 4, np.float32)
    weights = load(folder_of(tmp_path / "m", tensors), spec, 0, "bert")
    assert weights["input_norm.weight"][0] == 3
    assert weights["input_norm.bias"][0] == 4


def test_only_the_shards_of_the_layer_are_opened(tmp_path):
    tensors = llama()
    first = {name: array for name, array in tensors.items() if ".0." in name}
    second = {name: array for name, array in tensors.items() if ".1." in name}
    folder = folder_of(tmp_path / "m", second, file="b.safetensors")
    (folder / "a.safetensors").write_bytes(b"no safetensors at all")
    index = {"weight_map": {**dict.fromkeys(first, "a.safetensors"), **dict.fromkeys(second, "b.safetensors")}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(load(folder)["v_proj.weight"], second["model.layers.1.self_attn.v_proj.weight"])
    with pytest.raises(SpecError, match=r"^a\.safetensors is truncated or damaged"):
        load(folder, layer=0)


PEAK = """
import resource, sys
from pathlib import Path
from portpe.checkpoint import load_layer
from portpe.spec import AttentionSpec
spec = AttentionSpec.from_dict(SPEC)
def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text()  # Linux's ru_maxrss begins with the parent's, this does not
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
before = peak()
READ
print(peak() - before)
"""


def peak_of(read):
    """Bytes by which a fresh process grows while it reads."""
    code = PEAK.replace("SPEC", repr(SPEC.to_dict())).replace("READ", read)
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def test_only_the_bytes_of_the_layer_are_touched(tmp_path):
    """256 MB of another tensor (a hole on disk; its pages count once they are touched) cost nothing."""
    other = 256 << 20
    header, end = {"other": {"dtype": "F32", "shape": [other // 4], "data_offsets": [0, other]}}, other
    for name, array in llama().items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    path = tmp_path / "model.safetensors"
    raw_file(path, header)
    os.truncate(path, path.stat().st_size + end)
    assert peak_of(f"load_layer({str(tmp_path)!r}, spec, model_type='llama', layer=1)") < other / 8
    everything = f"from safetensors.numpy import load_file; load_file({str(path)!r})"
    assert peak_of(everything) > other * 0.9, "the measure must see a tensor that is read"


def test_a_missing_tensor_is_named(tmp_path):
    tensors = llama()
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    refused(
        r"no tensor model\.layers\.1\.self_attn\.v_proj\.weight \(v_proj\.weight of layer 1 of llama\)",
        folder_of(tmp_path / "m", tensors),
    )


def test_a_missing_layer_is_named(tmp_path):
    refused(r"no tensor model\.layers\.5\.self_attn\.q_proj\.weight", folder_of(tmp_path / "m", llama()), layer=5)


def test_another_family_is_told(tmp_path):
    refused(r"no tensor transformer\.h\.\*.*belong together", folder_of(tmp_path / "m", llama()), model_type="gptj")


def test_a_wrong_shape_is_named(tmp_path):
    tensors = llama()
    tensors["model.layers.1.self_attn.k_proj.weight"] = np.zeros((24, 20), np.float32)
    refused(
        r"model\.safetensors: model\.layers\.1\.self_attn\.k_proj\.weight must have shape \[8, 20\].*got \[24, 20\]",
        folder_of(tmp_path / "m", tensors),
    )


def test_a_fused_tensor_of_a_wrong_shape_is_named(tmp_path):
    """The rows of six heads where six and two groups are due: cut anyhow, it would give plausible numbers."""
    tensors = {
        "model.layers.1.self_attn.qkv_proj.weight": np.zeros((72, 20), np.float32),
        "model.layers.1.self_attn.o_proj.weight": np.zeros((20, 24), np.float32),
    }
    refused(r"qkv_proj\.weight must have shape \[40, 20\]", folder_of(tmp_path / "m", tensors), model_type="phi3")


@pytest.mark.parametrize("extra", ["q_proj.bias", "o_proj.bias", "q_norm.weight", "k_norm.weight", "sinks"])
def test_a_tensor_that_the_spec_would_drop_is_refused(tmp_path, extra):
    tensors = llama()
    tensors[f"model.layers.1.self_attn.{extra}"] = np.zeros(24, np.float32)
    refused(f"{extra} is there, but by its config layer 1 of llama has no {extra}", folder_of(tmp_path / "m", tensors))


@pytest.mark.parametrize(
    "extra", ["g_proj.weight", "q_proj.lora_A.default.weight", "relative_attention_bias.weight", "temperature", "k_cap"]
)
def test_whatever_else_stands_in_the_attention_module_is_refused(tmp_path, extra):
    """A gate, an adapter, a table, a number a head: the layer computes with it, and no block would."""
    tensors = llama() | {f"model.layers.1.self_attn.{extra}": np.zeros(24, np.float32)}
    folder = folder_of(tmp_path / "m", tensors)
    refused(rf"{extra} is there, and layer 1 of llama has no use for it; do config.json", folder)
    assert load(folder, layer=0)


@pytest.mark.parametrize("buffer", ["rotary_emb.inv_freq", "bias", "masked_bias"])
def test_buffers_that_follow_from_the_config_are_let_be(tmp_path, buffer):
    tensors = llama() | {f"model.layers.1.self_attn.{buffer}": np.zeros(4, np.float32)}
    assert load(folder_of(tmp_path / "m", tensors))


def test_a_fused_bias_that_the_spec_would_drop_is_refused(tmp_path):
    tensors = {
        "transformer.blocks.0.attn.Wqkv.weight": np.zeros((40, 20), np.float32),
        "transformer.blocks.0.attn.Wqkv.bias": np.zeros(40, np.float32),
        "transformer.blocks.0.attn.out_proj.weight": np.zeros((20, 24), np.float32),
    }
    refused(r"Wqkv\.bias is there", folder_of(tmp_path / "m", tensors), model_type="mpt", layer=0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2"])
def test_a_quantised_type_is_refused(tmp_path, dtype):
    tensors = llama()
    stored = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int8": "I8", "uint8": "U8", "int32": "I32"}[dtype]
    itemsize = 4 if dtype == "int32" else 1
    header, data = {}, b""
    for name, array in tensors.items():
        quantised = name.endswith("k_proj.weight")
        piece = b"\1" * (array.size * itemsize) if quantised else array.tobytes()
        header[name] = {
            "dtype": stored if quantised else "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(piece)],
        }
        data += piece
    raw_file(tmp_path / "model.safetensors", header, data)
    refused(rf"layers\.1\.self_attn\.k_proj\.weight has type {stored}: a quantised checkpoint", tmp_path)


@pytest.mark.parametrize("beside", ["qweight", "scales", "weight_scale_inv", "SCB", "qzeros"])
@pytest.mark.parametrize("keeps_weight", [True, False])
def test_a_quantisers_leavings_are_refused(tmp_path, beside, keeps_weight):
    tensors = llama()
    if not keeps_weight:
        del tensors["model.layers.1.self_attn.o_proj.weight"]
    tensors[f"model.layers.1.self_attn.o_proj.{beside}"] = np.zeros((2, 2), np.float32)
    refused(f"o_proj.{beside}: a quantised checkpoint is not read", folder_of(tmp_path / "m", tensors))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization": {"group_size": 64, "bits": 4}}, ""),
        ({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}, "mxfp4"),
        ({"quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn.q_proj"]}}, ""),
    ],
)
def test_a_config_that_says_quantised_is_refused(tmp_path, config, said):
    refused(f"quantization_config '{said}': a quantised", folder_of(tmp_path / "m", llama(), config))


def test_quantised_experts_leave_a_float_attention_readable(tmp_path):
    """GPT-OSS: MXFP4 experts, attention in bfloat16, and config.json says so."""
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}}
    weights = load(folder_of(tmp_path / "m", llama(dtype=ml_dtypes.bfloat16), config), model_type="gpt_oss")
    assert weights["q_proj.weight"].dtype == ml_dtypes.bfloat16
