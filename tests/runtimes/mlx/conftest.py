"""What the MLX tests share: a spec for every variation, one call's inputs, and the truth in float64."""

import os

os.environ.setdefault("MLX_ENABLE_TF32", "0")

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import torch

from portpe import registry
from portpe.encodings import AlibiEncoding, DefaultSchedule, LearnedEncoding, RotaryEncoding, SinusoidalEncoding
from portpe.interface import DTYPES, BlockInputs
from portpe.random_weights import random_weights
from portpe.reference import Attention as Reference
from portpe.runtimes.mlx import Attention
from portpe.spec import AttentionSpec, EmbeddingProjection, Norm, ProjectionBiases

torch.set_num_threads(1)

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 7, "scale": 0.3}
PLAIN = RotaryEncoding(width=12, schedule=DefaultSchedule(rope_theta=500.0))
RMS = Norm(kind="rms", eps=1e-3, weight_offset=1.0)
LAYER = Norm(kind="layer", eps=1e-3, bias=True)


def _norms(**fields):
    norm = Norm(**({"kind": "rms", "eps": 1e-3} | fields))
    return {"q_norm": norm, "k_norm": norm, "rotary": PLAIN}


# name -> the fields of a spec that differ from SIZES
VARIANTS = {
    "none": {},
    "all biases": {"biases": ProjectionBiases(q=True, k=True, v=True, o=True), "rotary": PLAIN},
    "interleaved": {"rotary": PLAIN.model_copy(update={"pairing": "interleaved"})},
    "first channels": {"rotary": RotaryEncoding(width=4, schedule=PLAIN.schedule)},
    "last channels, negative": {
        "rotary": RotaryEncoding(width=6, channels="last", pairing="interleaved", sign=-1, schedule=PLAIN.schedule)
    },
    "attention factor": {"rotary": RotaryEncoding(width=12, schedule=PLAIN.schedule, attention_factor=1.4)},
    "multi-query, window": {"num_kv_heads": 1, "window": 3, "rotary": PLAIN},
    "window radius": {"causal": False, "window_radius": 2, "num_kv_heads": 6, "rotary": PLAIN},
    "softcap": {"softcap": 4.0, "rotary": PLAIN},
    "sinks": {"sinks": True, "rotary": PLAIN},
    "softcap, sinks, clip": {"softcap": 4.0, "sinks": True, "clip_qkv": 1.5, "rotary": PLAIN},
    "norm before, offset": _norms(weight_offset=1.0),
    "norm after": _norms(when="after"),
    "norm by head": _norms(kind="layer", per_head_weight=True, bias=True, when="after"),
    "norm over all heads": _norms(scope="all_heads"),
    "norm over all heads, after": _norms(scope="all_heads", when="after"),
    "norm without weight": _norms(affine=False),
    "alibi, window, sinks": {"bias": (AlibiEncoding(),), "window": 4, "sinks": True},
    "alibi, softcap": {"bias": (AlibiEncoding(),), "softcap": 6.0},
    "alibi, symmetric": {"causal": False, "bias": (AlibiEncoding(symmetric=True, bias_max=4.0),)},
    "learned, input norm": {"embedding": LearnedEncoding(rows=2000, width=20, offset=2), "input_norm": LAYER},
    "learned, projected": {
        "embedding": LearnedEncoding(rows=2000, width=8),
        "embedding_projection": EmbeddingProjection(width=8),
        "input_norm": LAYER,
    },
    "sinusoidal, scaled": {"embedding": SinusoidalEncoding(width=20, offset=1), "embed_scale": 3.0, "input_norm": RMS},
    "cosines first": {"embedding": SinusoidalEncoding(width=20, order="cos_sin", denominator="half_minus_one")},
    "scale alone": {"embed_scale": 2.5},
}
VARIANTS |= {f"schedule {row.kind}": {"rotary": row.rotary()} for row in registry.SCHEDULES.values()}
for _row in registry.ENCODINGS.values():  # a kind without a case here is a KeyError, not a silence
    VARIANTS[f"kind {_row.kind}"] = {
        "none": lambda _: {},
        "embedding": lambda row: {"embedding": row.example.model_copy(update={"width": 20})},
        "rotary": lambda row: {"rotary": row.example},
        "bias": lambda row: {"bias": (row.example,)},
    }[_row.site](_row)


def spec_named(name):
    return AttentionSpec(**(SIZES | VARIANTS[name]))


def call_inputs(spec, dtype, *, batch=3, length=5, past=4, seed=7, top=None, padded=True):
    """One call: left padding in two rows, positions that are no arange, a past where the spec has a cache."""
    rng = np.random.default_rng(seed)
    past = past if spec.causal else 0
    total = past + length
    top = top or (40 if spec.embedding is not None and spec.embedding.kind == "learned" else 1000)

    def draw(*shape):
        return rng.standard_normal(shape).astype(DTYPES[dtype])

    mask = np.ones((batch, total), np.int64)
    if padded:
        mask[0, :2], mask[-1, 0] = 0, 0
    near = rng.integers(0, 9, (batch, total)) + rng.integers(0, top - 9, (batch, 1))
    return BlockInputs(
        hidden_states=draw(batch, length, spec.input_width),
        position_ids=near[:, past:].copy(),
        attention_mask=mask,
        key_position_ids=near,
        past_key=draw(batch, spec.num_kv_heads, past, spec.head_dim),
        past_value=draw(batch, spec.num_kv_heads, past, spec.v_head_dim),
    )


def rounded(weights, dtype):
    return {name: value.astype(DTYPES[dtype]) for name, value in weights.items()}


def truth_of(spec, weights, inputs):
    """Every stage in float64 on the very inputs and weights given."""
    block = Reference(spec, dtype=torch.float64)
    block.load({name: np.asarray(value, np.float64) for name, value in weights.items()})

    def wide(array):
        return torch.from_numpy(np.asarray(array, np.float64))

    stages = block.stages(
        wide(inputs.hidden_states),
        torch.from_numpy(inputs.position_ids),
        torch.from_numpy(inputs.attention_mask),
        past_key=wide(inputs.past_key),
        past_value=wide(inputs.past_value),
        key_position_ids=torch.from_numpy(inputs.key_position_ids),
    )
    return {name: value.numpy() for name, value in stages.items()}


def visible_rows(spec, inputs):
    """(B, S): the queries that are no pads."""
    return inputs.attention_mask[:, inputs.past :] == 1


def numbers(array):
    """An mlx array in float64, whatever its type."""
    wide = array.astype(mx.float32) if array.dtype == mx.bfloat16 else array
    return np.array(wide).astype(np.float64)


@pytest.fixture(params=list(VARIANTS))
def variant(request):
    """Every variant's spec in turn."""
    return spec_named(request.param)


@pytest.fixture(params=[name for name, fields in VARIANTS.items() if fields.get("causal", True)])
def causal_variant(request):
    """Every variant that can have a cache, in turn."""
    return spec_named(request.param)


@pytest.fixture
def spec_of():
    return spec_named


@pytest.fixture
def inputs_of():
    return call_inputs


@pytest.fixture
def truth():
    return truth_of


@pytest.fixture
def as_float64():
    return numbers


@pytest.fixture
def block_of():
    """(spec, dtype, seed) -> a loaded block of that type and its weights, rounded to it."""

    def make(spec, dtype="float32", seed=3, **options):
        weights = rounded(random_weights(spec, seed), dtype)
        block = Attention(spec, **options)
        block.load(weights)
        return block, weights

    return make


@pytest.fixture
def ulp():
    """Half the distance between 1 and the next number, by type."""
    return {name: float(ml_dtypes.finfo(dtype).eps) / 2 for name, dtype in DTYPES.items()}
