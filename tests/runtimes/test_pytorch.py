"""Layer: tests. The PyTorch runtime: arrays in, arrays out, in each of a bundle's types."""

import sys
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from portpe.encodings import AlibiEncoding, DefaultSchedule, LearnedEncoding, RotaryEncoding
from portpe.errors import SpecError
from portpe.interface import DTYPES, BlockInputs, stages_of
from portpe.runtimes import base
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

torch.set_num_threads(1)
SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 7, "scale": 0.4}
ROTARY = RotaryEncoding(width=8, schedule=DefaultSchedule(rope_theta=50.0))


@dataclass
class FakeBundle:
    """What a runtime reads of a bundle."""

    spec: AttentionSpec
    dtypes: tuple[str, ...] = tuple(DTYPES)
    table: dict = field(default_factory=dict)

    def weights(self):
        rng = np.random.default_rng(0)
        return {
            name: (rng.standard_normal(shape) * 1.7 / shape[-1] ** 0.5).astype(DTYPES["bfloat16"])
            for name, shape in weight_shapes(self.spec).items()
        }

    def tables(self):
        return self.table


def inputs(spec, dtype="float32", batch=2, seq=5, past=3):
    rng = np.random.default_rng(1)

    def floats(*shape):
        return (rng.integers(-128, 128, shape) / 64).astype(DTYPES[dtype])  # numbers that every type has

    return BlockInputs(
        hidden_states=floats(batch, seq, spec.hidden_size),
        position_ids=rng.integers(0, 30, (batch, seq)),
        attention_mask=np.array([[0] + [1] * (past + seq - 1)] + [[1] * (past + seq)] * (batch - 1)),
        key_position_ids=rng.integers(0, 30, (batch, past + seq)),
        past_key=floats(batch, spec.num_kv_heads, past, spec.head_dim),
        past_value=floats(batch, spec.num_kv_heads, past, spec.v_head_dim),
    )


def opened(bundle, dtype="float32"):
    return base.get("pytorch").open(bundle, base.Configuration("module", dtype, "cpu"))


def by_hand(bundle, given):
    """The output in float64, for causal attention with the half rotation or ALiBi of six heads."""
    spec = bundle.spec
    w = {name: array.astype(np.float64) for name, array in bundle.weights().items()}
    batch, seq, _ = given.hidden_states.shape
    x, past = given.hidden_states.astype(np.float64), given.past
    q, k, v = (
        (x @ w[f"{n}_proj.weight"].T).reshape(batch, seq, heads, -1).transpose(0, 2, 1, 3)
        for n, heads in (("q", 6), ("k", 2), ("v", 2))
    )
    if spec.rotary is not None:
        angles = given.position_ids[:, None, :, None] * np.array([50.0 ** (-i / 4) for i in range(4)])
        factor = np.exp(1j * angles)
        q, k = ((y[..., :4] + 1j * y[..., 4:]) * factor for y in (q, k))
        q, k = (np.concatenate((y.real, y.imag), -1) for y in (q, k))
    k = np.concatenate((given.past_key.astype(np.float64), k), 2)
    v = np.concatenate((given.past_value.astype(np.float64), v), 2)
    scores = np.einsum("bhsd,bhtd->bhst", q, k.repeat(3, 1)) * spec.scale
    if spec.bias:
        slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
        distance = given.position_ids[:, :, None] - given.key_position_ids[:, None, :]
        scores = scores - slopes[:, None, None] * distance[:, None]
    seen = np.tri(seq, past + seq, past, dtype=bool) & (given.attention_mask == 1)[:, None, None, :]
    weight = np.where(seen, np.exp(scores), 0)
    context = weight / weight.sum(-1, keepdims=True) @ v.repeat(3, 1)
    return context.transpose(0, 2, 1, 3).reshape(batch, seq, -1) @ w["o_proj.weight"].T, k, v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("site", [{"rotary": ROTARY}, {"bias": (AlibiEncoding(),)}], ids=["rotary", "alibi"])
def test_a_session_computes_the_block_in_its_type(site, dtype):
    bundle = FakeBundle(AttentionSpec(**SIZES, **site))
    given = inputs(bundle.spec, dtype)
    found = opened(bundle, dtype).run(given)
    expected = by_hand(bundle, given)
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    for ours, theirs, units in zip(
        (found.output, found.present_key, found.present_value), expected, (16, 4, 2), strict=True
    ):
        assert ours.dtype == DTYPES[dtype]
        assert ours.shape == theirs.shape
        assert np.abs(ours.astype(np.float64) - theirs).max() < units * unit * np.abs(theirs).max()
    assert found.stages == {}
    assert np.array_equal(found.present_key[:, :, :3], given.past_key)


def test_stages_come_by_name():
    bundle = FakeBundle(AttentionSpec(**SIZES, rotary=ROTARY))
    given = inputs(bundle.spec, "bfloat16")
    found = opened(bundle, "bfloat16").run(given, stages=True)
    assert tuple(found.stages) == stages_of(bundle.spec)
    assert np.array_equal(found.stages["output"], found.output)
    assert found.stages["k_rotated"].dtype == DTYPES["bfloat16"]
    assert found.stages["probs"].dtype == np.float32  # what a 16-bit block keeps in float32 is not rounded on the way


def test_without_causality_the_presents_are_this_call_s():
    bundle = FakeBundle(AttentionSpec(**SIZES, causal=False, rotary=ROTARY))
    found = opened(bundle).run(inputs(bundle.spec, past=0), stages=True)
    assert np.array_equal(found.present_key, found.stages["k_rotated"])
    assert (found.stages["probs"][1] > 0).all()


def test_hf_specs_take_the_tables_of_the_bundle():
    """Arbitrary numbers for cos and sin: they must be what turns the keys, and their end the end of positions."""
    cos, sin = np.random.default_rng(2).standard_normal((2, 30, 4)).astype(np.float32)
    spec = AttentionSpec(**SIZES, rotary=ROTARY).with_precision("hf")
    session = opened(FakeBundle(spec, table={"cos": cos, "sin": sin}))
    given = inputs(spec)
    stages = session.run(given, stages=True).stages
    a, b = stages["k"][..., :4], stages["k"][..., 4:]
    c, s = (table[given.position_ids][:, None] for table in (cos, sin))
    np.testing.assert_allclose(stages["k_rotated"], np.concatenate((a * c - b * s, a * s + b * c), -1), atol=1e-5)
    with pytest.raises(SpecError, match="position_ids must be < 30"):
        session.run(replace(given, position_ids=given.position_ids + 30))


def test_positions_are_checked_before_anything_runs():
    bundle = FakeBundle(AttentionSpec(**SIZES, embedding=LearnedEncoding(rows=30, width=20)))
    session, given = opened(bundle), inputs(bundle.spec)
    for position, message in ((30, "< 30, the end of the position table, got 30"), (-1, ">= 0, got -1")):
        ids = given.position_ids.copy()
        ids[1, 2] = position
        with pytest.raises(SpecError, match=f"position_ids must be {message}"):
            session.run(replace(given, position_ids=ids))


def test_configurations_name_every_type_and_the_device():
    runtime, bundle = base.get("pytorch"), FakeBundle(AttentionSpec(**SIZES), dtypes=("float16", "float32"))
    assert runtime.configurations(bundle) == [
        base.Configuration("module", "float16", "cpu"),
        base.Configuration("module", "float32", "cpu"),
    ]
    assert runtime.gaps(bundle) == []
    assert opened(bundle).provider == "cpu"
    with pytest.raises(SpecError, match=r"provider must be one of cpu, cuda for pytorch, got 'rocm'"):
        runtime.configurations(bundle, "rocm")


def test_cuda_without_a_device_is_refused_and_never_replaced(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpecError, match="provider cuda is not usable: torch sees no CUDA device here"):
        base.get("pytorch").configurations(FakeBundle(AttentionSpec(**SIZES)), "cuda")


def test_availability_says_why_not(monkeypatch, tmp_path):
    here = base.get("pytorch").availability()
    assert here.usable
    assert here.version == torch.__version__
    assert here.device.startswith("cpu")

    monkeypatch.setattr("portpe.runtimes.pytorch.find_spec", lambda _: None)
    absent = base.get("pytorch").availability()
    assert not absent.usable
    assert "torch is not installed" in absent.reason
    monkeypatch.undo()
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.syspath_prepend(tmp_path)
    broken = base.get("pytorch").availability()
    assert not broken.usable
    assert broken.reason == "torch cannot be imported: libtorch_cpu.so: cannot open shared object file"
