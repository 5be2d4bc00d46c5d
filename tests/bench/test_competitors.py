"""Layer: tests. Every competitor that can run here computes the layer; who cannot says why."""

import importlib.util

import onnx
import onnx.reference
import pytest
import torch

from portpe.bench import competitor, competitors
from portpe.bench.case import Case, inputs
from portpe.bench.competitors import llama
from portpe.bench.competitors.built_layer import CUT, cut_attention
from portpe.bench.subject import of_bundle
from portpe.bench.truth import Truth
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS
from portpe.exporting import export

PLAIN = {
    "portpe_spec": 1,
    "hidden_size": 24,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 16,  # what GroupQueryAttention asks for where it rotates itself, as in some peers' graphs
    "v_head_dim": 16,
    "scale": 0.25,
    "rotary": {"kind": "rotary", "width": 16, "schedule": {"kind": "default", "rope_theta": 100.0}},
}
COMPILED = ("torch.compile of the reference", "torch.compile static cache")
BUILT = (
    "mobius default",
    "mobius cpu",
    "mobius static cache",
    "ort-genai builder",
    "torch.onnx.export of the reference",
)
NAMES = [one.name for one in competitors.every(1)]


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    bundle = export(PLAIN, folder / "bundle", forms=tuple(FORMS), golden=False)
    return of_bundle(bundle, "float32", folder)


def named(name):
    return next(one for one in competitors.every(1) if one.name == name)


@pytest.mark.parametrize("case", [Case("prefill", 19), Case("decode", 33)], ids=lambda case: case.name)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*COMPILED, *BUILT)])
def test_it_computes_the_layer_every_time(subject, name, case):
    """A second call starts from the same cache, so it gives the same bytes."""
    chosen = named(name)
    assert chosen.availability().usable
    assert chosen.refusal(subject) is None
    given = inputs(subject.spec, case, "float32")
    prepared = chosen.prepare(subject, case, given)
    first, second = (prepared.array(prepared.run()).copy() for _ in range(2))
    assert Truth(subject, case, given).judge(first).verdict in ("exact", "float32 angles")
    assert first.tobytes() == second.tobytes()
    assert chosen.memory(subject, case) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMPILED, *BUILT])
def test_what_is_built_first_computes_the_layer(subject, name):
    chosen = named(name)
    found = chosen.availability()
    if not found.usable:
        assert found.reason is not None
        assert "not installed" in found.reason or "compiler" in found.reason
        return
    for case in (Case("prefill", 19), Case("decode", 33)):
        given = inputs(subject.spec, case, "float32")
        prepared = chosen.prepare(subject, case, given)
        judged = Truth(subject, case, given).judge(prepared.array(prepared.run()))
        assert judged.verdict in ("exact", "float32 angles"), judged


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [
        ("mobius cpu", "mobius", "mobius-onnx is not installed; pip install mobius-onnx"),
        ("ort-genai builder", "onnxruntime_genai", "onnxruntime-genai is not installed; pip install onnxruntime-genai"),
        ("transformers sdpa", "transformers", "transformers is not installed; pip install transformers"),
        ("mlx-lm", "mlx_lm", "mlx-lm is not installed; pip install 'portpe[mlx]' mlx-lm"),
        ("pytorch reference", "torch", "torch is not installed; pip install 'portpe[torch]'"),
    ],
)
def test_a_missing_package_is_the_reason(monkeypatch, name, module, reason):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda one, *rest: None if one == module else real(one, *rest))
    found = named(name).availability()
    assert not found.usable
    assert found.reason == reason


def test_a_package_that_breaks_is_the_reason(monkeypatch):
    def broken(_name):
        raise OSError("libgone.so:\ncannot open")

    monkeypatch.setattr(importlib, "import_module", broken)
    assert competitor.installed("torch").reason == "torch cannot be imported: libgone.so: cannot open"


def test_torch_compile_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    found = named("torch.compile static cache").availability()
    assert found.reason == "torch.compile needs a C++ compiler, and none is on PATH; install g++"
    assert named("torch static cache").availability().usable


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"rotary": None}, "always rotates"),
        ({"scale": 0.5}, "a scale other than"),
        ({"window": 9}, "window"),
        ({"sinks": True}, "sinks"),
        ({"biases": {"q": True}}, "biases on some projections"),
        ({"rotary": {**PLAIN["rotary"], "pairing": "interleaved"}}, "interleaved pairs"),
        ({"rotary": {**PLAIN["rotary"], "width": 4}}, "a partial rotation"),
        ({"rotary": {**PLAIN["rotary"], "sign": -1}}, "a negative rotation"),
        ({"rotary": {**PLAIN["rotary"], "attention_factor": 1.2}}, "an attention factor"),
        ({"bias": [{"kind": "alibi"}]}, "bias"),
    ],
)
def test_what_llama_cannot_say_is_named(change, what):
    from portpe.spec import AttentionSpec

    assert what in llama.beyond_llama(AttentionSpec.from_dict({**PLAIN, **change}))
    assert llama.beyond_llama(AttentionSpec.from_dict(PLAIN)) is None


def test_a_plain_block_computes_every_kind_that_it_takes(kind, spec_of, bundle_of, tmp_path):
    """What it does not take, it names by the field of the spec."""
    reason = llama.beyond_plain(spec_of(kind))
    if reason is not None:
        assert reason.startswith("it has no place for ")
        return
    subject, case = of_bundle(bundle_of(kind), "float32", tmp_path), Case("decode", 33)
    given = inputs(subject.spec, case, "float32")
    prepared = named("torch static cache").prepare(subject, case, given)
    assert Truth(subject, case, given).judge(prepared.array(prepared.run())).verdict in ("exact", "float32 angles")


def test_the_plain_kinds_are_taken(spec_of):
    plain = ("none", "rotary_default", "rotary_interleaved", "rotary_negative", "rotary_llama3", "rotary_proportional")
    assert [llama.beyond_plain(spec_of(name)) for name in plain] == [None] * 6


def one_layer_model(path):
    """A model as builders name its nodes: embedding, norm, projection, an output projection, and more after it."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        node("Gather", ["table", "input_ids"], ["embedded"], name="/model/embed_tokens/Gather"),
        node("LayerNormalization", ["embedded", "scale"], ["normed"], name="/model/layers.0/input_layernorm/LayerNorm"),
        node("Identity", ["past.key"], ["present.key"], name="/model/layers.0/attn/cache"),
        node("Add", ["normed", "present.key"], ["mixed"], name="/model/layers.0/attn/mix"),
        node("MatMul", ["mixed", "weight"], ["attended"], name="/model/layers.0/attn/o_proj/MatMul"),
        node("Add", ["embedded", "attended"], ["logits"], name="/model/layers.0/residual"),
    ]
    values = torch.arange(12, dtype=torch.float32).reshape(4, 3).numpy()
    weights = {"table": values, "scale": values[0] + 1, "weight": values[:3] - 3}
    graph = onnx.helper.make_graph(
        nodes,
        "model",
        [
            info("input_ids", onnx.TensorProto.INT64, ["b", "s"]),
            info("past.key", onnx.TensorProto.FLOAT, ["b", "s", 3]),
        ],
        [
            info("logits", onnx.TensorProto.FLOAT, ["b", "s", 3]),
            info("present.key", onnx.TensorProto.FLOAT, ["b", "s", 3]),
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), path)
    return weights


def test_the_attention_is_cut_out_of_a_model(tmp_path):
    weights = one_layer_model(tmp_path / "model.onnx")
    cut_attention(tmp_path / "model.onnx", tmp_path / CUT)
    part = onnx.load(tmp_path / CUT)
    onnx.checker.check_model(part, full_check=True)
    assert [node.op_type for node in part.graph.node] == ["Identity", "Add", "MatMul"]
    assert [value.name for value in part.graph.input] == ["hidden_states", "past.key"]
    assert [value.name for value in part.graph.output] == ["attended", "present.key"]
    x, past = torch.randn(1, 2, 3).numpy(), torch.randn(1, 2, 3).numpy()
    found = onnx.reference.ReferenceEvaluator(part).run(None, {"hidden_states": x, "past.key": past})[0]
    assert abs(found - (x + past) @ weights["weight"]).max() < 1e-5


def test_a_model_with_other_names_is_refused(tmp_path):
    one_layer_model(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(SpecError, match="must lie between nodes named input_layernorm and o_proj"):
        cut_attention(tmp_path / "model.onnx", tmp_path / CUT)
