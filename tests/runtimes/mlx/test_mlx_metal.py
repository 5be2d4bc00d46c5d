"""Layer: tests. The Metal kernel without a Metal device: its body, word for word, compiled as C++ and run over the
whole grid, and the choice between it and the plain path."""

import shutil

import mlx.core as mx
import numpy as np
import pytest

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.errors import SpecError
from portpe.runtimes.mlx import Attention, metal_rotary
from portpe.runtimes.mlx.positions import Run
from portpe.runtimes.mlx.rotary import SITES
from portpe.spec import AttentionSpec
from portpe.tables import table_set

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel's body is compiled with g++")

SCHEDULE = DefaultSchedule(rope_theta=500.0)
LAYOUTS = {
    "half": RotaryEncoding(width=12, schedule=SCHEDULE),
    "interleaved": RotaryEncoding(width=12, pairing="interleaved", schedule=SCHEDULE, attention_factor=1.4),
    "half, first": RotaryEncoding(width=6, schedule=SCHEDULE),
    "interleaved, first": RotaryEncoding(width=6, pairing="interleaved", sign=-1, schedule=SCHEDULE),
    "half, last": RotaryEncoding(width=4, channels="last", schedule=SCHEDULE),
    "interleaved, last": RotaryEncoding(width=10, channels="last", pairing="interleaved", schedule=SCHEDULE),
}
SHAPES = {  # batch, tokens, positions
    "one token": (1, 1, np.array([[1_000_001]])),
    "a run": (2, 5, Run(1_022, 5)),
    "rows": (3, 4, np.array([[0, 9, 2**20 - 1, 77], [5_000, 3, 1, 1_024], [8, 8, 1_023, 4]])),
    "shared": (3, 7, np.array([[2_047, 2_048, 1, 0, 999, 1_000_000, 70_000]])),
}


def rope_of(encoding, rotation, full=False):
    spec = AttentionSpec(
        hidden_size=8, num_heads=1, num_kv_heads=1, head_dim=12, v_head_dim=4, scale=1.0, rotary=encoding
    )
    if not full:
        return SITES["rotary"](encoding, table_set(spec), rotation)
    rng = np.random.default_rng(8)  # a full table that no formula makes
    tables = {name: rng.standard_normal((3_000, encoding.width // 2)).astype(np.float32) for name in ("cos", "sin")}
    return SITES["rotary"](encoding, tables, rotation)


def heads(batch, count, tokens, dtype, seed):
    """As in the block: a view of (batch, tokens, heads, channels)."""
    rng = np.random.default_rng(seed)
    flat = mx.array(rng.standard_normal((batch, tokens, count, 12)).astype(np.float32)).astype(dtype)
    return flat.transpose(0, 2, 1, 3)


def same(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.array(found.astype(mx.float32)), np.array(expected.astype(mx.float32)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("full", [False, True], ids=["two levels", "full table"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernel_gives_the_bits_of_the_plain_path(layout, full, dtype, metal):
    """Unequal heads that fill no group of threads, views as inputs, rows of the table that are no neighbours."""
    emulated = metal()
    fused, plain = (rope_of(LAYOUTS[layout], rotation, full) for rotation in ("metal", "plain"))
    for batch, tokens, places in SHAPES.values():
        positions = places
        if full:
            positions = Run(2_995, 5) if isinstance(places, Run) else places % 3_000
        for q_heads, k_heads in ((7, 2), (3, 1)):
            q, k = heads(batch, q_heads, tokens, dtype, 1), heads(batch, k_heads, tokens, dtype, 2)
            before = emulated.launches
            found, expected = fused.rotate(q, k, positions), plain.rotate(q, k, positions)
            assert emulated.launches > before
            same(found[0], expected[0])
            same(found[1], expected[1])


def test_one_launch_turns_both_and_the_check_is_made_once(metal):
    emulated = metal()
    rope = rope_of(LAYOUTS["half"], "auto")
    q, k = heads(1, 4, 3, mx.float32, 1), heads(1, 2, 3, mx.float32, 2)
    rope.rotate(q, k, Run(0, 3))
    assert emulated.launches == 3 + 1  # three shapes checked, then the call
    rope.rotate(q, k, Run(3, 3))
    rope_of(LAYOUTS["half"], "auto").rotate(q, k, Run(6, 3))  # another layer of the same layout
    assert emulated.launches == 6
    assert rope.way(q, k) == ("metal", None)
    rope.rotate(q.astype(mx.float16), k.astype(mx.float16), Run(0, 3))
    assert emulated.launches == 10  # another type is another kernel


def test_a_multiply_and_add_in_one_step_is_rounding(metal):
    """A Metal compiler may contract a * c - b * s; the check must let it."""
    metal(
        lambda source: (
            source.replace("float(qa) * c - float(qb) * s", "__builtin_fmaf(float(qa), c, -(float(qb) * s))")
            .replace("cos_hi[hi] * cos_lo[lo] - sin_hi", "__builtin_fmaf(cos_hi[hi], cos_lo[lo], -sin_hi")
            .replace("* sin_lo[lo];\n        s =", "* sin_lo[lo]);\n        s =")
        )
    )
    q, k = heads(2, 7, 5, mx.float32, 1), heads(2, 2, 5, mx.float32, 2)
    fused, plain = (rope_of(LAYOUTS["half"], rotation) for rotation in ("auto", "plain"))
    assert fused.way(q, k) == ("metal", None)
    found, expected = (np.array(rope.rotate(q, k, Run(70_000, 5))[0]) for rope in (fused, plain))
    assert (found != expected).any()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


FAULTS = {
    "the sign of the sine": lambda source: source.replace(
        "float(qb) * c + float(qa) * s", "float(qb) * c - float(qa) * s"
    ),
    "the wrong row": lambda source: source.replace("position / STEP", "(position + 1) / STEP"),
    "float16 positions": lambda source: source.replace(
        "const uint position = positions", "const uint position = (uint)(_Float16)positions"
    ),
    "k unturned": lambda source: source.replace("float(ka) * c - float(kb) * s", "float(ka)"),
    "contiguous inputs": lambda source: source.replace("h * q_strides[1]", "h * tokens * HEAD_DIM"),
    "channels that pass": lambda source: source.replace("q_out[to + a] = qa;", "q_out[to + a] = 0;"),
    "rows of the batch": lambda source: source.replace("(positions_shape[0] == 1 ? 0 : row)", "0"),
    "no compiler takes it": lambda source: source.replace("const bool turns", "const bool turn"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_is_wrong_is_not_used_and_the_reason_is_kept(fault, metal):
    emulated = metal(FAULTS[fault])
    q, k = heads(2, 7, 5, mx.float32, 1), heads(2, 2, 5, mx.float32, 2)
    encoding = LAYOUTS["half, first"]
    rope = rope_of(encoding, "auto")
    found = rope.rotate(q, k, Run(1_022, 5))
    launches = emulated.launches
    expected = rope_of(encoding, "plain").rotate(q, k, Run(1_022, 5))
    for turned, by_definition in zip(found, expected, strict=True):
        same(turned, by_definition)
    way, reason = rope.way(q, k)
    assert way == "plain"
    assert "Metal kernel failed" in reason or "Metal kernel differs from the plain path in" in reason
    assert "\n" not in reason
    rope.rotate(q, k, Run(1_022, 5))
    assert emulated.launches == launches  # it is not tried again
    with pytest.raises(SpecError, match="rotation must be auto or plain here, got 'metal': the Metal kernel"):
        rope_of(encoding, "metal").rotate(q, k, Run(1_022, 5))


def test_types_that_the_kernel_does_not_know_take_the_plain_path(metal):
    metal()
    q = k = mx.zeros((1, 1, 1, 12), mx.complex64)
    assert rope_of(LAYOUTS["half"], "auto").way(q, k) == ("plain", "the Metal kernel has no mlx.core.complex64")


def test_detection_asks_for_a_metal_device_that_is_the_default(monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert metal_rotary.why_not() == "mlx has no Metal device here"
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    assert metal_rotary.why_not() == "mlx's default device is the CPU"
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert metal_rotary.why_not() is None


def test_the_whole_block_on_the_kernel(variant, metal, block_of, inputs_of, as_float64):
    """Every stage of every variant, with the kernel in the plain path's place."""
    if variant.rotary is None or variant.attention == "linear":  # which turns keys apart from queries, in float32
        emulated = metal()
        block, _ = block_of(variant)
        block(mx.ones((1, 3, variant.input_width)))
        assert emulated.launches == 0
        return
    emulated = metal()
    inputs = inputs_of(variant, "float32")
    (fused, _), (plain, _) = (block_of(variant, rotation=rotation) for rotation in ("auto", "plain"))
    arguments = [mx.array(inputs.hidden_states), inputs.position_ids, inputs.attention_mask]
    arguments += [mx.array(inputs.past_key), mx.array(inputs.past_value), inputs.key_position_ids]
    found, expected = fused.stages(*arguments), plain.stages(*arguments)
    assert emulated.launches == 4
    for name in expected:
        np.testing.assert_array_equal(as_float64(found[name]), as_float64(expected[name]), err_msg=name)


@pytest.mark.parametrize("layout", ["half, last", "interleaved, first"])
def test_gradients_pass_the_kernel(layout, metal):
    emulated = metal()
    spec = AttentionSpec(
        hidden_size=20, num_heads=3, num_kv_heads=1, head_dim=12, v_head_dim=5, scale=0.3, rotary=LAYOUTS[layout]
    )
    fused, plain = Attention(spec), Attention(spec, rotation="plain")
    plain.load_weights(list(_flat(fused)))
    x = mx.array(np.random.default_rng(3).standard_normal((2, 6, 20)).astype(np.float32))

    def loss(block):
        return lambda x: mx.sum(block(x, "causal", position_ids=np.array([[9, 4, 1_030, 2, 2, 70_000]])) ** 2)

    found = mx.grad(loss(fused))(x)
    assert emulated.launches > 0
    np.testing.assert_allclose(np.array(found), np.array(mx.grad(loss(plain))(x)), rtol=0, atol=1e-5)
    assert np.abs(np.array(found)).max() > 0.1


def _flat(block):
    from mlx.utils import tree_flatten

    return tree_flatten(block.parameters())
