"""Layer: tests. mx.fast.rope by name: what it expresses, what it is refused for, and its error as stated."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache

from portpe.encodings import DefaultSchedule, Llama3Schedule, ProportionalSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.exporters.mlx import write
from portpe.random_weights import random_weights
from portpe.runtimes.mlx import Attention
from portpe.runtimes.mlx.fast_rope import FastRope
from portpe.runtimes.mlx.positions import Run
from portpe.spec import AttentionSpec


def spec_with(**fields):
    encoding = RotaryEncoding(**({"width": 8, "schedule": DefaultSchedule(rope_theta=100.0)} | fields))
    return AttentionSpec(
        hidden_size=24, num_heads=6, num_kv_heads=2, head_dim=12, v_head_dim=7, scale=0.3, rotary=encoding
    )


def frequencies(encoding):
    """By hand, of the schedules used here."""
    pairs = np.arange(encoding.width // 2)
    plain = encoding.schedule.rope_theta ** (-2 * pairs / encoding.width)
    if isinstance(encoding.schedule, ProportionalSchedule):
        return np.where(pairs < 2, plain, 0.0)
    if isinstance(encoding.schedule, Llama3Schedule):  # wavelengths past the original length are stretched
        return np.where(2 * np.pi / plain > 64, plain / 4, plain)
    return plain


def turned(x, encoding, positions):
    """Float64, from the formula: x (..., S, D), positions (S,)."""
    width, half = encoding.width, encoding.width // 2
    angles = encoding.sign * np.asarray(positions, np.float64)[:, None] * frequencies(encoding)
    out = x.astype(np.float64).copy()
    part = x[..., :width].astype(np.float64)
    neighbours = encoding.pairing == "interleaved"
    a, b = (part[..., 0::2], part[..., 1::2]) if neighbours else (part[..., :half], part[..., half:])
    first, second = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    if neighbours:
        out[..., :width] = np.stack([first, second], -1).reshape(part.shape)
    else:
        out[..., :width] = np.concatenate([first, second], -1)
    out[..., :width] *= encoding.magnitude
    return out


EXPRESSIBLE = {
    "half": {},
    "interleaved": {"pairing": "interleaved"},
    "whole head": {"width": 12},
    "attention factor": {"attention_factor": 1.7},
    "negative": {"sign": -1, "pairing": "interleaved"},
    "proportional": {"schedule": ProportionalSchedule(rope_theta=100.0, partial_rotary_factor=0.4), "width": 12},
    "llama3": {
        "schedule": Llama3Schedule(
            rope_theta=5000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=1.0000001,
            original_max_position_embeddings=64,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_near_the_start_it_is_the_formula(name):
    encoding = spec_with(**EXPRESSIBLE[name]).rotary
    rng = np.random.default_rng(1)
    q, k = (rng.standard_normal((2, heads, 5, 12)).astype(np.float32) for heads in (6, 2))
    for positions in (Run(37, 5), np.arange(37, 42)[None]):
        found = FastRope(encoding)(mx.array(q), mx.array(k), positions)
        for x, result in zip((q, k), found, strict=True):
            np.testing.assert_allclose(np.array(result), turned(x, encoding, range(37, 42)), rtol=0, atol=3e-5)
            np.testing.assert_array_equal(np.array(result)[..., encoding.width :], x[..., encoding.width :])
    rows = np.stack([np.arange(3, 8), np.arange(30, 35)])
    found = np.array(FastRope(encoding)(mx.array(q), mx.array(k), rows)[0])
    for row in range(2):
        np.testing.assert_allclose(found[row], turned(q[row], encoding, rows[row]), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("position", "at_least", "at_most"), [(4_096, 2e-5, 8e-4), (131_072, 1e-3, 3e-2), (1_000_000, 1e-2, 2e-1)]
)
def test_its_error_is_as_stated_and_the_tables_have_none(position, at_least, at_most):
    encoding = RotaryEncoding(width=64, schedule=DefaultSchedule())
    spec = AttentionSpec(
        hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=64, v_head_dim=4, scale=1.0, rotary=encoding
    )
    rng = np.random.default_rng(2)
    q, k = (rng.standard_normal((1, heads, 256, 64)).astype(np.float32) for heads in (2, 1))
    expected = turned(q, encoding, range(position, position + 256))
    errors = {}
    for rotation in ("fast_rope", "auto"):
        rope = Attention(spec, rotation=rotation).rope
        found = rope.rotate(mx.array(q), mx.array(k), Run(position, 256))[0]
        errors[rotation] = np.abs(np.array(found) - expected).max()
    assert at_least < errors["fast_rope"] < at_most
    assert errors["auto"] < 1.5e-6


def run(block, x, cache, cuts):
    outputs, start = [], 0
    for cut in cuts:
        outputs.append(block(x[:, start : start + cut], "causal" if cut > 1 else None, cache))
        start += cut
    return np.array(mx.concatenate(outputs, axis=1))


def test_a_block_decodes_with_it(tmp_path):
    """From a folder, in parts, and in a left-padded batch, whose pads count on below zero."""
    spec = spec_with(attention_factor=1.2)
    write(spec, random_weights(spec, 3), layer=0, folder=tmp_path)
    fast = Attention.from_folder(tmp_path, rotation="fast_rope")
    plain = Attention.from_folder(tmp_path)
    assert (fast.rope.rotation, plain.rope.rotation) == ("fast_rope", "auto")
    x = mx.array(np.random.default_rng(5).standard_normal((2, 11, 24)).astype(np.float32))
    expected = np.array(plain(x, "causal"))
    assert np.abs(expected).max() > 2
    for cuts in ([11], [6, 1, 1, 3]):
        np.testing.assert_allclose(run(fast, x, KVCache(), cuts), expected, rtol=0, atol=5e-5)
    padded = mx.concatenate([x[:1], mx.pad(x[1:, :8], [(0, 0), (3, 0), (0, 0)])])
    found = run(fast, padded, BatchKVCache([0, 3]), [7, 1, 3])
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=5e-5)
    np.testing.assert_allclose(found[1, 3:], expected[1, :8], rtol=0, atol=5e-5)


def test_it_is_refused_for_what_it_cannot_express():
    for fields, message in (
        ({"channels": "last"}, "rotary.channels must be first where rotation is fast_rope, got last"),
        ({"precision": "hf"}, "rotary.precision must be exact where rotation is fast_rope, got hf"),
    ):
        with pytest.raises(SpecError, match=message):
            Attention(
                spec_with(**fields),
                tables={name: np.zeros((9, 4), np.float32) for name in ("cos", "sin")},
                rotation="fast_rope",
            )
    block = Attention(spec_with(), rotation="fast_rope")
    x = mx.ones((1, 3, 24))
    np.testing.assert_allclose(
        np.array(block(x, position_ids=np.array([[4, 5, 6]]))), np.array(block(x)), rtol=0, atol=1e-5
    )
    for ids, step in (([[4, 6, 7]], 2), ([[0, 0, 1]], 0), ([[5, 4, 3]], -1)):
        with pytest.raises(SpecError, match=f"must count up by one in each row .*, got a step of {step}; use another"):
            block(x, position_ids=np.array(ids))
