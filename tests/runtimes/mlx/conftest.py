"""What the MLX tests share: a spec for every variation, one call's inputs, and the truth in float64."""

import ctypes
import hashlib
import os
import subprocess

os.environ.setdefault("MLX_ENABLE_TF32", "0")

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import torch

from portpe import registry
from portpe.encodings import AlibiEncoding, DefaultSchedule, LearnedEncoding, RotaryEncoding, SinusoidalEncoding
from portpe.interface import DTYPES, BlockInputs
from portpe.layer_parts import EmbeddingProjection, Norm, OutputGate, ProjectionBiases
from portpe.random_weights import random_weights
from portpe.reference import Attention as Reference
from portpe.runtimes.mlx import Attention, metal_rotary
from portpe.spec import AttentionSpec

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
    "norm without weight": {**_norms(affine=False), "v_norm": Norm(kind="rms", eps=1e-3, affine=False)},
    "norm of values": {"v_norm": Norm(kind="layer", eps=1e-3, per_head_weight=True, bias=True), "rotary": PLAIN},
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
    "gated, biased": {"value_scale": 0.6, "output_gate": OutputGate(scope="channel", bias=True), "rotary": PLAIN},
    "gated by head, softplus": {"output_gate": OutputGate(scope="head", activation="softplus"), "input_norm": RMS},
    "linear": {"attention": "linear", "scale": 1.0, "rotary": RotaryEncoding(width=6, schedule=PLAIN.schedule)},
    "linear, window, norms": {**_norms(weight_offset=1.0), "attention": "linear", "scale": 1.0, "window": 4},
    "linear, unrotated": {"attention": "linear", "scale": 1.0, "num_kv_heads": 1},
    "linear, gated": {"attention": "linear", "scale": 1.0, "output_gate": OutputGate(scope="channel")},
    "linear, without causality": {"attention": "linear", "scale": 1.0, "causal": False, "rotary": PLAIN},
}
VARIANTS |= {f"schedule {row.kind}": {"rotary": row.rotary()} for row in registry.SCHEDULES.values()}
for _row in registry.ENCODINGS.values():  # a kind without a case here is a KeyError, not a silence
    VARIANTS[f"kind {_row.kind}"] = {
        "none": lambda _: {},
        "embedding": lambda row: {"embedding": row.example.model_copy(update={"width": 20})},
        "rotary": lambda row: {"rotary": row.example},
        "query": lambda row: {"query_scale": row.example},
        "bias": lambda row: {"bias": (row.example,)},
    }[_row.site](_row)
    if _row.example is not None and getattr(_row.example, "position_axes", 1) > 1:  # of a picture
        VARIANTS[f"kind {_row.kind}"] |= {"causal": False}

VARIANTS["kind gated_buckets"] |= {"num_heads": 4}  # which divides the hidden states


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
    if spec.position_axes > 1:
        ends = spec.position_ends or (4, 7)
        near = np.stack([rng.integers(0, end, (batch, total)) for end in ends])
    return BlockInputs(
        hidden_states=draw(batch, length, spec.input_width),
        position_ids=near[..., past:].copy(),
        attention_mask=mask,
        key_position_ids=near,
        past_key=draw(batch, spec.num_kv_heads, past, spec.head_dim),
        past_value=draw(batch, spec.num_kv_heads, past, spec.v_head_dim),
        past_states={
            name: -np.exp(rng.standard_normal((batch, rows, past), np.float32))
            for name, rows in spec.cached_states.items()
        },
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
        past_states={name: wide(state) for name, state in inputs.past_states.items()},
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


# --- a Metal device, emulated ---

METAL_TYPES = {mx.float32: "float", mx.float16: "_Float16", mx.bfloat16: "bfloat16", mx.int32: "int"}

PRELUDE = """
#include <cstdint>
#include <cstring>
typedef unsigned int uint;
static int64_t outside;
struct bfloat16 {
    uint16_t bits;
    bfloat16() = default;
    bfloat16(float value) {  // to nearest, ties to even
        uint32_t word;
        std::memcpy(&word, &value, 4);
        bits = uint16_t((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
    operator float() const {
        const uint32_t word = uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
};
template <typename V> struct Array {  // a pointer that counts what is read or written outside of it
    V *data;
    int64_t size;
    V &operator[](int64_t at) const {
        if (at < 0 || at >= size) { outside++; return data[0]; }
        return data[at];
    }
};
struct { uint x, y, z; } thread_position_in_grid;
"""


class Emulated:
    """What mx.fast.metal_kernel returns, for the CPU: the signature is made from the names, as mlx makes it."""

    def __init__(self, folder):
        self.folder, self.launches = folder, 0

    def kernel(self, name, input_names, output_names, source, ensure_row_contiguous=True):
        assert not ensure_row_contiguous  # mlx would copy every view of a projection
        assert len(set(input_names)) == len(input_names)
        self.name, self.input_names, self.output_names, self.source = name, input_names, output_names, source
        names = tuple(input_names), tuple(output_names)
        return lambda **call: self.run(source, *names, **call)

    def library(self, source, names, types, constants):
        lines = [PRELUDE]
        for name, value in constants:
            if isinstance(value, mx.Dtype):
                lines.append(f"typedef {METAL_TYPES[value]} {name};")
            else:
                lines.append(f"constexpr {'bool' if isinstance(value, bool) else 'int'} {name} = {int(value)};")
        lines.append(
            'extern "C" int64_t run(void **data, int64_t *sizes, int64_t **strides, int **shapes, uint *grid) {'
        )
        lines.append("outside = 0;")
        for at, (name, kind) in enumerate(zip(names, types, strict=True)):
            lines.append(f"Array<{kind}> {name}{{({kind} *)data[{at}], sizes[{at}]}};")
            lines.append(f"const int64_t *{name}_strides = strides[{at}]; (void){name}_strides;")
            lines.append(f"const int *{name}_shape = shapes[{at}]; (void){name}_shape;")
        for axis, place in zip("zyx", (2, 1, 0), strict=True):
            lines.append(f"for (uint i{axis} = 0; i{axis} < grid[{place}]; ++i{axis})")
        lines.append("{ thread_position_in_grid = {ix, iy, iz};" + source + "}\nreturn outside; }")
        text = "\n".join(lines)
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not path.exists():
            path.with_suffix(".cpp").write_text(text)
            options = "-std=c++17 -O1 -fPIC -shared -ffp-contract=off -Wall -Wextra -Wno-sign-compare -Werror"
            subprocess.run(
                ["g++", *options.split(), str(path.with_suffix(".cpp")), "-o", str(path)],
                check=True,
                capture_output=True,
            )
        return ctypes.CDLL(str(path)).run

    def run(
        self, source, input_names, output_names, *, inputs, template, grid, threadgroup, output_shapes, output_dtypes
    ):
        assert np.prod(threadgroup) <= 1024
        assert all(1 <= group <= cells for group, cells in zip(threadgroup, grid, strict=True))
        self.launches += 1
        types = [METAL_TYPES[array.dtype] for array in inputs] + [METAL_TYPES[dtype] for dtype in output_dtypes]
        run = self.library(source, [*input_names, *output_names], types, template)
        run.restype = ctypes.c_int64
        words = {4: np.uint32, 2: np.uint16}
        outputs = [
            np.full(shape, -1, words[d.size].__name__.replace("uint", "int"))
            for shape, d in zip(output_shapes, output_dtypes, strict=True)
        ]
        arrays = [np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array) for array in inputs]
        arrays += outputs
        strides = [(ctypes.c_int64 * a.ndim)(*(step // a.itemsize for step in a.strides)) for a in arrays]
        shapes = [(ctypes.c_int * a.ndim)(*a.shape) for a in arrays]
        sizes = [
            1 + sum((n - 1) * step // a.itemsize for n, step in zip(a.shape, a.strides, strict=True)) for a in arrays
        ]
        count = len(arrays)
        outside = run(
            (ctypes.c_void_p * count)(*(a.ctypes.data for a in arrays)),
            (ctypes.c_int64 * count)(*sizes),
            (ctypes.POINTER(ctypes.c_int64) * count)(
                *(ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in strides)
            ),
            (ctypes.POINTER(ctypes.c_int) * count)(*(ctypes.cast(s, ctypes.POINTER(ctypes.c_int)) for s in shapes)),
            (ctypes.c_uint * 3)(*grid),
        )
        assert outside == 0, f"{outside} places outside of an array"
        return [mx.array(o.view(words[d.size])).view(d) for o, d in zip(outputs, output_dtypes, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def metal(folder, monkeypatch):
    """A machine whose Metal device is the emulation; ``metal(an edit of the source)`` sets it up."""

    def fresh():
        metal_rotary.doubt.cache_clear()
        metal_rotary._kernel.cache_clear()

    def set_up(edit=lambda source: source):
        emulated = Emulated(folder)
        monkeypatch.setattr(metal_rotary, "why_not", lambda: None)
        monkeypatch.setattr(
            mx.fast, "metal_kernel", lambda **kernel: emulated.kernel(**kernel | {"source": edit(kernel["source"])})
        )
        fresh()
        return emulated

    yield set_up
    fresh()
